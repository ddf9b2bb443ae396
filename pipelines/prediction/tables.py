"""Rows of tables to predict on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from slipway.core.errors import UserError
from slipway.core.tables.formats import FORMATS, is_table, open_table
from slipway.pipelines.prediction.parts import Chunk, Part, fault

if TYPE_CHECKING:
    from slipway.core.manifest import SignatureName
    from slipway.core.tables.batch import Batch, Section, TableFile
    from slipway.serving.model import Model


@dataclass(frozen=True)
class Tables(Part):
    """Rows of a table whose columns are the model's inputs, or have the paths of images.

    The key is the path of the image, or the number of the line or row, or the value of a column.

    Attributes:
        section: Where its rows are; None for all of the file.
    """

    words = f"{' and '.join(row.title for row in FORMATS.values())} files"
    is_numbered: ClassVar[bool] = True
    section: Section | None = None

    @classmethod
    def accepts(cls, path: Path) -> bool:
        return path.is_file() and is_table(path)

    def divided(self, size: int) -> Iterator[Part]:
        """Yield the parts of the file, which is read once to find where they begin."""
        for section in self._table().divided(size):
            yield replace(self, examples=section.rows, section=section)

    def _table(self) -> TableFile:
        status = self.path.stat()
        return _opened(self.path, status.st_size, status.st_mtime_ns)

    def read(self, model: Model, size: int, key: str | None = None) -> Iterator[Chunk]:
        from slipway.core.tables.batch import regrouped
        from slipway.serving.tables import columns_of

        table = self._table()
        if key is not None and key not in table.names:
            raise UserError.unknown("column", key, table.names, setting="--key")
        columns = columns_of(table.names, model, table.header, "INPUT", str(self.path), key)
        rows = _Rows(self, model, columns, table.names.index(key) if key is not None else None, table.item)
        has_one_shape = all(None not in feature.shape for feature in model.inputs.values())
        for batch in regrouped(table.batches(self.section), size):
            step = len(batch) if has_one_shape else size
            for start in range(0, len(batch), step):
                yield from rows.chunks(batch.part(start, min(start + step, len(batch))), size)


@dataclass(frozen=True)
class _Rows:
    """How rows become examples: the columns of the model's inputs, and that of the key."""

    part: Part
    model: Model
    columns: dict[SignatureName, int]
    key: int | None
    item: str

    def chunks(self, batch: Batch, size: int) -> Iterator[Chunk]:
        from slipway.serving import tables
        from slipway.serving.kinds import BadRequest

        columns = {name: batch.columns[at] for name, at in self.columns.items()}
        try:
            arrays, faults = tables.arrays(self.model, columns, len(batch), batch.faults, self._file)
        except BadRequest as error:  # lists of different lengths, each of which the model accepts
            raise UserError(str(error), setting="--batch-size", value=size, fix="--batch-size 1") from None
        keys, offset = self._keys(batch), 0
        for start in range(0, len(batch), size):
            stop = min(start + size, len(batch))
            chunk_faults = {
                index - start: fault(self.model, faults[index].field, faults[index].problem)
                for index in (sorted(faults) if faults else ())
                if start <= index < stop
            }
            sound = stop - start - len(chunk_faults)
            yield Chunk(
                keys[start:stop], {name: array[offset : offset + sound] for name, array in arrays.items()}, chunk_faults
            )
            offset += sound

    def _keys(self, batch: Batch) -> list[str]:
        image = next((name for name, feature in self.model.inputs.items() if feature.is_image), None)
        column = self.key if self.key is not None else self.columns[image] if image is not None else None
        if column is None:
            return [f"{self.part.name}{self.item} {line}" for line in batch.lines]
        keys: list[str] = batch.columns[column].to_pylist()
        for index in batch.faults:
            keys[index] = f"{self.part.name}{self.item} {batch.lines[index]}"
        return keys

    def _file(self, path: str) -> bytes:
        return (self.part.path.parent / path).read_bytes()


@functools.lru_cache(maxsize=1)
def _opened(path: Path, _size: int, _time: int) -> TableFile:
    """Return a file's table, which stays open for its next part: what lies between in a Parquet file is read once."""

    def mistake(message: str, **more: Any) -> UserError:
        allowed = f"{' or '.join(row.title for row in FORMATS.values())} files"
        return UserError(message, setting="INPUT", value=str(path), **{"allowed": allowed, **more})

    try:
        return open_table(path.open("rb"), path, path.suffix.lower(), mistake, keep_faults=True)
    except OSError as error:
        raise mistake(f"{path} cannot be read: {error.strerror}.") from None
