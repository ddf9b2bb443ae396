"""Tables as inputs of batch predictions on Vertex AI: their rows become JSON lines, a file beside the predictions.

Vertex AI itself sends a row of a CSV file as an array of texts, without the names of its columns, and reads no Parquet.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import existing
from slipway.core.errors import UserError
from slipway.core.integrity import RECORD_FILE
from slipway.core.tables.batch import TableFile
from slipway.core.tables.formats import open_table
from slipway.pipelines.platforms.vertex.batch_files import Inputs, called, opened
from slipway.serving import tables
from slipway.serving.kinds import BadRequest
from slipway.serving.model import INSTANCES, Arrays, Model, described

# The field with the name of a row, which the model does not receive.
KEY = "slipway_row"


def as_instances(connection: Connection, inputs: Inputs, version: Any, output: str) -> Inputs:
    """Return tables as instances, in a file on this machine until `upload`.

    Args:
        connection: The connection.
        inputs: The tables.
        version: The version of the model, whose inputs are their columns.
        output: The folder of the predictions, gs://BUCKET/FOLDER.

    Raises:
        UserError: A column is missing, a value does not fit, or a key occurs twice.
    """
    model = _model(connection, version)
    seen: set[str] = set()
    largest = 0
    file = tempfile.TemporaryFile()  # noqa: SIM115 (until the job is submitted)
    for key, instance, where in _rows(connection, inputs, model):
        if key in seen:
            raise UserError(f"{where} repeats the {inputs.key} of an earlier row: {key}.", setting="--key", value=key)
        seen.add(key)
        line = json.dumps({**instance, inputs.key or KEY: key}).encode()
        largest = max(largest, len(line))
        file.write(line + b"\n")
    if not seen:
        raise UserError("The inputs have no rows.", setting="--input", value=", ".join(inputs.uris))
    about = f"{inputs.fingerprint} {inputs.key} {version.name} {version.version_id}"
    name = f"instances-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsonl"
    bucket, _, prefix = output.rstrip("/").removeprefix("gs://").partition("/")
    blob = connection.storage.bucket(bucket).blob(f"{prefix}/{name}")
    return Inputs(
        uris=(f"gs://{bucket}/{prefix}/{name}",),
        blobs=[blob],
        format="jsonl",
        key=inputs.key or KEY,
        fingerprint=inputs.fingerprint,
        examples=len(seen),
        largest=largest,
        content=file,
    )


def upload(connection: Connection, inputs: Inputs) -> None:
    """Write the instances of tables to the bucket."""
    (blob,), file = inputs.blobs, inputs.content
    assert file is not None
    file.seek(0)
    action = f"write {inputs.uris[0]}"
    called(connection, action, partial(blob.upload_from_file, file, rewind=True, content_type="application/json"))


def _model(connection: Connection, version: Any) -> Model:
    """Return the model's inputs by its model.json; those of a custom model are any columns."""
    bucket, _, prefix = version.artifact_uri.removeprefix("gs://").partition("/")
    blob = connection.storage.bucket(bucket).blob(str(PurePosixPath(prefix, RECORD_FILE)))
    action = f"read gs://{bucket}/{blob.name}"
    text = called(connection, action, lambda: existing(blob.download_as_bytes))
    model = described(Path(version.display_name), json.loads(text) if text else {})
    if image := next((name for name, feature in model.inputs.items() if feature.kind == "image"), None):
        raise UserError(
            f"The model {version.display_name} needs images ({image}), which a table has only by their paths.",
            setting="--input",
            allowed="for images: a list of files (.txt), or instances (.jsonl)",
            fix="list the gs:// URIs of the images, one per line, in a .txt file",
        )
    return model


def _rows(connection: Connection, inputs: Inputs, model: Model) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield each row: its key, its instance and its place."""
    for blob in inputs.blobs:
        uri = f"gs://{blob.bucket.name}/{blob.name}"

        def mistake(message: str, uri: str = uri, **more: Any) -> UserError:
            return UserError(message, setting="--input", value=uri, **more)

        with opened(connection, blob) as file:
            table = open_table(file, uri, PurePosixPath(blob.name).suffix.lower(), mistake)
            prefix = f"{uri} " if len(inputs.blobs) > 1 else ""
            yield from _rows_of(table, inputs.key, model, uri, prefix)


def _rows_of(
    table: TableFile, key: str | None, model: Model, uri: str, prefix: str
) -> Iterator[tuple[str, dict[str, Any], str]]:
    columns = tables.columns_of(table.names, model, table.header, "--input", uri, key)
    if key is not None and key not in table.names:
        raise UserError.unknown("column", key, table.names, setting="--key")
    for batch in table.batches():
        values = {name: batch.columns[at] for name, at in columns.items()}
        arrays, faults = tables.arrays(model, values, len(batch), batch.faults, _no_files)
        if faults:
            raise _wrong(table.item, batch.lines[min(faults)], uri, faults[min(faults)])
        keys = [f"{prefix}{table.item} {line}" for line in batch.lines]
        if key is not None:
            keys = batch.columns[table.names.index(key)].to_pylist()
        places = (f"{uri} {table.item} {line}" for line in batch.lines)
        yield from zip(keys, _instances(model, arrays), places, strict=True)


def _instances(model: Model, arrays: Arrays) -> Iterator[dict[str, Any]]:
    if model.is_custom:
        yield from arrays[INSTANCES]
        return
    texts = {name for name, feature in model.inputs.items() if feature.dtype == object}
    for row in zip(*(array.tolist() for array in arrays.values()), strict=True):
        yield {name: _text(value) if name in texts else value for name, value in zip(arrays, row, strict=True)}


def _text(value: Any) -> Any:
    return [_text(element) for element in value] if isinstance(value, list) else value.decode()


def _no_files(path: str) -> bytes:
    raise ValueError(f"{path!r:.80} is the path of an image")


def _wrong(item: str, line: int, uri: str, fault: BadRequest) -> UserError:
    field = f" {fault.field}:" if fault.field else ""
    return UserError(
        f"{item.capitalize()} {line} of {uri}:{field} {fault.problem}.",
        setting="--input",
        value=uri,
        fix=f"correct or remove the {item} in a copy: gcloud storage cp {uri} .",
    )
