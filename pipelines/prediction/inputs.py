"""What predictions are made on: `FORMATS`, from which `slipway predict` and `slipway batch` read, and their help.

Since the help names the formats, libraries are imported only where examples are read.
"""

from __future__ import annotations

import codecs
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeAlias

from slipway import extensions
from slipway.core.errors import UserError
from slipway.core.tables.formats import FORMATS as TABLES
from slipway.core.tables.lines import Lines
from slipway.pipelines.prediction.parts import Chunk, Fault, Part, chunk_of, groups
from slipway.pipelines.prediction.tables import Tables
from slipway.pipelines.runs import copies
from slipway.pipelines.terminal import say

if TYPE_CHECKING:
    from slipway.core.manifest import Shard
    from slipway.serving.model import Model

# Copies an input from a service; returns the file. Receives its name and what says something to the user.
Fetch: TypeAlias = "Callable[[str, Callable[[str], None]], Path]"
STANDARD_INPUT = "-"
EVERY_SPLIT = "all"
BYTE_ORDER_MARK = codecs.BOM_UTF8
READERS = 4
MAX_UNUSED_NAMED = 3


def listed(inputs: Sequence[str], split: str) -> list[Part]:
    """Return all inputs as parts that are as large as possible, images first.

    Raises:
        UserError: An input does not exist, is empty, has files of several formats, or has no such split.
    """
    parts: list[Part] = []
    for source in inputs:
        fetch: Fetch | None = extensions.by_prefix("inputs", source)
        if fetch is not None:
            source = str(fetch(source, say))
        if copies.is_remote(source):
            source = str(copies.local(source, say))
        path = Path(source).expanduser()
        if source == STANDARD_INPUT and sys.stdin is None:
            raise unreadable(source, "is closed")
        if source != STANDARD_INPUT and not path.exists():
            raise unreadable(source, "does not exist")
        known = next((known for known in FORMATS if known.accepts(path)), None)
        if known is not None:
            parts.append(known.of(source, split))
        elif path.is_dir():
            parts += _in_folder(path)
        else:
            raise unreadable(source, "is neither a file nor a folder")
    if sum(part.is_numbered for part in parts) > 1:
        parts = [replace(part, name=f"{part.paths[0]} ") if part.is_numbered else part for part in parts]
    images = tuple(path for part in parts if isinstance(part, Images) for path in part.paths)
    rest = [part for part in parts if not isinstance(part, Images)]
    return [Images(images, len(images)), *rest] if images else rest


def _in_folder(folder: Path) -> list[Part]:
    """Return the files of a folder, and of the folders in it, which must have one format."""
    from slipway.components.prepare_data.sources.images import ENDINGS

    files: dict[str, list[str]] = {}
    unused = []
    for path in _files_in(folder):
        if words := _format_of(path):
            files.setdefault(words, []).append(str(path))
        else:
            unused.append(path.name)
    if not files:
        endings = ", ".join((*sorted(ending.decode() for ending in ENDINGS), *(ending for ending, _ in FILES.values())))
        raise unreadable(str(folder), f"has no files to predict on ({endings})")
    if len(files) > 1:
        counts = [f"{len(paths):,} {words}, such as {paths[0]}" for words, paths in files.items()]
        raise unreadable(
            str(folder),
            f"has files of several formats: {'; '.join(counts)}",
            fix=f"name the files of one format, such as {shlex.quote(min(files.values(), key=len)[0])}",
        )
    ((words, paths),) = files.items()
    if unused:
        named = ", ".join(unused[:MAX_UNUSED_NAMED]) + (", …" if len(unused) > MAX_UNUSED_NAMED else "")
        say(f"{len(unused):,} of {len(unused) + len(paths):,} files in {folder} are not used, as not {words}: {named}")
    if words == IMAGES:
        return [Images(tuple(paths), len(paths))]
    if special := next((path for path in paths if not Path(path).is_file()), None):
        raise unreadable(special, "is not a file")
    _, part = FILES[words]
    return [part((path,), name=f"{path} ") for path in paths]


def _format_of(path: Path) -> str | None:
    """Return what a file is called, by its name or its content; None if nothing can be predicted on it."""
    from slipway.components.prepare_data.sources.images import has_image, is_image

    if is_image(os.fsencode(path.name)):
        return IMAGES
    known = next((words for words, (ending, _) in FILES.items() if path.name.lower().endswith(ending)), None)
    return known or (IMAGES if has_image(os.fsencode(path)) else None)


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, in order, without hidden ones."""
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_in(Path(entry.path))
        else:
            yield Path(entry.path)


def unreadable(source: str, problem: str, fix: str | None = None) -> UserError:
    """Return the error for an input that nothing can be predicted on."""
    return UserError(f"The input {source} {problem}.", setting="INPUT", value=source, allowed=WORDS, fix=fix)


class Images(Part):
    """Image files."""

    words = "images"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        return path.is_file()

    @classmethod
    def of(cls, source: str, split: str) -> Part:  # noqa: ARG003
        return cls((str(Path(source).expanduser()),), 1)

    def divided(self, size: int) -> Iterator[Part]:
        for paths in groups(self.paths, size):
            yield Images(tuple(paths), len(paths))

    def read(self, model: Model, size: int, key: str | None = None) -> Iterator[Chunk]:  # noqa: ARG002
        from slipway.serving.instances import of_image

        if not model.is_custom and [feature.kind for feature in model.inputs.values()] != ["image"]:
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


@dataclass(frozen=True)
class Instances(Part):
    """Lines of JSON; the key is the line's number, or the value of a field.

    Attributes:
        offset: The byte of the file at which the first example begins.
        line: Number of lines before it.
    """

    words = "JSONL files of instances (- for stdin)"
    is_numbered: ClassVar[bool] = True
    offset: int = 0
    line: int = 0

    @classmethod
    def accepts(cls, path: Path) -> bool:
        return str(path) == STANDARD_INPUT or (path.is_file() and path.suffix.lower() == ".jsonl")

    def divided(self, size: int) -> Iterator[Part]:
        """Yield the parts of the file, which is read once to find where they begin."""
        position = lines = 0

        def each_line(file: IO[bytes]) -> Iterator[bytes]:
            nonlocal position, lines
            for line in self._lines(file):
                position += len(line)
                lines += 1
                yield line

        with self.path.open("rb") as file:
            examples = self._numbered(each_line(file))
            while True:
                begin, before = position, lines
                if not (count := sum(1 for _ in islice(examples, size))):
                    return
                yield replace(self, examples=count, offset=begin, line=before)

    def read(self, model: Model, size: int, key: str | None = None) -> Iterator[Chunk]:
        from slipway.serving.tables import of_lines

        with self._opened() as file:
            for group in groups(islice(self._numbered(self._lines(file)), self.examples), size):
                parsed = of_lines(model, [line for _, line in group], key)
                if parsed is None:
                    yield chunk_of(model, [self._instance(number, line, key) for number, line in group])
                else:
                    arrays, keys = parsed
                    yield Chunk(keys or [f"{self.name}line {number}" for number, _ in group], arrays, {})

    def _opened(self) -> AbstractContextManager[IO[bytes]]:
        """Open the file, or stdin, at the first example."""
        if self.paths[0] == STANDARD_INPUT:
            return nullcontext(sys.stdin.buffer)
        file = self.path.open("rb")
        file.seek(self.offset)
        return file

    def _lines(self, file: IO[bytes]) -> Lines:
        def mistake(message: str, fix: str | None = None) -> UserError:
            return UserError(message, setting="INPUT", value=str(self.paths[0]), allowed=WORDS, fix=fix)

        return Lines(file, self.paths[0], mistake)

    def _numbered(self, lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not empty, with their numbers."""
        for number, line in enumerate(lines, self.line + 1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if text.strip():
                yield number, text

    def _instance(self, number: int, line: bytes, key: str | None) -> tuple[str, Any]:
        from slipway.serving.instances import parse
        from slipway.serving.kinds import BadRequest

        name = f"{self.name}line {number}"
        try:
            instance = parse(line, "The line")
        except BadRequest as error:
            return name, Fault(error.problem)
        if key is None:
            return name, instance
        if not isinstance(instance, dict) or key not in instance:
            return name, Fault(f"The instance has no field {key}, the key")
        key_value = instance.pop(key)
        return key_value if isinstance(key_value, str) else json.dumps(key_value), instance


class Records(Part):
    """Shards of a prepared data set."""

    words = "prepared data sets"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        from slipway.core.manifest import FILE_NAME

        return (path / FILE_NAME).is_file()

    @classmethod
    def of(cls, source: str, split: str) -> Part:
        folder = Path(source).expanduser()
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
        matched = model.matched(description.signature)
        if missing := [model.source(name) for name in model.inputs if name not in matched]:
            raise UserError(
                f"The data set in {folder} has no input {missing[0]}, which the model in {model.folder} needs.",
                setting="INPUT",
                value=str(folder),
                allowed=f"a data set with the inputs {', '.join(model.sources)}; "
                f"it has {', '.join(sorted(description.signature))}",
            )
        names = {Path(path).name for path in self.paths}
        shards = [shard for shard in _shards(folder) if shard.file in names]
        manifests.verify(folder, shards)
        import_tensorflow()
        for batch in batches([folder / shard.file for shard in shards], description, size):
            features = {name: batch.features[stored] for name, stored in matched.items()}
            yield Chunk([record_key.decode(errors="replace") for record_key in batch.keys], features, {})


def _shards(folder: Path, split: str = EVERY_SPLIT) -> list[Shard]:
    from slipway.core import manifest as manifests

    splits = manifests.read(folder).splits
    if split != EVERY_SPLIT and split not in splits:
        raise UserError.unknown("split", split, [*splits, EVERY_SPLIT], setting="--split")
    return [shard for name, part in splits.items() if split in (name, EVERY_SPLIT) for shard in part.shards]


# An input has the first of these formats that accepts it; the last one is first in help and errors.
FORMATS: tuple[type[Part], ...] = (Tables, Instances, Records, Images)
WORDS = (
    f"{', '.join(known.words for known in reversed(FORMATS))}, folders of such files, also of a bucket (gs://BUCKET)"
)
# What the files of a folder are called, with the ending of their names and their format; besides images.
IMAGES = "images"
FILES: dict[str, tuple[str, type[Part]]] = {
    **{f"{row.title} files": (ending, Tables) for ending, row in TABLES.items()},
    "JSONL files": (".jsonl", Instances),
}
