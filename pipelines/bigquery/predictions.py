"""Predictions of `slipway batch` as a table of BigQuery, which a load job replaces when all are made.

Only tables that Slipway has created are replaced: they have the label `slipway`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.components.cloud.refusals import message_of
from slipway.components.cloud.retries import status_of
from slipway.components.prepare_data.bigquery.names import PREFIX, QUERY, table_name
from slipway.components.prepare_data.bigquery.service import LABEL, Warehouse
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.bigquery.inputs import settings_of

if TYPE_CHECKING:
    import pyarrow

BATCH = "batch"
# Rows that are converted at once.
GROUP_ROWS = 10_000


def open_table(output: str) -> PredictionTable:
    """Return the table for predictions.

    Raises:
        UserError: It exists and Slipway did not create it, or its dataset does not exist.
    """
    argument = output.removeprefix(PREFIX)
    if argument.lower().endswith(QUERY):
        raise UserError(
            "Predictions are written to a table, not to a query.", setting="--output", value=output,
            allowed="bigquery:PROJECT.DATASET.TABLE",
        )  # fmt: skip
    try:
        name = table_name(argument)
    except UserError as error:
        error.setting, error.allowed = "--output", "bigquery:PROJECT.DATASET.TABLE"
        error.fix = error.nearest and f"--output {error.nearest}"
        raise
    table = PredictionTable(output, Warehouse(settings_of(), name.project))
    _ = table.exists
    return table


@dataclass(frozen=True)
class PredictionTable:
    """A table with a row for each input.

    Attributes:
        output: Its name, as the user wrote it.
        warehouse: BigQuery.
    """

    output: str
    warehouse: Warehouse

    @property
    def folder(self) -> Path:
        """The folder that has the predictions until all are made."""
        return Path(f"{self.output.removeprefix(PREFIX)}.predictions")

    @cached_property
    def exists(self) -> bool:
        """Whether it exists, created by Slipway.

        Raises:
            UserError: Another program has created it.
        """
        name = table_name(self.output.removeprefix(PREFIX))
        try:
            metadata = self.warehouse.table(name)
        except Exception as error:
            if status_of(error) != 404:
                raise
            if "Dataset" in message_of(error):
                raise UserError(
                    f"There is no dataset {name.project}:{name.dataset}.", setting="--output", value=self.output,
                    fix=f"bq mk --dataset --location=LOCATION {name.project}:{name.dataset}",
                ) from None  # fmt: skip
            return False
        if LABEL not in metadata.get("labels", {}):
            raise UserError(
                f"The table {name} exists, and Slipway did not create it.", setting="--output", value=self.output,
                allowed=f"a new table, or one with the label {LABEL}, whose rows are replaced",
                fix=f"--output {self.output}_predictions",
            )  # fmt: skip
        return True

    def write(self, folder: Path) -> str:
        """Load the predictions of a complete batch; remove the folder."""
        import pyarrow.parquet

        file, rows = folder / "predictions.parquet", _rows(folder)
        first = list(islice(rows, GROUP_ROWS))
        schema = _schema(first)
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            while first:
                writer.write_table(pyarrow.Table.from_pylist(first, schema), GROUP_ROWS)
                first = list(islice(rows, GROUP_ROWS))
        name = table_name(self.output.removeprefix(PREFIX))
        replaces = PredictionTable(self.output, self.warehouse).exists  # as it is now
        count = self.warehouse.load(file, name, BATCH, replaces=replaces)
        shutil.rmtree(folder)
        return f"loaded {count:,} rows into {name}"


def _rows(folder: Path) -> Iterator[JsonObject]:
    """Yield the rows of the table: the predictions in their order, then the inputs with an error."""
    for path in (*sorted(folder.glob("part-*.jsonl")), folder / "errors.jsonl"):
        with path.open(encoding="utf-8") as file:
            for line in file:
                answer = json.loads(line)
                row = _columns(answer["prediction"]) if "prediction" in answer else {"error": answer["error"]}
                yield {"input": answer["input"], **row}


def _columns(prediction: Any) -> JsonObject:
    """Return a prediction as columns: those of its task, or its JSON."""
    match prediction:
        case {"label": label, "classes": names, "probabilities": values, **more} if not more:
            return {"label": label, "probability": max(values), "probabilities": _pairs(names, values)}
        case {"labels": names, "probabilities": values, **more} if not more:
            return {"probabilities": _pairs(names, values)}
        case {"prediction": int() | float() as value, **more} if not more:
            return {"prediction": float(value)}
    return {"prediction_json": json.dumps(prediction, ensure_ascii=False)}


def _pairs(names: list[str], values: list[float]) -> list[JsonObject]:
    return [{"label": name, "probability": value} for name, value in zip(names, values, strict=True)]


def _schema(rows: list[JsonObject]) -> pyarrow.Schema:
    """Return the columns of the table, which all predictions of a model have."""
    import pyarrow

    text, number = pyarrow.string(), pyarrow.float64()
    types: Mapping[str, pyarrow.DataType] = {
        "input": text, "label": text, "probability": number,
        "probabilities": pyarrow.list_(pyarrow.struct([("label", text), ("probability", number)])),
        "prediction": number, "prediction_json": text, "error": text,
    }  # fmt: skip
    used = {name for row in rows for name in row} | {"error"}
    return pyarrow.schema([(name, kind) for name, kind in types.items() if name in used])
