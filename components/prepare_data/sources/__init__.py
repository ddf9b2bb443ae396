"""Data sources: the table `SOURCES`, and `open_source`, which opens the one that data.source names.

A new source is a row of the table, a module in this folder and its tests. Modules are imported when a source is opened.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from slipway import extensions
from slipway.components.prepare_data.encoding.subwords import read_vocabulary
from slipway.components.prepare_data.examples import COLUMN, source_error
from slipway.core.errors import UserError, nearest
from slipway.core.paths import local_path

if TYPE_CHECKING:
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.prepare_data.sources.source import Source
    from slipway.core.manifest import TaskName

# The form of data.source that names a user's function.
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class SourceKind:
    """A kind of source.

    Attributes:
        prefix: The text before the colon in data.source; empty for a user's function.
        form: The form of data.source, as messages show it.
        example: A valid data.source.
        opens: The function that opens the source, `MODULE:FUNCTION`; a module without a dot is one of this package. It
            accepts the text after the prefix, the settings, the column of data.group_by (or None) and the task, and
            returns a `Source`.
        pending: The function that describes a source which opening would first download, else returns None.
        argument: What follows the colon; empty if nothing does.
        endings: The file name extensions of this kind; empty if all are valid.
        features: Whether the examples can have additional features, columns to group by, and labels of any task.
        mounted: Whether the argument is a path, which containers on this machine must mount.
        location: The setting with the source's path or gs:// URI, without `data.`; empty if the source has none.
        beam: Whether Beam workers on other machines can read the source in a bucket.
        reads_on_open: Whether opening the source reads its first example.
    """

    prefix: str
    form: str
    example: str
    opens: str
    pending: str = ""
    argument: str = ""
    endings: tuple[str, ...] = ()
    features: bool = True
    mounted: bool = False
    location: str = ""
    beam: bool = False
    reads_on_open: bool = False

    def argument_of(self, reference: str) -> str:
        """Return the text that names the source within its kind."""
        return reference.removeprefix(f"{self.prefix}:") if self.prefix else reference

    def matches(self, reference: str) -> bool:
        """Whether `reference` has the form of this kind."""
        if not self.prefix:
            return FUNCTION.fullmatch(reference) is not None
        if not self.argument:
            return reference == self.prefix
        prefix, _, argument = reference.partition(":")
        return prefix == self.prefix and argument.lower().endswith(self.endings or "") and argument != ""

    def written(self, argument: str) -> str:
        """Return the source of this kind at `argument`, or with a placeholder."""
        return f"{self.prefix}:{argument or self.argument}" if self.argument else self.prefix

    def located(self, settings: DataSettings) -> tuple[str, str]:
        """Return the setting with the source's path or gs:// URI, and its value without the prefix."""
        if self.location == "source":
            return "data.source", self.argument_of(settings.source)
        value = settings.tfds.data_dir if self.location == "tfds.data_dir" else None
        return f"data.{self.location or 'source'}", value or ""

    def open(self, settings: DataSettings, column: str | None, task: TaskName, **known: object) -> Source:
        """Open the source; `known` is what its opener would otherwise read.

        Raises:
            UserError: It cannot be opened.
        """
        opener = cast("Callable[..., Source]", _function(self.opens))
        return opener(self.argument_of(settings.source), settings, column, task, **known)


# The first row that matches data.source applies.
SOURCES = (
    SourceKind("digits", "digits", "digits", "digits:open_digits", features=False),
    SourceKind(
        "images", "images:ARCHIVE (tar, tar.gz, zip)", "images:photos.tar", "archive:open_archive",
        argument="ARCHIVE", endings=(".tar", ".tar.gz", ".tgz", ".zip"), features=False, mounted=True,
        location="source",
    ),
    SourceKind(
        "images", "images:FOLDER", "images:photos", "images:open_images",
        argument="FOLDER", features=False, mounted=True, location="source", beam=True,
    ),
    SourceKind(
        "csv", "csv:FILE (columns label, optionally split, and image or others)", "csv:photos.csv",
        "table_source:open_table_source",
        argument="FILE", mounted=True, location="source", beam=True,
    ),
    SourceKind(
        "parquet", "parquet:FILE (columns as for csv)", "parquet:houses.parquet", "table_source:open_table_source",
        argument="FILE", mounted=True, location="source", beam=True,
    ),
    SourceKind(
        "tfds", "tfds:NAME[/CONFIG][:VERSION]", "tfds:mnist", "tfds_set:open_tfds", pending="tfds_set:pending",
        argument="NAME", location="tfds.data_dir", beam=True,
    ),
    SourceKind(
        "tfrecord", "tfrecord:PATTERN", "tfrecord:photos/*.tfrecord", "tfrecord:open_tfrecord",
        argument="PATTERN", mounted=True, location="source", beam=True,
    ),
    SourceKind("", "MODULE:FUNCTION", "own_data:examples", "user_module:open_module", reads_on_open=True),
)  # fmt: skip


def source_kinds() -> tuple[SourceKind, ...]:
    """Return the rows of `SOURCES` and those of extensions; a user's function, which has no prefix, is the last."""
    *kinds, function = SOURCES
    return (*kinds, *map(extensions.load, extensions.references("sources")), function)


def source_kind(reference: str) -> SourceKind:
    """Return the kind of the source `reference`.

    Raises:
        UserError: It is not a source.
    """
    prefix, colon, argument = reference.partition(":")
    prefixes = {kind.prefix for kind in source_kinds() if kind.prefix}
    kinds = (kind for kind in source_kinds() if kind.matches(reference) and (kind.prefix or prefix not in prefixes))
    if kind := next(kinds, None):
        return kind
    is_path = not colon and re.search(r"[/\\.~]", reference)
    raise source_error(
        reference,
        f"The source {reference!r} is incomplete." if prefix in prefixes else f"There is no source {reference!r}.",
        allowed=forms(),
        nearest=closest(prefix, argument),
        fix=f"--set data.source=images:{reference}" if is_path else None,
    )


def forms() -> str:
    """Return the forms of data.source, for messages."""
    return " or ".join(kind.form for kind in source_kinds())


def closest(prefix: str, argument: str) -> str | None:
    """Return the source at `argument` whose prefix is the closest to a misspelled one, if any is close."""
    kinds = {kind.prefix: kind for kind in source_kinds() if kind.prefix}  # of several with one prefix, the last
    near = nearest(prefix, kinds)
    return kinds[near].written(argument) if near else None


def open_source(settings: DataSettings, task: TaskName = "classification", **known: object) -> Source:
    """Open the source that data.source names; `known` is what it would otherwise read: see `SourceKind.open`.

    Raises:
        UserError: The source is unknown, cannot be opened, lacks a feature or column, or has no labels of the task.
    """
    kind, group_by = source_kind(settings.source), settings.group_by or ""
    if kind.location == "source":
        _refuse_special_file(settings.source, kind.argument_of(settings.source))
    column = group_by.removeprefix(COLUMN) if group_by.startswith(COLUMN) else None
    if not kind.features:
        refuse_features(settings, column, task)
    try:
        source = kind.open(settings, column, task, **known)
    except OSError as error:
        raise source_error(
            settings.source, f"{error.filename or settings.source} cannot be read: {error.strerror}.", allowed=kind.form
        ) from None
    if not source.has_image:
        _refuse_image_settings(settings, source)
    _refuse_id(settings, source)
    if settings.text.vocabulary is not None:
        read_vocabulary(settings.text.vocabulary)
    return source


def check_source(settings: DataSettings, task: TaskName = "classification") -> str:
    """Check that the source can be opened; return a one-line description of it.

    Lists only the first example of each part (a class folder, a file).

    Raises:
        UserError: See `open_source`; also if the source's layout is invalid or a part has no example.
    """
    kind = source_kind(settings.source)
    if kind.pending:
        pending = cast("Callable[[str, DataSettings], str | None]", _function(kind.pending))
        if description := pending(kind.argument_of(settings.source), settings):
            return description
    source = open_source(settings, task)
    if not kind.reads_on_open:
        from slipway.components.prepare_data.sources.source import Ignored, Misjudged

        with tempfile.TemporaryDirectory(prefix="slipway-") as scratch:
            for part in source.parts():
                folder = Path(scratch)
                rows = source.rows(part, Ignored(), folder)
                with contextlib.suppress(Misjudged):  # a run would list it again
                    next(iter(source.entries(part, Ignored(), folder) if rows is None else rows), None)
    return settings.source


def _function(reference: str) -> Callable[..., object]:
    module, _, name = reference.partition(":")
    module = module if "." in module else f"{__name__}.{module}"
    return cast("Callable[..., object]", getattr(import_module(module), name))


def _refuse_special_file(reference: str, argument: str) -> None:
    """Reject a device or FIFO, whose reading may never end, and a path that cannot be stored as text."""
    path = local_path(argument).expanduser()
    if "\0" in argument or reference.encode(errors="ignore") != reference.encode(errors="surrogateescape"):
        problem = f"The source {reference!r} has a zero byte or bytes that are not UTF-8."
        raise source_error(ascii(reference), problem, fix="rename the file or folder")
    try:
        special = path.exists() and not path.is_file() and not path.is_dir()
    except OSError as error:
        raise source_error(reference, f"{path} cannot be read: {error.strerror}.") from None
    if special:
        raise source_error(
            reference,
            f"{path} is neither a file nor a folder.",
            allowed="a regular file or a folder",
            fix="copy its content to a file",
        )


def _refuse_image_settings(settings: DataSettings, source: Source) -> None:
    unused: dict[str, object] = {"data.resize": settings.resize, "data.resize_mode": settings.resize_mode}
    if not any(kind.name == "image" for kind in source.inputs.values()):
        unused |= {"data.image_size": settings.image_size, "data.channels": settings.channels}
    for name, value in unused.items():
        if value is not None:
            raise UserError(
                f"The source {settings.source} has no images.", setting=name, value=value, fix=f"remove {name}"
            )


def _refuse_id(settings: DataSettings, source: Source) -> None:
    if settings.id is not None and not source.has_ids:
        raise UserError(
            f"The {source.item}s of {settings.source} have keys of their own.", setting="data.id", value=settings.id,
            allowed="only with a table: csv:FILE or parquet:FILE without a column for images", fix="remove data.id",
        )  # fmt: skip


def refuse_features(settings: DataSettings, column: str | None, task: TaskName) -> None:
    """Reject feature settings, and other tasks, for sources that have only images and classes."""
    if task != "classification":
        raise UserError(
            f"The source {settings.source} has one class for each image; it has no labels for the task {task}.",
            setting="task",
            value=task,
            allowed=" or ".join(kind.form for kind in source_kinds() if kind.features),
            fix="list the images in a CSV file with their labels: --set data.source=csv:FILE",
        )
    unused = {
        "data.features": settings.features, "data.image": settings.image, "data.label": settings.label,
        "data.inputs": settings.inputs if settings.inputs != ["image"] else None,
    }  # fmt: skip
    for name, value in unused.items():
        if value is not None:
            raise UserError(
                f"The source {settings.source} has no features except image and label.", setting=name, value=value,
                fix=f"remove {name}, or list the images in a CSV file with their features",
            )  # fmt: skip
    order = settings.order_column
    for use, named, value in (("group", column, settings.group_by), ("order", order, settings.order_by)):
        if named is not None:
            raise UserError(
                f"The source {settings.source} has no columns.",
                setting=f"data.{use}_by",
                value=value,
                allowed="a regular expression with one capturing group, searched for in each example's key",
            )
