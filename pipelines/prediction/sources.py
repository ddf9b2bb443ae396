"""What `slipway predict` reads: image files, folders of them, a CSV file, JSON lines, or a prepared data set.

A source yields chunks of as many examples as one prediction has. An example that cannot be read has a fault instead of
values, so that it gets a line in the output, too.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from slipway.core import manifest as manifests
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import Manifest, signature_name
from slipway.serving import instances
from slipway.serving.instances import BadRequest
from slipway.serving.model import Arrays, Model

ENDINGS = (".png", ".jpg", ".jpeg")
# Columns of a CSV file with the path of an image, besides the input's own name.
IMAGE_COLUMNS = ("image", "path", "file")
STANDARD_INPUT = "-"
READERS = 4
EVERY_SPLIT = "all"

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


def open_all(inputs: Sequence[str], model: Model, size: int, split: str, stdin: IO[str]) -> Source:
    """Return all inputs as one source of chunks of `size` examples.

    Raises:
        UserError: One does not exist, or does not have what the model needs.
    """
    files: list[Path] = []
    sources: list[Source] = []
    for given in inputs:
        path = Path(given).expanduser()
        if given != STANDARD_INPUT and not path.exists():
            raise _unreadable(given, "does not exist")
        if path.is_file() and path.suffix.lower() not in (".csv", ".jsonl"):
            files.append(path)
        elif path.is_dir() and not (path / manifests.FILE_NAME).is_file():
            found = list(_images_in(path))
            if not found:
                raise _unreadable(given, f"has no images ({', '.join(ENDINGS)})")
            files += found
        else:
            sources.append(_open(given, path, model, size, split, stdin))
    if files:
        sources.insert(0, _files(files, model, size))
    counts = [source.examples for source in sources]
    total = None if None in counts else sum(count or 0 for count in counts)
    return Source((chunk for source in sources for chunk in source.chunks), total)


def _open(given: str, path: Path, model: Model, size: int, split: str, stdin: IO[str]) -> Source:
    if given == STANDARD_INPUT:
        return Source(_json_lines(stdin, model, size), None)
    if path.is_dir():
        return _prepared_set(path, model, size, split)
    if path.suffix.lower() == ".csv":
        return Source(_csv(path, model, size), None)
    return Source(_json_lines(path.open(encoding="utf-8", errors="replace"), model, size), None)


def _unreadable(given: str, what: str) -> UserError:
    return UserError(
        f"The input {given} {what}.",
        setting="INPUT",
        value=given,
        allowed=f"images, folders of images, a CSV file, a JSONL file, a prepared data set, or {STANDARD_INPUT}",
    )


def _images_in(folder: Path) -> Iterator[Path]:
    """Yield the images in a folder and below, in order, without hidden files."""
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _images_in(Path(entry.path))
        elif entry.name.lower().endswith(ENDINGS):
            yield Path(entry.path)


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


def _files(paths: list[Path], model: Model, size: int) -> Source:
    name = None if model.is_custom else _image_input(model)

    def read(path: Path) -> Any:
        try:
            data = path.read_bytes()
        except OSError as error:
            return BadRequest(f"The file cannot be read: {error.strerror}")
        return instances.of_image(data) if name is None else {name: data}

    def chunks() -> Iterator[Chunk]:
        with ThreadPoolExecutor(READERS) as pool:
            for part in _parts(paths, size):
                keys = [str(path) for path in part]
                yield _chunk(model, list(zip(keys, pool.map(read, part), strict=True)))

    return Source(chunks(), len(paths))


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
    arrays = instances.arrays(model, rows) if model.is_custom else instances.stack(model, rows)
    return Chunk(keys, arrays, faults)


def _parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part


def _json_lines(file: IO[str], model: Model, size: int) -> Iterator[Chunk]:
    """Yield the instances in lines of JSON; the key is the line's number."""

    def instance(line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            return BadRequest(f"The line is not JSON: {error}")

    lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
    for part in _parts(lines, size):
        yield _chunk(model, [(f"line {number}", instance(line)) for number, line in part])


def _csv(path: Path, model: Model, size: int) -> Iterator[Chunk]:
    """Yield the rows of a CSV file whose columns are the model's inputs, or have the paths of images.

    The key is the path of the image, or the line's number.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        columns = {} if model.is_custom else _columns(header, model, path)
        rows = ((reader.line_num, row) for row in reader if row)
        for part in _parts(rows, size):
            yield _chunk(model, [_of_row(model, path, header, columns, line, row) for line, row in part])


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
    model: Model, path: Path, header: list[str], columns: dict[str, int], line: int, row: list[str]
) -> tuple[str, Any]:
    key = f"line {line}"
    if len(row) != len(header):
        return key, BadRequest(f"The line has {len(row)} columns; line 1 has {len(header)}")
    if model.is_custom:
        return key, dict(zip(header, row, strict=True))
    values: dict[str, Any] = {}
    for name, position in columns.items():
        each, text = model.inputs[name], row[position].strip()
        try:
            if each.kind == "image":
                key = text
                values[name] = (path.parent / text).read_bytes()
            elif each.shape:
                values[name] = [_cell(each.type_name, cell) for cell in text.replace(";", " ").split()]
            else:
                values[name] = _cell(each.type_name, text)
        except OSError as error:
            return key, BadRequest(f"The file cannot be read: {error.strerror}", field=name)
        except ValueError:
            return key, BadRequest(f"{text!r:.80} is not a number", field=name)
    return key, values


def _cell(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    return int(text) if kind.startswith("int") and "." not in text else float(text)


def _prepared_set(folder: Path, model: Model, size: int, split: str) -> Source:
    """Read a prepared data set as the evaluation does."""
    from slipway.components.evaluate.evaluation import batches
    from slipway.serving.model import import_tensorflow

    description: Manifest = manifests.read(folder)
    if split != EVERY_SPLIT and split not in description.splits:
        raise UserError.unknown("split", split, [*description.splits, EVERY_SPLIT], setting="--split")
    parts = description.splits if split == EVERY_SPLIT else {split: description.splits[split]}
    given = {signature_name(name, each) for name, each in description.all_inputs.items()}
    if missing := [name for name in model.inputs if name not in given]:
        raise UserError(
            f"The data set in {folder} has no input {missing[0]}, which the model in {model.folder} needs.",
            setting="INPUT",
            value=str(folder),
            allowed=f"a data set with the inputs {', '.join(model.inputs)}; it has {', '.join(sorted(given))}",
        )
    shards = [shard for part in parts.values() for shard in part.shards]
    manifests.verify(folder, shards)
    import_tensorflow()

    def chunks() -> Iterator[Chunk]:
        for batch in batches([folder / shard.file for shard in shards], description, size):
            yield Chunk([key.decode(errors="replace") for key in batch.keys], batch.features, {})

    return Source(chunks(), sum(part.examples for part in parts.values()))
