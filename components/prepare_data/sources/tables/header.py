"""The header of a table: which columns are the label, image, split, id and group, and which are additional features."""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from slipway.components.prepare_data.examples import COLUMN
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.images import is_image
from slipway.components.prepare_data.sources.listed_files import file_status, path_key
from slipway.components.prepare_data.sources.record_layout import additional_kinds
from slipway.core.errors import UserError, nearest
from slipway.core.tables.batch import Mistake, TableFile

IMAGE_COLUMNS = ("image", "path", "file")
LABEL = "label"
LABEL_COLUMNS = ("label", "class")
SPLIT_COLUMN = "split"
COLUMNS = (
    "a header line with the columns label (or class, or data.label), optionally split, and image (or path, file), or "
    "numbers and categories"
)
# Cells of a column that are looked up as files.
MAX_FILES = 100
# A column whose name is this similar to one of ours is more likely a typo than a feature.
SLIP = 0.8


class Header(NamedTuple):
    """The first line: all columns, and the positions of the columns with a use and of the additional ones."""

    names: list[str]
    columns: dict[str, int]
    additional: dict[str, int]

    @property
    def content(self) -> list[int]:
        """The columns that are part of a row's key, in order: all but the split, by name."""
        columns = set(range(len(self.names))) - {self.columns.get("split")}
        return sorted(columns, key=self.names.__getitem__)

    def name(self, use: str) -> str | None:
        """Return the name of the column with a use, or None."""
        return self.names[self.columns[use]] if use in self.columns else None

    @property
    def key(self) -> int | None:
        """The column of the keys: the path of the image, or data.id."""
        return self.columns.get("image", self.columns.get("id"))

    def key_of(self, cell: str) -> bytes:
        """Return the key of an image, or of a row with this id."""
        return path_key(cell) if "image" in self.columns else cell.encode()


class HeaderReader:
    """Reads the header of a table as the settings describe it.

    Args:
        settings: The user's settings.
        group_column: The column of the group, if data.group_by is set.
        mistake: Returns the error of the table with a message, `nearest` and `fix`.
    """

    def __init__(self, settings: DataSettings, group_column: str | None, mistake: Mistake) -> None:
        self._settings = settings
        self._described = additional_kinds(settings)
        self._group_column = group_column
        self._mistake = mistake
        self._columns_of = {
            "image": (settings.image,) if settings.image else IMAGE_COLUMNS,
            "label": (settings.label,) if settings.label else LABEL_COLUMNS,
            "split": (SPLIT_COLUMN,),
        }
        if settings.id is not None:
            self._columns_of["id"] = (settings.id,)

    def forget_image(self, table: TableFile, folder: Path) -> None:
        """Take a column that is called as one of images for another one, unless some of its first cells are files.

        So is one that data.inputs does not name, among others.
        """
        if self._settings.image is not None:
            return
        names = self._columns_of.get("image", ())
        columns = [index for index, name in enumerate(table.names) if name in names]
        if self._settings.inputs is not None and not {*names} & {*self._settings.inputs}:
            self._columns_of.pop("image", None)
            return
        batch = None
        with contextlib.suppress(UserError):  # which listing raises
            batch = next(iter(table.batches()), None) if columns else None
        if batch is not None:
            cells = itertools.chain.from_iterable(batch.columns[index][:MAX_FILES].to_pylist() for index in columns)
            if not any(_is_file(folder, cell) for cell in cells):
                self._columns_of.pop("image")

    def read(self, table: TableFile) -> Header:
        """Return the header.

        Raises:
            UserError: A column is missing, duplicated or probably a typo.
        """
        names, requested = table.names, dict(self._columns_of)
        if self._group_column is not None:
            requested["group"] = (self._group_column,)
        if self._settings.order_column is not None:
            requested["order"] = (self._settings.order_column,)
        columns: dict[str, int] = {}
        for use, allowed in requested.items():
            indexes = [index for index, name in enumerate(names) if name in allowed]
            if len(indexes) > 1:
                listed = ", ".join(names[index] for index in indexes)
                fix = f"--set data.{use}={names[indexes[0]]}" if len({*allowed}) > 1 else "rename one of them"
                raise self._mistake(f"{table.header} has several columns for the {use}: {listed}.", fix=fix)
            if indexes:
                columns[use] = indexes[0]
            elif use in ("group", "order"):
                raise UserError(
                    f"{table.header} has no column {allowed[0]}.",
                    setting=f"data.{use}_by",
                    value=f"column:{allowed[0]}",
                    allowed="column:NAME, where NAME is one of " + ", ".join(names),
                    nearest=(near := nearest(allowed[0], names)) and f"{COLUMN}{near}",
                )
            elif use in ("label", "id") or (use == "image" and self._settings.image is not None):
                raise self._no_column(table, use, allowed)
        used = {index for use, index in columns.items() if use in self._columns_of}
        additional = {name: index for index, name in enumerate(names) if index not in used}
        self._check_additional(table, columns, additional)
        return Header(names, columns, additional)

    def _no_column(self, table: TableFile, use: str, allowed: tuple[str, ...]) -> UserError:
        message, names = f"{table.header} has no column {' or '.join(allowed)}.", table.names
        near = nearest(allowed[0], names)
        fix = f"--set data.{use}={near or 'COLUMN'}" if names else None
        listed = ", ".join(names) if names else COLUMNS
        if getattr(self._settings, use) is None:
            return self._mistake(message, allowed=listed, nearest=near, fix=fix)
        return UserError(message, setting=f"data.{use}", value=allowed[0], allowed=listed, nearest=near, fix=fix)

    def _check_additional(self, table: TableFile, columns: Mapping[str, int], additional: Mapping[str, int]) -> None:
        """Reject additional columns whose name is missing, duplicated or probably a typo."""
        known = {name for use, allowed in self._columns_of.items() if use not in columns for name in allowed}
        counts = Counter(table.names)
        for name in additional:
            if counts[name] > 1:
                raise self._mistake(f"{table.header} has two columns {name}.")
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=SLIP)
            if near and name not in self._described and name not in (self._group_column, self._settings.order_column):
                raise self._mistake(
                    f"{table.header} has an unknown column {name!r}.",
                    nearest=near[0],
                    fix=f"rename the column, or declare it as a feature: --set data.features.{name}=text",
                )
        for name, kind in self._described.items():
            if name not in additional:
                raise UserError(
                    f"{table.header} has no column {name}.",
                    setting=f"data.features.{name}",
                    value=str(kind),
                    allowed=", ".join(additional) or "no features: there are no additional columns",
                    nearest=nearest(name, additional),
                    fix=f"correct the name in data.features: {name} is not a column",
                )


def _is_file(folder: Path, cell: str) -> bool:
    key = path_key(cell)
    return is_image(key) or not isinstance(file_status(folder, key), str)
