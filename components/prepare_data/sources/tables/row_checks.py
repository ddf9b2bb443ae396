"""The checks of the rows of a table, one by one, where a batch has one that cannot be used."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import bytes_feature
from slipway.components.prepare_data.examples import SPLIT_FOLDERS, Unusable, readable
from slipway.components.prepare_data.sources.listed_files import file_status, path_key
from slipway.components.prepare_data.sources.source import Ignored
from slipway.components.prepare_data.sources.tables.header import Header
from slipway.components.prepare_data.sources.tables.schema import Schema
from slipway.components.prepare_data.sources.values import SEPARATOR, NotANumber, is_list, label_cell
from slipway.core.errors import nearest
from slipway.core.formatted import format_of
from slipway.core.tables.batch import Batch, Mistake
from slipway.core.values import is_missing, stored_name


@dataclass(frozen=True)
class RowChecks:
    """Checks the rows of a table.

    Attributes:
        path: The file.
        item: What a row is counted by: a line, or a row.
        header: The columns.
        schema: The kinds of the columns.
        gaps: Whether inputs that are numbers may be missing, as NaN.
        mistake: Returns the error of the table with a message, `nearest` and `fix`.
    """

    path: Path
    item: str
    header: Header
    schema: Schema
    gaps: bool
    mistake: Mistake

    def usable(self, batch: Batch, ignored: Ignored) -> Batch:
        """Return a batch without the rows that cannot be used, which are skipped.

        Raises:
            UserError: A cell is not of its column's kind.
        """
        kept, has_image = [], "image" in self.header.columns
        for index, (line, row) in enumerate(batch.rows()):
            cells = {use: row[at] for use, at in self.header.columns.items()}
            self._check_uses(cells, line)
            try:
                self._check_features(row, cells["label"], line)
            except Unusable as reason:
                ignored.skip(self._key(row, line), f"{reason} on {self.item} {line}" if has_image else str(reason))
            else:
                kept.append(index)
        return batch.take(kept)

    def encode(self, kind: Kind, text: str) -> bytes:
        """Return the Feature of a cell; of images, their paths.

        Raises:
            Unusable: It is not of this kind, or one of the images does not exist.
        """
        value = kind.from_text(text)
        if kind.name != "image":
            return kind.encode(value)
        paths = [*map(path_key, value)]
        for path in paths:
            if isinstance(status := file_status(self.path.parent, path), str):
                raise Unusable(f"{readable(path)} cannot be read: {status}")
        return bytes_feature(paths)

    def _key(self, row: Sequence[str], line: int) -> bytes:
        """Return the key of a row, or its line."""
        at = self.header.key
        return f"{self.item} {line}".encode() if at is None else self.header.key_of(row[at])

    def _check_uses(self, cells: Mapping[str, str], line: int) -> None:
        """Check the label, split and other uses of a row."""
        where = self._where(line)
        for use, cell in cells.items():
            if not cell and use not in ("label", "order"):
                raise self.mistake(f"{where} has no {use}.")
        label = cells["label"]
        if not label.isprintable():
            raise self.mistake(f"{where} has an unprintable label: {label!r}.")
        if self.schema.task == "classification" and (SEPARATOR in label or is_list(label)):
            raise self.mistake(f"{where} has several labels: {label!r}.", fix="--set task=multilabel")
        if "split" in cells and cells["split"].lower() not in SPLIT_FOLDERS:
            raise self.mistake(
                f"{where} has an unknown split: {cells['split']!r}.",
                nearest=nearest(cells["split"], SPLIT_FOLDERS),
                allowed="train, validation and test",
                fix=f"write train, validation or test in place of {cells['split']!r}, or rename the column split",
            )

    def _check_features(self, row: Sequence[str], label: str, line: int) -> None:
        """Check the label and the features of a row.

        Raises:
            Unusable: The target or a number among the inputs is missing.
            UserError: A cell is not of its column's kind.
        """
        name = self.header.names[self.header.columns["label"]]
        if not label and self.schema.task == "classification":
            raise Unusable(f"its label in the column {name} is missing")
        try:
            label_cell(self.schema.task, label, name)
        except NotANumber:
            fix = "--set task=classification, or data.label=COLUMN of a column of numbers"
            if written := format_of([label]):
                fix = f"--set {shlex.quote(f'data.number_format={json.dumps({name: written}, ensure_ascii=False)}')}"
            raise self.mistake(
                f"{self._where(line)} has {label!r} in the column {name}, which is not a plain number. The task "
                "regression requires numbers.",
                fix=fix,
            ) from None
        for name, index in self.header.additional.items():
            kind, text = self.schema.kinds[name], row[index]
            if kind.name in ("number", "integer") and stored_name(name) in self.schema.inputs and is_missing(text):
                if not self.gaps or kind != Kind("number"):
                    raise Unusable(f"its number in the column {name} is {text or 'empty'}")
                continue
            try:
                self.encode(kind, text)
            except Unusable as reason:
                raise self.mistake(
                    f"{self._where(line)} has an invalid {kind} in the column {name}: {reason}.",
                    fix=f"correct the {self.item}, or set data.features.{name} to another kind",
                ) from None

    def _where(self, line: int) -> str:
        return f"{self.item.capitalize()} {line} of {self.path}"
