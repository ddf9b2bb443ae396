"""What predictions are made on: image files, folders of them, CSV and JSONL files, prepared data sets, and their parts.

A part says where examples are, without their values, so that another process can read them.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Literal

from slipway.components.prepare_data.sources.images import ENDINGS, is_image
from slipway.core import manifest as manifests
from slipway.core.errors import UserError

STANDARD_INPUT = "-"
EVERY_SPLIT = "all"
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Part:
    """Some examples of one kind.

    Attributes:
        kind: What `paths` are: images, one file of instances or rows, or the shards of a prepared data set.
        paths: Their paths, as they were given.
        examples: Number of examples; None if a file is read to its end.
        offset: The byte of the file at which the first example begins.
        line: Number of lines before it.
        name: What precedes the number of a line in a key.
    """

    kind: Literal["images", "instances", "rows", "records"]
    paths: tuple[str, ...]
    examples: int | None = None
    offset: int = 0
    line: int = 0
    name: str = ""

    @property
    def path(self) -> Path:
        """The file with its examples, or the first one."""
        return Path(self.paths[0]).expanduser()


def listed(inputs: Sequence[str], split: str) -> list[Part]:
    """Return all inputs as parts that are as large as possible, images first.

    Raises:
        UserError: An input does not exist, is empty, or has no such split.
    """
    images: list[str] = []
    found: list[Part] = []
    files = sum(_is_lines(given) for given in inputs)
    for given in inputs:
        path = Path(given).expanduser()
        if given == STANDARD_INPUT and sys.stdin is None:
            raise unreadable(given, "is closed")
        if given != STANDARD_INPUT and not path.exists():
            raise unreadable(given, "does not exist")
        if _is_lines(given):
            kind: Literal["rows", "instances"] = "rows" if path.suffix.lower() == ".csv" else "instances"
            found.append(Part(kind, (given,), name=f"{given} " if files > 1 else ""))
        elif path.is_file():
            images.append(str(path))
        elif not path.is_dir():
            raise unreadable(given, "is neither a file nor a folder")
        elif (path / manifests.FILE_NAME).is_file():
            found.append(_records(path, split))
        else:
            inside = [str(each) for each in _images_in(path)]
            if not inside:
                raise unreadable(given, f"has no images ({b', '.join(sorted(ENDINGS)).decode()})")
            images += inside
    return [*([Part("images", tuple(images), len(images))] if images else []), *found]


def divided(part: Part, size: int) -> Iterator[Part]:
    """Yield parts with up to `size` examples each; a shard is never divided.

    Raises:
        UserError: A CSV file cannot be parsed.
    """
    match part.kind:
        case "images":
            for start in range(0, len(part.paths), size):
                paths = part.paths[start : start + size]
                yield replace(part, paths=paths, examples=len(paths))
        case "records":
            counts = {shard.file: shard.examples for shard in _shards(part.path.parent)}
            for path in part.paths:
                yield replace(part, paths=(path,), examples=counts[Path(path).name])
        case _:
            yield from _of_lines(part, size)


def unreadable(given: str, what: str) -> UserError:
    """Return the error for an input that nothing can be predicted on."""
    return UserError(
        f"The input {given} {what}.",
        setting="INPUT",
        value=given,
        allowed=f"images, folders of images, a CSV file, a JSONL file, a prepared data set, or {STANDARD_INPUT}",
    )


def rows(text: Iterable[str], given: object, line: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, each with the number of its last line; `line` lines precede them.

    Raises:
        UserError: It cannot be parsed.
    """
    reader = csv.reader(text)
    try:
        for row in reader:
            yield line + reader.line_num, row
    except csv.Error as error:
        raise unreadable(str(given), f"is not a valid CSV file: line {line + reader.line_num}: {error}") from None


def _is_lines(given: str) -> bool:
    path = Path(given).expanduser()
    return given == STANDARD_INPUT or (path.is_file() and path.suffix.lower() in (".csv", ".jsonl"))


def _images_in(folder: Path) -> Iterator[Path]:
    """Yield the images in a folder and below, also of formats that no model reads, in order, without hidden files."""
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _images_in(Path(entry.path))
        elif is_image(os.fsencode(entry.name)):
            yield Path(entry.path)


def _shards(folder: Path, split: str = EVERY_SPLIT) -> list[manifests.Shard]:
    splits = manifests.read(folder).splits
    if split != EVERY_SPLIT and split not in splits:
        raise UserError.unknown("split", split, [*splits, EVERY_SPLIT], setting="--split")
    return [shard for name, part in splits.items() if split in (name, EVERY_SPLIT) for shard in part.shards]


def _records(folder: Path, split: str) -> Part:
    shards = _shards(folder, split)
    return Part("records", tuple(str(folder / shard.file) for shard in shards), sum(each.examples for each in shards))


def _of_lines(part: Part, size: int) -> Iterator[Part]:
    """Yield the parts of a file, which is read once to find where they begin."""
    position = lines = 0

    def each_line(file: IO[str]) -> Iterator[str]:
        nonlocal position, lines
        for line in file:
            position += len(line.encode(errors="surrogateescape"))
            lines += 1
            yield line.removeprefix(BYTE_ORDER_MARK) if lines == 1 else line

    with part.path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        text = each_line(file)
        if part.kind == "rows":
            found = rows(text, part.path)
            next(found, None)
            examples = (True for _, row in found if row)
        else:
            examples = (True for line in text if line.strip())
        while True:
            begin, before = position, lines
            if not (count := sum(islice(examples, size))):
                return
            yield replace(part, examples=count, offset=begin, line=before)
