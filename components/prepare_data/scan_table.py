"""Scan a table without keeping a data set: what `slipway init --table` and `slipway data check` say and decide by."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.texts import days_of
from slipway.components.prepare_data.examples import COLUMN
from slipway.components.prepare_data.prepare import list_parts, list_source, plan_listing
from slipway.components.prepare_data.publishing.store import Store, require_room, store_errors_named
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import open_source
from slipway.components.prepare_data.sources.source import Misjudged
from slipway.components.prepare_data.sources.tables.header import LABEL_COLUMNS, SPLIT_COLUMN
from slipway.components.prepare_data.sources.tables.inference import (
    Cells,
    InferredColumn,
    count_cells,
    infer_kinds,
)
from slipway.components.prepare_data.sources.values import SEPARATOR, is_list
from slipway.components.prepare_data.validation.split_check import SplitFinding
from slipway.components.prepare_data.writing.set_writer import SetWriter
from slipway.components.prepare_data.writing.shard_tasks import ShardTasks
from slipway.core import events
from slipway.core.errors import UserError, nearest
from slipway.core.formatted import NumberFormat
from slipway.core.manifest import Manifest, TaskName
from slipway.core.tables.cells import PlainTable
from slipway.core.tables.formats import FORMATS, open_table

# A label with more different whole numbers is a target rather than a class.
MAX_NUMBERED_CLASSES = 20
# A column of dates orders the rows if it has at least so many different ones, and at most this fraction of the steps
# from one to another are against the order of the others.
MIN_DATES, MAX_DISORDER = 10, 0.01


@dataclass(frozen=True)
class TableScan:
    """What a source of examples has.

    Attributes:
        settings: The settings with which it was read.
        manifest: The manifest of the data set that it becomes.
        columns: Its columns, if it is a table, without those whose kind is declared.
        split_findings: What was measured of its splits.
    """

    settings: DataSettings
    manifest: Manifest
    columns: Mapping[str, InferredColumn] = field(default_factory=dict)
    split_findings: Sequence[SplitFinding] = ()

    @property
    def rows(self) -> int:
        """The number of examples, including those that are skipped."""
        return sum(split.examples for split in self.manifest.splits.values()) + self.manifest.skipped_count


def scan(settings: DataSettings, task: TaskName, cells: Mapping[str, Cells] | None = None) -> TableScan:
    """List a source in a temporary folder and validate its examples; return what the data set has that it becomes.

    Args:
        settings: The settings.
        task: What is learned.
        cells: The cells of a table's columns, if they are counted already.

    Raises:
        UserError: A run with these settings would stop for the same reason.
        Misjudged: A column of numbers, by `cells`, has a later cell that is not a number.
    """
    events.phase(f"listing {settings.source}")
    with tempfile.TemporaryDirectory(prefix="slipway-scan-") as folder:
        settings_here = settings.model_copy(update={"store": folder, "beam": None})
        source = open_source(settings_here, task, **({} if cells is None else {"cells": cells}))
        store = Store(folder, settings.name or source.name)
        with store_errors_named(store, 0), store.work_folder() as work:
            listing = (list_source if cells is None else list_parts)(source, settings_here, work)
            target, _ = plan_listing(source, listing, settings_here, 1, store.name)
            tasks = ShardTasks(
                name=store.name, source=source, settings=settings_here, listing=listing, plan=target.plan, scratch=work,
                work=work, keeps_shards=False,
            )  # fmt: skip
            if not source.is_table:
                require_room(store, work, target.plan.bytes)
            writer = SetWriter(tasks)
            manifest = writer.scan()
    return TableScan(settings, manifest, source.inferred(listing.ignored), writer.split_findings)


def scan_table(path: Path, label: str | None) -> TableScan:
    """Scan a CSV or Parquet file; its task is found by the column of the label.

    Raises:
        UserError: It cannot be read, or has no such column.
    """
    try:
        return _scan_table(path, label, whole=False)
    except Misjudged:
        return _scan_table(path, label, whole=True)


def _scan_table(path: Path, label: str | None, *, whole: bool) -> TableScan:
    """Scan a table as `scan_table` does; see `columns_of` for `whole`."""
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise UserError(
            f"{path} is no table.", setting="--table", value=str(path),
            allowed=f"a file whose name ends with {' or '.join(FORMATS)}",
        )  # fmt: skip
    columns, cells = columns_of(path, ending, label, whole=whole)
    formats = {name: column.written for name, column in columns.items() if column.written}
    if formats:
        columns, cells = columns_of(path, ending, label, whole=whole, formats=formats)
    label = label or _label_among(columns)
    if label not in columns:
        near = nearest(label, columns) if label else None
        raise UserError(
            f"{path} has no column {label}." if label else f"Which column of {path} is to be predicted?",
            setting="--label",
            value=label,
            allowed=", ".join(columns),
            nearest=near,
            fix=f"--label {shlex.quote(near or list(columns)[-1])}",
        )
    column = columns[label]
    task = task_of(column)
    settings: dict[str, object] = {"source": f"{ending[1:]}:{path}", "label": label, "number_format": formats}
    candidates = [name for name, other in columns.items() if len(other.texts) > 1]
    if task == "classification" and len(column.texts) == 1:
        raise UserError(
            f"The column {label} of {path} has one value, {column.texts[0]!r:.80}: there is nothing to predict.",
            setting="--label",
            value=label,
            allowed="a column with at least two different values",
            fix=f"--label {shlex.quote(candidates[-1] if candidates else 'COLUMN')}",
        )
    images = {name: other for name, other in columns.items() if other.kind == Kind("image") and name != label}
    if images:
        but = (label, SPLIT_COLUMN, *images)
        settings["inputs"] = [name for name, other in columns.items() if not other.excluded and name not in but]
        if not settings["inputs"]:
            raise UserError(
                f"{path} has no column to learn from: {', '.join(images)} has paths of images.",
                setting="--table",
                value=str(path),
                allowed="a table with a column of numbers, categories, dates or texts",
            )
    missing = {"regression": column.missing, "classification": column.empty, "multilabel": 0}[task]
    if missing:
        settings["skip_corrupt"] = math.ceil(missing / column.rows * 10_000) / 10_000
    result = None
    dates = {name: column for name, column in columns.items() if column.kind.is_date and name != label}
    if SPLIT_COLUMN not in columns and (day := date_of_rows(path, ending, dates)):
        declared = {} if columns[day].kind == Kind("date") else {"features": {day: str(columns[day].kind)}}
        ordered = DataSettings.model_validate({**settings, "order_by": f"{COLUMN}{day}", **declared})
        with contextlib.suppress(UserError):  # a split would lack a class
            result = scan(ordered, task, cells)
    result = result or scan(DataSettings.model_validate(settings), task, cells)
    return replace(result, columns={**dates, **result.columns, **images})


def date_of_rows(path: Path, ending: str, columns: Mapping[str, InferredColumn]) -> str | None:
    """Return the first of the columns, of dates, in whose order the rows are, or in the reverse; None if there is none.

    A few rows may be out of order, as in logs that several machines wrote.
    """
    for name, column in columns.items():
        if column.missing or len(column.texts) < MIN_DATES:
            continue
        with path.open("rb") as file:
            table = open_table(file, path, ending, UserError)
            at, last = table.names.index(name), np.zeros(0)
            steps = Counter[float]()
            for batch in table.batches():
                days = np.append(last, days_of(batch.columns[at], column.kind.order))
                signs, counts = np.unique(np.sign(np.diff(days)), return_counts=True)
                steps.update(dict(zip(signs.tolist(), counts.tolist(), strict=True)))
                last = days[-1:]
        if min(steps[1.0], steps[-1.0]) <= MAX_DISORDER * (steps[1.0] + steps[-1.0]):
            return name
    return None


def _label_among(names: Collection[str]) -> str | None:
    """Return the column that is called as a label, if there is one."""
    return next((name for name in names if name in (*LABEL_COLUMNS, "target")), None)


def columns_of(
    path: Path,
    ending: str,
    label: str | None,
    *,
    whole: bool,
    formats: Mapping[str, NumberFormat] = MappingProxyType({}),
) -> tuple[dict[str, InferredColumn], dict[str, Cells]]:
    """Return all columns of a table, and their cells.

    Args:
        path: The table's file.
        ending: The ending of its name.
        label: The column of the label; None for one that is called so.
        whole: Whether all rows of all columns are read, also of columns of many numbers other than the label.
        formats: The formats of numbers that are not plain, by column.
    """

    def mistake(message: str, *, fix: str | None = None) -> UserError:
        return UserError(message, setting="--table", value=str(path), fix=fix)

    try:
        with path.open("rb") as file:
            table = PlainTable(open_table(file, path, ending, mistake), formats, ())
            places = {name: index for index, name in enumerate(table.names)}
            chosen = label or _label_among(places)
            cells = count_cells(table, places, places if whole or chosen not in places else {chosen})
            return infer_kinds(table, places, mistake, cells=cells, refuse_images=False), cells
    except OSError as error:
        raise mistake(f"{path} cannot be read: {error.strerror}.") from None


def task_of(label: InferredColumn) -> TaskName:
    """Return the task that learns a column."""
    if any(SEPARATOR in text or is_list(text) for text in label.texts):
        return "multilabel"
    whole = all(re.fullmatch(r"[+-]?\d+(\.0)?", text) for text in label.texts)
    if str(label.kind) == "number" and (len(label.texts) > MAX_NUMBERED_CLASSES or not whole):
        return "regression"
    return "classification"
