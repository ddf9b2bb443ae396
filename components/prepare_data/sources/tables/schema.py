"""The schema of a table: the kinds of its additional columns, described or inferred, and which of them are inputs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.inputs import choose_inputs
from slipway.components.prepare_data.encoding.table_rows import TableLayout
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.record_layout import additional_kinds
from slipway.components.prepare_data.sources.tables.header import LABEL, Header
from slipway.components.prepare_data.sources.tables.inference import Cells, InferredColumn, count_cells, infer_kinds
from slipway.core.manifest import TaskName
from slipway.core.tables.batch import Mistake, TableFile
from slipway.core.values import stored_name


@dataclass(frozen=True)
class Schema:
    """The kinds of a table's columns.

    Attributes:
        task: What is learned.
        kinds: The kinds of the additional columns, by name.
        inputs: The kinds of the inputs, by the names under which they are stored, in order.
        judged: The columns of numbers of which only the first rows were read to infer their kinds.
        inferred: The columns whose kinds were inferred, by name.
        notes: Sentences for the user about columns that are no inputs, or of a doubtful kind.
    """

    task: TaskName
    kinds: Mapping[str, Kind]
    inputs: Mapping[str, Kind]
    judged: Collection[str]
    inferred: Mapping[str, InferredColumn]
    notes: Sequence[str]

    @property
    def spellings(self) -> dict[str, dict[str, str]]:
        """The text of categories that a column writes in several ways, by feature."""
        return {stored_name(name): column.spellings for name, column in self.inferred.items()}

    @property
    def images(self) -> list[str]:
        """The columns of paths of images, other than the one that makes the table a list of images."""
        return [name for name, kind in self.kinds.items() if kind.name == "image"]

    @cached_property
    def layout(self) -> TableLayout:
        """What a row consists of."""
        kinds = {stored_name(name): kind for name, kind in self.kinds.items()}
        if self.task != "classification":
            kinds[LABEL] = Kind("number") if self.task == "regression" else Kind("text", is_list=True)
        return TableLayout(kinds)


def read_schema(
    table: TableFile,
    path: Path,
    header: Header,
    settings: DataSettings,
    task: TaskName,
    mistake: Mistake,
    *,
    whole: bool,
    cells: Mapping[str, Cells] | None = None,
) -> Schema:
    """Return the schema of a table: kinds are those in data.features, else inferred for inputs, else text.

    Args:
        table: The table.
        path: Its file.
        header: Its columns.
        settings: The user's settings.
        task: What is learned.
        mistake: Returns the error of the table with a message and `fix`.
        whole: Whether numbers are inferred from all rows, rather than from the first ones: see `count_cells`.
        cells: The cells of the columns, if they are counted already.

    Raises:
        UserError: No column can be an input, or one of data.inputs cannot.
    """
    image, dividing = header.name("image"), {header.name("group") or "", header.name("order") or ""}
    described = additional_kinds(settings)
    names = set(settings.inputs or (() if image else header.additional.keys() - dividing))
    columns = {name: index for name, index in header.additional.items() if name in names and name not in described}
    if cells is None:
        cells = count_cells(table, columns, columns if whole else ()) if columns else {}
    judged = set() if whole else {name for name in columns if cells[name].are_many_numbers}
    inferred = infer_kinds(table, columns, mistake, cells=cells)
    kinds = {name: column.kind for name, column in inferred.items()} | described
    kinds = {name: kinds.get(name, Kind("text")) for name in header.additional}
    excluded: dict[str, str] = {}
    if settings.inputs is None:
        excluded = {name: column.excluded for name, column in inferred.items() if column.excluded}
    if excluded and len(excluded) == len(kinds) and image is None:
        reasons = "; ".join(f"{name} {why}" for name, why in excluded.items())
        raise mistake(
            f"No column of {path} is an input: {reasons}.",
            fix=f"--set {shlex.quote(f'data.inputs={json.dumps([*excluded], ensure_ascii=False)}')}",
        )
    inputs = choose_inputs(
        settings, {name: str(kind) for name, kind in kinds.items()}, image=image, but=(*dividing, *excluded)
    )
    notes = [f"The column {name} is no input: it {why}." for name, why in excluded.items()]
    doubtful = {name: column for name, column in inferred.items() if column.doubt and name not in excluded}
    notes += [f"The column {name} is a {column.kind}: it {column.doubt}." for name, column in doubtful.items()]
    return Schema(task, kinds, inputs, judged, inferred, notes)
