"""Reading of examples: image files, rows of a CSV file, lines of JSON, and records of a prepared data set.

A source yields chunks of as many examples as one prediction has. An example that cannot be read has a fault instead of
values, so that it gets a line in the output, too.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from slipway.core import manifest as manifests
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import Manifest, signature_name
from slipway.pipelines.prediction import parts
from slipway.pipelines.prediction.parts import STANDARD_INPUT, Part
from slipway.serving import instances
from slipway.serving.instances import BadRequest
from slipway.serving.model import Arrays, Model

# Columns of a CSV file with the path of an image, besides the input's own name.
IMAGE_COLUMNS = ("image", "path", "file")
READERS = 4

Item = TypeVar("Item")


@dataclass(frozen=True)
class Chunk:
    """Examples by key. `arrays` are the values of those without a fault; `faults` have the others' by index."""

    keys: list[str]
    arrays: Arrays
    faults: Mapping[int, str]

    @property
    def sound(self) -> list[int]:
        """The indices of the examples in `arrays`."""
        return [index for index in range(len(self.keys)) if index not in self.faults]


@dataclass(frozen=True)
class Source:
    """Something to predict on; `examples` is their number if known."""

    chunks: Iterator[Chunk]
    examples: int | None


def open_all(inputs: Sequence[str], model: Model, size: int, split: str) -> Source:
    """Return all inputs as one source of chunks of `size` examples.

    Raises:
        UserError: One does not exist, or does not have what the model needs.
    """
    found = parts.listed(inputs, split)
    counts = [part.examples for part in found]
    total = None if None in counts else sum(count or 0 for count in counts)
    return Source((chunk for part in found for chunk in read(part, model, size)), total)


def read(part: Part, model: Model, size: int, *, key: str | None = None) -> Iterator[Chunk]:
    """Return the examples of a part in chunks of `size`.

    Args:
        part: Where they are.
        model: The model that predicts on them.
        size: Number of examples in a chunk.
        key: The field of instances, or column of rows, with an example's key; it is not an input of the model.

    Raises:
        UserError: They do not have what the model needs.
    """
    match part.kind:
        case "images":
            return _files(part, model, size)
        case "instances":
            return _json_lines(part, model, size, key)
        case "rows":
            return _csv(part, model, size, key)
        case "records":
            return _records(part, model, size)


def _image_input(model: Model) -> str:
    """Return the name of the model's only input, an image.

    Raises:
        UserError: It has other inputs.
    """
    (name, one), *others = model.inputs.items()
    if others or one.kind != "image":
        raise UserError(
            f"The model in {model.folder} predicts from {', '.join(model.inputs)}, not from image files alone.",
            setting="INPUT",
            allowed="a CSV file with these columns, JSON lines, or a prepared data set",
            fix="slipway predict MODEL FILE.csv",
        )
    return name


def _files(part: Part, model: Model, size: int) -> Iterator[Chunk]:
    name = None if model.is_custom else _image_input(model)

    def content(path: str) -> Any:
        try:
            if not Path(path).is_file():
                return BadRequest("The file cannot be read: it does not exist, or is a device or a FIFO")
            data = Path(path).read_bytes()
        except OSError as error:
            return BadRequest(f"The file cannot be read: {error.strerror}")
        return instances.of_image(data) if name is None else {name: data}

    with ThreadPoolExecutor(READERS) as pool:
        for paths in _chunks(part.paths, size):
            yield _chunk(model, list(zip(paths, pool.map(content, paths), strict=True)))


def _chunk(model: Model, examples: list[tuple[str, Any]]) -> Chunk:
    """Return examples, each a key and an instance or the reason why there is none, as a chunk."""
    keys, rows, faults = [], [], {}
    for index, (key, instance) in enumerate(examples):
        keys.append(key)
        try:
            if isinstance(instance, BadRequest):
                raise instance
            rows.append(instance if model.is_custom else instances.row(model, instance))
        except BadRequest as error:
            faults[index] = (
                f"{error.field}: {error.problem}" if error.field and len(model.inputs) > 1 else error.problem
            )
    try:
        arrays = instances.arrays(model, rows) if model.is_custom else instances.stack(model, rows)
    except BadRequest as error:  # lists of different lengths, each of which the model accepts
        raise UserError(
            f"{error.field}: {error.problem}.", setting="--batch-size", value=len(rows), fix="--batch-size 1"
        ) from None
    return Chunk(keys, arrays, faults)


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def _text(part: Part) -> IO[str]:
    """Open the file of a part, or stdin, at its first example. What is not UTF-8 is kept, for the checks to refuse."""
    if part.paths[0] == STANDARD_INPUT:
        file: IO[bytes] = sys.stdin.buffer
    else:
        file = part.path.open("rb")
        file.seek(part.offset)
    # Only the file's start may have a byte order mark.
    return io.TextIOWrapper(file, "utf-8" if part.offset else "utf-8-sig", errors="surrogateescape", newline="")


def _json_lines(part: Part, model: Model, size: int, field: str | None) -> Iterator[Chunk]:
    """Yield the instances in lines of JSON; the key is the line's number, or the value of a field."""

    def example(number: int, line: str) -> tuple[str, Any]:
        key = f"{part.name}line {number}"
        try:
            instance = instances.parse(line.encode(errors="surrogateescape"), "The line")
        except BadRequest as error:
            return key, error
        if field is None:
            return key, instance
        if not isinstance(instance, dict) or field not in instance:
            return key, BadRequest(f"The instance has no field {field}, the key")
        own = instance.pop(field)
        return own if isinstance(own, str) else json.dumps(own), instance

    with _text(part) as file:
        lines = ((number, line) for number, line in enumerate(file, part.line + 1) if line.strip())
        for chunk in _chunks(islice(lines, part.examples), size):
            yield _chunk(model, [example(number, line) for number, line in chunk])


def _csv(part: Part, model: Model, size: int, key: str | None) -> Iterator[Chunk]:
    """Yield the rows of a CSV file whose columns are the model's inputs, or have the paths of images.

    The key is the path of the image, or the line's number, or the value of a column.
    """
    with _text(replace(part, offset=0)) as file:
        header = [name.strip() for _, row in islice(parts.rows(file, part.path), 1) for name in row]
    if key is not None and key not in header:
        raise UserError.unknown("column", key, header, setting="--key")
    columns = {} if model.is_custom else _columns(header, model, part.path)
    with _text(part) as file:
        found = parts.rows(file, part.path, part.line)
        if not part.offset:
            next(found, None)
        rows = ((line, row) for line, row in found if row)
        for chunk in _chunks(islice(rows, part.examples), size):
            yield _chunk(model, [_of_row(model, part, header, columns, key, line, row) for line, row in chunk])


def _columns(header: list[str], model: Model, path: Path) -> dict[str, int]:
    """Return the position of each input's column."""
    stored = {name: position for position, name in enumerate(header)}
    served = {signature_name(name, one): name for name, one in model.stored_inputs.items()}
    found = {}
    for name, each in model.inputs.items():
        own = served.get(name, name)
        others = IMAGE_COLUMNS if each.kind == "image" and own == "image" else ()
        column = next((column for column in (own, name, *others) if column in stored), None)
        if column is None:
            raise UserError(
                f"Line 1 of {path} has no column {' or '.join(dict.fromkeys((own, *others)))}, an input of the model.",
                setting="INPUT",
                value=str(path),
                allowed=f"columns {', '.join(served.get(each, each) for each in model.inputs)}",
                nearest=nearest(own, header),
                fix=f"rename the column {near} to {own}" if (near := nearest(own, header)) else None,
            )
        found[name] = stored[column]
    return found


def _of_row(
    model: Model, part: Part, header: list[str], columns: dict[str, int], key: str | None, line: int, row: list[str]
) -> tuple[str, Any]:
    name = f"{part.name}line {line}"
    if len(row) != len(header):
        return name, BadRequest(f"The line has {len(row)} columns; line 1 has {len(header)}")
    if key is not None:
        name = row[header.index(key)]
    if model.is_custom:
        return name, {column: value for column, value in zip(header, row, strict=True) if column != key}
    values: dict[str, Any] = {}
    for column, position in columns.items():
        each, text = model.inputs[column], row[position].strip()
        try:
            if each.kind == "image":
                name = text if key is None else name
                values[column] = (part.path.parent / text).read_bytes()
            else:
                values[column] = instances.of_cell(each, text)
        except OSError as error:
            return name, BadRequest(f"The file cannot be read: {error.strerror}", field=column)
        except ValueError:
            return name, BadRequest(f"{text!r:.80} is not a number", field=column)
    return name, values


def _records(part: Part, model: Model, size: int) -> Iterator[Chunk]:
    """Read the shards of a prepared data set as the evaluation does."""
    from slipway.components.evaluate.evaluation import batches
    from slipway.serving.model import import_tensorflow

    folder = part.path.parent
    description: Manifest = manifests.read(folder)
    given = {signature_name(name, each) for name, each in description.all_inputs.items()}
    if missing := [name for name in model.inputs if name not in given]:
        raise UserError(
            f"The data set in {folder} has no input {missing[0]}, which the model in {model.folder} needs.",
            setting="INPUT",
            value=str(folder),
            allowed=f"a data set with the inputs {', '.join(model.inputs)}; it has {', '.join(sorted(given))}",
        )
    paths = [Path(path).expanduser() for path in part.paths]
    names = {path.name for path in paths}
    every = (shard for split in description.splits.values() for shard in split.shards)
    manifests.verify(folder, (shard for shard in every if shard.file in names))
    import_tensorflow()
    for batch in batches(paths, description, size):
        yield Chunk([key.decode(errors="replace") for key in batch.keys], batch.features, {})
