"""Conversion of a data set's files to what the sources of tables and images read.

Tables become one Parquet file, with a column `split` if there is another split than train; numbers of classes become
their names, and images in columns become files beside it. Images in folders become links in `split/class/`.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.components.prepare_data.huggingface.layout import METADATA
from slipway.components.prepare_data.sources.images import FIRST_BYTES
from slipway.components.prepare_data.sources.tables.header import IMAGE_COLUMNS
from slipway.core import events, images
from slipway.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow

Mistake = Callable[..., UserError]

TABLE = "table.parquet"
IMAGES = "images"
# The link to the downloaded files.
FILES = "files"
SPLIT = "split"
# In a list of images, the column with the path of each, relative to the list.
FILE_NAME = "file_name"
BATCH_ROWS = 256
# Where `datasets` describes the columns in the metadata of Parquet files.
METADATA_KEY = b"huggingface"


class Converter:
    """Writes the table of a data set, and the images in its columns.

    Args:
        folder: Where it is written; `FILES` in it are the downloaded files.
        features: The descriptions of the columns in the metadata of README.md.
        mistake: Returns the error of the data set with a message.

    Attributes:
        image_columns: The columns that were images.
        label_columns: The columns that were numbers of classes.
        dropped: The columns without a text, and why each is not read.
    """

    def __init__(self, folder: Path, features: Mapping[str, object], mistake: Mistake) -> None:
        self.image_columns: dict[str, None] = {}
        self.label_columns: dict[str, None] = {}
        self.dropped: dict[str, str] = {}
        self._folder = folder
        self._features = features
        self._mistake = mistake
        self._counts: dict[str, int] = {}
        self._has_splits = True

    def write(self, tables: Mapping[str, Sequence[str]]) -> None:
        """Write the table of the files of each split; the split is a column if there is another one than train.

        Raises:
            UserError: A file cannot be read, or has other columns than the first one.
        """
        import pyarrow
        import pyarrow.parquet

        self._has_splits = {*tables} != {"train"}
        done, total = 0, sum(map(len, tables.values()))
        writer, schema = None, None
        try:
            for split, path in ((split, path) for split, paths in tables.items() for path in paths):
                events.progress(done, total, "files")
                try:
                    for batch in _batches(self._folder / FILES / path):
                        table = self._converted(batch, split, path)
                        if writer is None or schema is None:
                            schema = _without_nulls(table.schema)
                            writer = pyarrow.parquet.ParquetWriter(self._folder / TABLE, schema)
                        writer.write_table(table.select(schema.names).cast(schema))
                except (pyarrow.ArrowException, ValueError, KeyError) as error:
                    raise self._unreadable(path, error) from None
                done += 1
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise self._mistake("The files of the data set have no rows.")

    def _unreadable(self, path: str, error: Exception) -> UserError:
        reason = str(error).splitlines()[0].rstrip(".")[:300]
        return self._mistake(
            f"The file {path} of the data set cannot be read with those before it: {reason}.",
            fix="--set 'data.huggingface.splits={train: train}', or a configuration: hf:ORG/NAME/CONFIG",
        )

    def _converted(self, batch: pyarrow.Table, split: str, path: str) -> pyarrow.Table:
        """Return rows with names of classes, paths of images, and the split."""
        import pyarrow

        described = {**self._features, **_described(batch.schema)}
        count, start = batch.num_rows, self._counts.get(split, 0)
        columns: dict[str, Any] = {}
        for name, column in zip(batch.column_names, batch.columns, strict=True):
            names, column = _names_of_classes(described.get(name)), column.combine_chunks()
            if name == FILE_NAME and pyarrow.types.is_string(column.type) and METADATA.fullmatch(path):
                self.image_columns[name] = None
                parent = posixpath.dirname(f"{FILES}/{path}")
                columns[name] = pyarrow.array([_inside(parent, text or "") for text in column.to_pylist()])
            elif names and (labeled := _with_names(column, names)) is not None:
                self.label_columns[name] = None
                columns[name] = labeled
            elif (encoded := _encoded_images(column)) is not None:
                self.image_columns[name] = None
                columns[name] = pyarrow.array([*self._stored(encoded, name, split, start)])
            elif name in IMAGE_COLUMNS and pyarrow.types.is_string(column.type):
                self.dropped[name] = "has texts, which would name files of this machine"
            elif problem := _problem(column.type) or (
                "is the name of the split" if name == SPLIT and self._has_splits else ""
            ):
                self.dropped[name] = problem
            else:
                columns[name] = column
        if self._has_splits:
            columns[SPLIT] = pyarrow.array([split] * count, pyarrow.string())
        self._counts[split] = start + count
        return pyarrow.table(columns)

    def _stored(self, encoded: pyarrow.Array, column: str, split: str, start: int) -> Iterator[str]:
        """Write images as files; yield their paths. A missing one is an empty file, which is counted as unusable."""
        position = [*self.image_columns].index(column)
        prefix = f"{position}-" if position else ""
        folder = self._folder / IMAGES / split
        folder.mkdir(parents=True, exist_ok=True)
        for number, value in enumerate(encoded, start):
            data = value.as_py() or b""
            kind = images.format_of(data[:FIRST_BYTES])
            path = folder / f"{prefix}{number:08d}.{images.FORMATS[kind].endings[0] if kind else 'png'}"
            path.write_bytes(data)
            yield path.relative_to(self._folder).as_posix()


def link_images(folder: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Link the images of each split as `split/class/IMAGE`, or `class/IMAGE` of a data set without splits."""
    downloaded = (folder / FILES).resolve()
    for split, paths in files.items():
        for path in paths:
            *parents, label, name = Path(path).parts
            target = folder / IMAGES / (split if len(files) > 1 else "") / label / name
            if target.is_symlink():  # another folder of the class
                target = target.with_name("-".join((*parents, name)))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(downloaded / path)


def _batches(path: Path) -> Iterator[pyarrow.Table]:
    """Yield the rows of a file as tables; the cells of CSV files are texts."""
    import pyarrow
    import pyarrow.parquet

    if path.suffix.lower() == ".parquet":
        file = pyarrow.parquet.ParquetFile(path)
        for batch in file.iter_batches(BATCH_ROWS):
            yield pyarrow.Table.from_batches([batch], file.schema_arrow)
        return
    if path.suffix.lower() in (".csv", ".tsv"):
        from pyarrow import csv

        parse = csv.ParseOptions(delimiter="," if path.suffix.lower() == ".csv" else "\t", newlines_in_values=True)
        names = csv.open_csv(path, parse_options=parse).schema.names
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()))
        reader = csv.open_csv(path, parse_options=parse, convert_options=as_text)
    else:
        from pyarrow import json as lines

        reader = [lines.read_json(path)]
    for batch in reader:
        yield pyarrow.Table.from_batches([batch]) if isinstance(batch, pyarrow.RecordBatch) else batch


def _described(schema: pyarrow.Schema) -> dict[str, object]:
    """Return the descriptions of columns in the metadata of a Parquet file."""
    try:
        features = json.loads((schema.metadata or {})[METADATA_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _names_of_classes(feature: object) -> list[str]:
    """Return the names of the classes in the description of a column, [] if it has none."""
    if not isinstance(feature, dict):
        return []
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    if isinstance(feature.get("class_label"), dict):
        names = feature["class_label"].get("names")
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=int)]
    if isinstance(names, list):
        return [str(name) for name in names]
    inner = (feature.get(key) for key in ("dtype", "feature", "sequence", "list"))
    return next((names for value in inner if (names := _names_of_classes(value))), [])


def _with_names(column: Any, names: Sequence[str]) -> Any:
    """Return a column of numbers of classes, or of lists of them, with their names; None for another column."""
    import pyarrow
    import pyarrow.compute

    kind = column.type
    if pyarrow.types.is_list(kind) and pyarrow.types.is_integer(kind.value_type):
        named = _with_names(column.values, names)
        return pyarrow.ListArray.from_arrays(column.offsets, named) if column.null_count == 0 else None
    if not pyarrow.types.is_integer(kind):
        return None
    # -1 stands for a label that is not known, as in test splits of competitions.
    known = pyarrow.compute.if_else(pyarrow.compute.less(column, 0), None, column)
    return pyarrow.array(names, pyarrow.string()).take(known.cast(pyarrow.int64()))


def _encoded_images(column: Any) -> Any:
    """Return the encoded images in a column, of bytes or of structs of `bytes` and `path`; None for another one."""
    import pyarrow

    if pyarrow.types.is_struct(column.type) and "bytes" in {field.name for field in column.type}:
        column = column.field("bytes")
    if not (pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type)):
        return None
    first = next((value for value in column if value.is_valid), None)
    is_known = first is not None and images.format_of(first.as_py()[:FIRST_BYTES]) is not None
    return column if is_known else None


def _inside(parent: str, path: str) -> str:
    """Return a path in a folder of the data set; only of its own files, whatever a list of somebody else names.

    Raises:
        ValueError: It is outside.
    """
    joined = posixpath.normpath(posixpath.join(parent, path))
    if not joined.startswith(f"{FILES}/"):
        raise ValueError(f"{path!r} is not a file of the data set")
    return joined


def _problem(kind: Any) -> str:
    """Return why a column is not read, "" if it is."""
    import pyarrow

    from slipway.core.tables.parquet_file import LISTS

    inner = kind.value_type if any(is_kind(kind) for is_kind in LISTS) else kind
    if pyarrow.types.is_nested(inner):
        return f"has nested values ({str(kind)[:40]})"
    if pyarrow.types.is_binary(inner) or pyarrow.types.is_large_binary(inner):
        return "has bytes that are no images"
    return ""


def _without_nulls(schema: Any) -> Any:
    """Return the schema with texts for columns whose first cells are all missing."""
    import pyarrow

    fields = (field.with_type(pyarrow.string()) if pyarrow.types.is_null(field.type) else field for field in schema)
    return pyarrow.schema([*fields])
