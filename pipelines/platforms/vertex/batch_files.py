"""The files of batch predictions in Cloud Storage: which inputs there are, and what became of each.

Vertex AI writes the predictions of a custom model to prediction.results-*, and the messages of failed requests, with
the number of their instances, to prediction.errors_stats-*; it does not list the instances that failed. They are the
inputs without a prediction.
"""

from __future__ import annotations

import ast
import base64
import fnmatch
import hashlib
import json
import os
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import IO, Any, Literal, TypeVar

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import refusing
from slipway.components.cloud.retries import existing, retried
from slipway.core.errors import UserError
from slipway.core.tables.formats import FORMATS as TABLES
from slipway.serving.instances import parse
from slipway.serving.kinds import BadRequest

Result = TypeVar("Result")
Format = Literal["jsonl", "file-list", "tf-record", "table"]
# The format of the inputs by the end of their names. A table becomes instances; see batch_tables.py.
FORMATS: dict[str, Format] = {
    **dict.fromkeys(TABLES, "table"),
    ".jsonl": "jsonl",
    ".txt": "file-list",
    ".tfrecord": "tf-record",
    ".tfrecords": "tf-record",
}
# More than this is not read: the job's own statistics count the inputs.
MAX_BYTES = 1 << 30
RECORD_HEADER = struct.Struct("<Q4x")
RECORD_FOOTER = 4
RESULTS = re.compile(r"prediction\.results-|predictions_\d")
ERRORS = re.compile(r"prediction\.errors_stats-|errors_\d")


@dataclass(frozen=True)
class Inputs:
    """The input objects and their format.

    `fingerprint` changes whenever an object does. `examples` is the number of instances, None if they are too large to
    be read; `largest` the bytes of the largest one in a request, 0 if not known. `content` are the instances of tables
    until they are in the bucket.
    """

    uris: tuple[str, ...]
    blobs: Sequence[Any]
    format: Format
    key: str | None
    fingerprint: str
    examples: int | None = None
    largest: int = 0
    content: IO[bytes] | None = None


@dataclass
class Results:
    """What became of the inputs.

    Attributes:
        done: Number of predictions.
        failed: The inputs without one, each with the reason if it is known.
        messages: Number of instances by message in the files of errors.
        matched: Whether each prediction belongs to an input; otherwise `failed` is empty.
    """

    done: int = 0
    failed: list[dict[str, str]] = field(default_factory=list)
    messages: Counter[str] = field(default_factory=Counter)
    matched: bool = True


def called(connection: Connection, action: str, call: Callable[[], Result], needs: str | None = None) -> Result:
    """Return the result of an idempotent call, which is retried.

    Args:
        connection: The connection of the call.
        what: What the call is for, as a verb phrase.
        call: The call.
        needs: The permission that it needs, unless the service names it.

    Raises:
        UserError: It failed.
    """
    with refusing(connection, action, needs):
        return retried(call)


def find_inputs(connection: Connection, uris: Sequence[str], key: str | None) -> Inputs:
    """List the inputs and check each instance, unless they are too large, or tables.

    Raises:
        UserError: There is none, the format is not supported, or an instance is not valid.
    """
    uris = [file_uri for uri in uris for file_uri in _in_folder(connection, uri)]
    kinds = {_format(uri) for uri in uris}
    if len(kinds) > 1:
        raise UserError(
            f"The inputs of one job must have the same format, not {' and '.join(sorted(kinds))}.",
            setting="--input",
            value=", ".join(uris),
        )
    (kind,) = kinds
    if key is not None and kind == "file-list":
        raise UserError(
            "The lines of a file list have no fields.", setting="--key", value=key, allowed="a field of JSONL objects"
        )
    blobs = [blob for uri in uris for blob in _listed(connection, uri)]
    inputs = Inputs(tuple(uris), blobs, kind, key, _fingerprint(blobs))
    if kind == "table" or sum(int(blob.size or 0) for blob in blobs) > MAX_BYTES:
        return inputs
    seen: set[bytes] = set()
    count = largest = 0
    for name, identity, size in instances(connection, inputs):
        count += 1
        largest = max(largest, size)
        if key is not None:
            if (digest := _digest(identity)) in seen:
                raise UserError(f"{name} repeats the {key} of an earlier line: {identity}.", setting="--key", value=key)
            seen.add(digest)
    if not count:
        raise UserError("The inputs have no instances.", setting="--input", value=", ".join(uris))
    return replace(inputs, examples=count, largest=largest)


def _fingerprint(blobs: Sequence[Any]) -> str:
    """Return the hash of the objects' names and generations, which the client forgets when it reads an object."""
    names = [f"{blob.bucket.name}/{blob.name}#{blob.generation}" for blob in blobs]
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def instances(connection: Connection, inputs: Inputs) -> Iterator[tuple[str, Any, int]]:
    """Yield each instance: its name, what identifies it in the predictions, and its bytes in a request if known.

    Raises:
        UserError: A line is not JSON, or has no key.
    """
    for blob in inputs.blobs:
        where = f"gs://{blob.bucket.name}/{blob.name}"
        with opened(connection, blob) as file:
            if inputs.format == "tf-record":
                for number, record in enumerate(_records(file, where), 1):
                    text = base64.b64encode(record).decode()
                    yield f"{where} record {number}", {"b64": text}, len(text)
                continue
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                name = f"{where} line {number}"
                if inputs.format == "file-list":
                    yield name, line.decode(errors="replace").strip(), 0
                else:
                    yield name, _identity(line, name, inputs.key), len(line)


def read_results(connection: Connection, folder: str, inputs: Inputs) -> Results:
    """Read the job's output folder, and compare it with the inputs."""
    results = Results()
    predicted: Counter[bytes] = Counter()
    reasons: dict[bytes, str] = {}
    bucket, _, prefix = folder.removeprefix("gs://").partition("/")
    objects = connection.storage.list_blobs
    for blob in called(connection, f"list {folder}", lambda: list(objects(bucket, prefix=prefix.rstrip("/") + "/"))):
        name = blob.name.rpartition("/")[2]
        if not RESULTS.match(name) and not ERRORS.match(name):
            continue
        with opened(connection, blob) as file:
            for line in file:
                row = _row(line)
                identity = _digest(row.get("key", row.get("instance")))
                if (message := row.get("error")) is None and RESULTS.match(name):
                    predicted[identity] += 1
                    results.done += 1
                elif message:
                    text = str(message.get("message", message)) if isinstance(message, dict) else str(message)
                    results.messages[text] += int(row.get("count", 1))
                    reasons[identity] = text
    if inputs.examples is None:
        results.matched = False
        return results
    default = next(iter(results.messages)) if len(results.messages) == 1 else "there is no prediction"
    for name, identity, _ in instances(connection, inputs):
        digest = _digest(identity)
        if predicted[digest] > 0:
            predicted[digest] -= 1
            continue
        input_name = str(identity) if inputs.key is not None else name
        results.failed.append({"input": input_name, "error": reasons.get(digest, default)})
    if any(predicted.values()):
        results.matched, results.failed = False, []
    return results


def _ending(uri: str) -> str | None:
    return next((ending for ending in FORMATS if uri.lower().endswith(ending)), None)


def _in_folder(connection: Connection, uri: str) -> list[str]:
    """Return the URI, or those of the files in a folder, which must have one format."""
    bucket, slash, prefix = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not slash or _ending(uri) or re.search(r"[*?\[]", prefix):
        return [uri]
    folder = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
    with refusing(connection, f"list {uri}"):
        blobs = existing(lambda: list(connection.storage.list_blobs(bucket, prefix=folder))) or []
    by_ending: dict[str, list[str]] = {}
    for blob in blobs:
        if (ending := _ending(blob.name)) and not PurePosixPath(blob.name).name.startswith("."):
            by_ending.setdefault(ending, []).append(f"gs://{bucket}/{blob.name}")
    if not by_ending:
        raise UserError(
            f"The folder {uri} has no files to predict on ({', '.join(FORMATS)}).",
            setting="--input",
            value=uri,
            fix=f"gcloud storage ls {uri}",
        )
    if len(by_ending) > 1:
        counts = "; ".join(f"{len(uris):,} {ending}, such as {uris[0]}" for ending, uris in by_ending.items())
        raise UserError(
            f"The folder {uri} has files of several formats: {counts}.",
            setting="--input",
            value=uri,
            fix=f"--input '{uri.rstrip('/')}/*{next(iter(by_ending))}'",
        )
    ((_, uris),) = by_ending.items()
    return uris


def _format(uri: str) -> Format:
    ending = _ending(uri)
    if uri.startswith("gs://") and "/" in uri.removeprefix("gs://") and ending is not None:
        return FORMATS[ending]
    raise UserError(
        f"The input {uri} cannot be predicted on Vertex AI.",
        setting="--input",
        value=uri,
        allowed=f"gs://BUCKET/FILE with a table ({', '.join(TABLES)}), instances (.jsonl), a list of images (.txt) or "
        "TFRecords (.tfrecord), or a folder of these; * and ? match several files",
        fix=None if uri.startswith("gs://") else f"gcloud storage cp {uri} gs://BUCKET/FOLDER/",
    )


def _listed(connection: Connection, uri: str) -> list[Any]:
    bucket, _, pattern = uri.removeprefix("gs://").partition("/")
    prefix = re.split(r"[*?\[]", pattern)[0]
    with refusing(connection, f"list {uri}"):
        objects = existing(lambda: list(connection.storage.list_blobs(bucket, prefix=prefix)))
    blobs = [blob for blob in objects or () if fnmatch.fnmatchcase(blob.name, pattern)]
    if not blobs:
        raise UserError(f"There is nothing at {uri}.", setting="--input", value=uri, fix=f"gcloud storage ls {uri}")
    return blobs


def opened(connection: Connection, blob: Any) -> IO[bytes]:
    """Return the content of an object as a file."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        where = f"gs://{blob.bucket.name}/{blob.name}"
        called(connection, f"read {where}", lambda: (file.seek(0), file.truncate(), blob.download_to_file(file)))
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _records(file: IO[bytes], where: str) -> Iterator[bytes]:
    """Yield the records of a TFRecord file without checking their checksums."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    while header := file.read(RECORD_HEADER.size):
        length = RECORD_HEADER.unpack(header)[0] if len(header) == RECORD_HEADER.size else size
        record = file.read(length) if length < size else b""
        if len(record) != length or len(file.read(RECORD_FOOTER)) != RECORD_FOOTER:
            raise UserError(f"{where} is not a TFRecord file, or cut short.", setting="--input", value=where)
        yield record


def _identity(line: bytes, name: str, key: str | None) -> Any:
    try:
        instance = parse(line, name)
    except BadRequest as error:
        raise UserError(str(error), setting="--input", value=name) from None
    if key is None:
        return instance
    if not isinstance(instance, dict) or key not in instance:
        raise UserError(
            f"{name} has no field {key}.",
            setting="--key",
            value=key,
            allowed=", ".join(instance) if isinstance(instance, dict) else "a field of instances that are objects",
        )
    return _text(instance[key])


def _row(line: bytes) -> dict[str, Any]:
    """Return a line of the output: an object, or ('message', count)."""
    try:
        row = json.loads(line)
    except ValueError:
        try:
            message, count = ast.literal_eval(line.decode(errors="replace").strip())
        except (ValueError, SyntaxError, TypeError):
            return {"error": line.decode(errors="replace").strip()}
        return {"error": message, "count": count}
    if not isinstance(row, dict):
        return {"error": str(row)}
    return {**row, "key": _text(row["key"])} if "key" in row else row


def _text(key: Any) -> Any:
    """Return a key as text: the service may write 1 as 1.0 or "1"."""
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    return key if isinstance(key, str) else json.dumps(key)


def _digest(identity: Any) -> bytes:
    return hashlib.blake2b(json.dumps(_canonical(identity), sort_keys=True).encode(), digest_size=16).digest()


def _canonical(value: Any) -> Any:
    """Return a JSON value with numbers as the service has them, which are floating-point."""
    if isinstance(value, dict):
        return {name: _canonical(element) for name, element in value.items()}
    if isinstance(value, list):
        return [_canonical(element) for element in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
