"""What predictions are made on: `FORMATS`, from which `slipway predict` and `slipway batch` read, and their help.

Since the help names the formats, libraries are imported only where examples are read.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from slipway.core.errors import UserError, nearest
from slipway.pipelines.prediction.parts import Chunk, Fault, Part, chunk_of, fault, groups

if TYPE_CHECKING:
    from slipway.core.manifest import Shard
    from slipway.serving.model import Model

STANDARD_INPUT = "-"
EVERY_SPLIT = "all"
BYTE_ORDER_MARK = "\ufeff"
READERS = 4


def listed(inputs: Sequence[str], split: str) -> list[Part]:
    """Return all inputs as parts that are as large as possible, images first.

    Raises:
        UserError: An input does not exist, is empty, or has no such split.
    """
    found: list[Part] = []
    for given in inputs:
        path = Path(given).expanduser()
        if given == STANDARD_INPUT and sys.stdin is None:
            raise unreadable(given, "is closed")
        if given != STANDARD_INPUT and not path.exists():
            raise unreadable(given, "does not exist")
        known = next((known for known in FORMATS if known.accepts(path)), None)
        if known is None:
            raise unreadable(given, "is neither a file nor a folder")
        found.append(known.of(given, split))
    if sum(isinstance(part, Lines) for part in found) > 1:
        found = [replace(part, name=f"{part.paths[0]} ") if isinstance(part, Lines) else part for part in found]
    images = tuple(path for part in found if isinstance(part, Images) for path in part.paths)
    others = [part for part in found if not isinstance(part, Images)]
    return [Images(images, len(images)), *others] if images else others


def unreadable(given: str, what: str) -> UserError:
    """Return the error for an input that nothing can be predicted on."""
    return UserError(f"The input {given} {what}.", setting="INPUT", value=given, allowed=WORDS)


class Images(Part):
    """Image files."""

    words = "images, folders of images"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        return path.is_file() or path.is_dir()

    @classmethod
    def of(cls, given: str, split: str) -> Part:  # noqa: ARG003
        from slipway.components.prepare_data.sources.images import ENDINGS

        path = Path(given).expanduser()
        paths = tuple(map(str, _images_in(path))) if path.is_dir() else (str(path),)
        if not paths:
            raise unreadable(given, f"has no images ({b', '.join(sorted(ENDINGS)).decode()})")
        return cls(paths, len(paths))

    def divided(self, size: int) -> Iterator[Part]:
        for paths in groups(self.paths, size):
            yield Images(tuple(paths), len(paths))

    def read(self, model: Model, size: int, key: str | None = None) -> Iterator[Chunk]:  # noqa: ARG002
        from slipway.serving.instances import of_image

        if not model.is_custom and [each.kind for each in model.inputs.values()] != ["image"]:
            raise UserError(
                f"The model in {model.folder} predicts from {', '.join(model.inputs)}, not from image files alone.",
                setting="INPUT",
                allowed="a CSV file with these columns, JSON lines, or a prepared data set",
                fix="slipway predict MODEL FILE.csv",
            )

        def content(path: str) -> Any:
            try:
                if not Path(path).is_file():
                    return Fault("The file cannot be read: it does not exist, or is a device or a FIFO")
                data = Path(path).read_bytes()
            except OSError as error:
                return Fault(f"The file cannot be read: {error.strerror}")
            return of_image(data) if model.is_custom else data

        with ThreadPoolExecutor(READERS) as pool:
            for paths in groups(self.paths, size):
                yield chunk_of(model, list(zip(paths, pool.map(content, paths), strict=True)))


def _images_in(folder: Path) -> Iterator[Path]:
    """Yield the images in a folder and below, also of formats that no model reads, in order, without hidden files."""
    from slipway.components.prepare_data.sources.images import is_image

    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _images_in(Path(entry.path))
        elif is_image(os.fsencode(entry.name)):
            yield Path(entry.path)


class Lines(Part):
    """A file with one example after another."""

    def divided(self, size: int) -> Iterator[Part]:
        """Yield the parts of the file, which is read once to find where they begin."""
        position = lines = 0

        def each_line(file: IO[str]) -> Iterator[str]:
            nonlocal position, lines
            for line in file:
                position += len(line.encode(errors="surrogateescape"))
                lines += 1
                yield line.removeprefix(BYTE_ORDER_MARK) if lines == 1 else line

        with self.path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            examples = self.numbered(each_line(file))
            while True:
                begin, before = position, lines
                if not (count := sum(1 for _ in islice(examples, size))):
                    return
                yield replace(self, examples=count, offset=begin, line=before)

    def read(self, model: Model, size: int, key: str | None = None) -> Iterator[Chunk]:
        instance = self.reader(model, key)
        with self.open() as file:
            for group in groups(islice(self.numbered(file), self.examples), size):
                yield chunk_of(model, [instance(number, example) for number, example in group])

    def open(self) -> IO[str]:
        """Open the file, or stdin, at the first example. What is not UTF-8 is kept, for the checks to refuse."""
        if self.paths[0] == STANDARD_INPUT:
            file: IO[bytes] = sys.stdin.buffer
        else:
            file = self.path.open("rb")
            file.seek(self.offset)
        # Only the file's start may have a byte order mark.
        return io.TextIOWrapper(file, "utf-8" if self.offset else "utf-8-sig", errors="surrogateescape", newline="")

    def numbered(self, text: Iterable[str]) -> Iterator[tuple[int, Any]]:
        """Yield the examples in text, each with the number of its last line."""
        raise NotImplementedError

    def reader(self, model: Model, key: str | None) -> Callable[[int, Any], tuple[str, Any]]:
        """Return a function that returns the key and the instance, or the fault, of an example from `numbered`."""
        raise NotImplementedError


class Instances(Lines):
    """Lines of JSON; the key is the line's number, or the value of a field."""

    words = "JSONL files of instances (- for stdin)"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        return str(path) == STANDARD_INPUT or (path.is_file() and path.suffix.lower() == ".jsonl")

    def numbered(self, text: Iterable[str]) -> Iterator[tuple[int, Any]]:
        return ((number, line) for number, line in enumerate(text, self.line + 1) if line.strip())

    def reader(self, model: Model, key: str | None) -> Callable[[int, Any], tuple[str, Any]]:  # noqa: ARG002
        from slipway.serving.instances import BadRequest, parse

        def instance(number: int, line: str) -> tuple[str, Any]:
            name = f"{self.name}line {number}"
            try:
                found = parse(line.encode(errors="surrogateescape"), "The line")
            except BadRequest as error:
                return name, Fault(error.problem)
            if key is None:
                return name, found
            if not isinstance(found, dict) or key not in found:
                return name, Fault(f"The instance has no field {key}, the key")
            own = found.pop(key)
            return own if isinstance(own, str) else json.dumps(own), found

        return instance


class Rows(Lines):
    """Rows of a CSV file whose columns are the model's inputs, or have the paths of images.

    The key is the path of the image, or the line's number, or the value of a column.
    """

    words = "CSV files"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        return path.is_file() and path.suffix.lower() == ".csv"

    def numbered(self, text: Iterable[str]) -> Iterator[tuple[int, Any]]:
        rows = self.rows(text)
        if not self.offset:
            next(rows, None)
        return ((line, row) for line, row in rows if row)

    def rows(self, text: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows, also the header and empty ones. Raises UserError if the file cannot be parsed."""
        found = csv.reader(text)
        try:
            for row in found:
                yield self.line + found.line_num, row
        except csv.Error as error:
            line = self.line + found.line_num
            raise unreadable(str(self.path), f"is not a valid CSV file: line {line}: {error}") from None

    def reader(self, model: Model, key: str | None) -> Callable[[int, Any], tuple[str, Any]]:
        from slipway.serving.kinds import KINDS, of_cell

        whole = replace(self, offset=0, line=0)
        with whole.open() as file:
            header = [name.strip() for _, row in islice(whole.rows(file), 1) for name in row]
        if key is not None and key not in header:
            raise UserError.unknown("column", key, header, setting="--key")
        columns = {} if model.is_custom else _columns(header, model, self.path)

        def instance(line: int, row: list[str]) -> tuple[str, Any]:
            name = f"{self.name}line {line}"
            if len(row) != len(header):
                return name, Fault(f"The line has {len(row)} columns; line 1 has {len(header)}")
            if key is not None:
                name = row[header.index(key)]
            if model.is_custom:
                return name, {column: value for column, value in zip(header, row, strict=True) if column != key}
            values: dict[str, Any] = {}
            for column, position in columns.items():
                each, text = model.inputs[column], row[position].strip()
                try:
                    if KINDS[each.kind].media_types:
                        name = text if key is None else name
                        values[column] = (self.path.parent / text).read_bytes()
                    else:
                        values[column] = of_cell(each, text)
                except OSError as error:
                    return name, fault(model, column, f"The file cannot be read: {error.strerror}")
                except ValueError:
                    return name, fault(model, column, f"{text!r:.80} is not a number")
            return name, values

        return instance


def _columns(header: list[str], model: Model, path: Path) -> dict[str, int]:
    """Return the position of each input's column."""
    from slipway.core.manifest import signature_name
    from slipway.serving.kinds import KINDS

    stored = {name: position for position, name in enumerate(header)}
    served = {signature_name(name, one): name for name, one in model.stored_inputs.items()}
    found = {}
    for name, each in model.inputs.items():
        own = served.get(name, name)
        others = KINDS[each.kind].columns if own == each.kind else ()
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


class Records(Part):
    """Shards of a prepared data set."""

    words = "prepared data sets"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        from slipway.core.manifest import FILE_NAME

        return (path / FILE_NAME).is_file()

    @classmethod
    def of(cls, given: str, split: str) -> Part:
        folder = Path(given).expanduser()
        shards = _shards(folder, split)
        return cls(tuple(str(folder / shard.file) for shard in shards), sum(shard.examples for shard in shards))

    def divided(self, size: int) -> Iterator[Part]:  # noqa: ARG002
        counts = {shard.file: shard.examples for shard in _shards(self.path.parent)}
        for path in self.paths:
            yield Records((path,), counts[Path(path).name])

    def read(self, model: Model, size: int, key: str | None = None) -> Iterator[Chunk]:  # noqa: ARG002
        """Yield the records as the evaluation does."""
        from slipway.components.evaluate.evaluate import batches
        from slipway.core import manifest as manifests
        from slipway.serving.model import import_tensorflow

        folder = self.path.parent
        description = manifests.read(folder)
        given = {manifests.signature_name(name, each) for name, each in description.all_inputs.items()}
        if missing := [name for name in model.inputs if name not in given]:
            raise UserError(
                f"The data set in {folder} has no input {missing[0]}, which the model in {model.folder} needs.",
                setting="INPUT",
                value=str(folder),
                allowed=f"a data set with the inputs {', '.join(model.inputs)}; it has {', '.join(sorted(given))}",
            )
        names = {Path(path).name for path in self.paths}
        shards = [shard for shard in _shards(folder) if shard.file in names]
        manifests.verify(folder, shards)
        import_tensorflow()
        for batch in batches([folder / shard.file for shard in shards], description, size):
            yield Chunk([each.decode(errors="replace") for each in batch.keys], batch.features, {})


def _shards(folder: Path, split: str = EVERY_SPLIT) -> list[Shard]:
    from slipway.core import manifest as manifests

    splits = manifests.read(folder).splits
    if split != EVERY_SPLIT and split not in splits:
        raise UserError.unknown("split", split, [*splits, EVERY_SPLIT], setting="--split")
    return [shard for name, part in splits.items() if split in (name, EVERY_SPLIT) for shard in part.shards]


# An input has the first of these formats that accepts it; the last one is first in help and errors.
FORMATS: tuple[type[Part], ...] = (Rows, Instances, Records, Images)
WORDS = ", ".join(known.words for known in reversed(FORMATS))
