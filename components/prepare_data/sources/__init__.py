"""Data sources: `open_source` opens the one that data.source names."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from slipway.components.prepare_data.settings import COLUMN, DataSettings
from slipway.components.prepare_data.sources.archive import ENDING, ArchiveSource
from slipway.components.prepare_data.sources.csv_file import ManifestSource
from slipway.components.prepare_data.sources.digits import DigitsSource
from slipway.components.prepare_data.sources.images import ImagesSource
from slipway.components.prepare_data.sources.source import Ignored, Source
from slipway.components.prepare_data.sources.tfds_set import data_dir, find_set, open_tfds
from slipway.components.prepare_data.sources.tfrecord import open_tfrecord
from slipway.components.prepare_data.sources.user_module import REFERENCE, ModuleSource
from slipway.core.errors import UserError, nearest
from slipway.core.paths import local_path

FORMS = {
    "digits": "digits",
    "images": "images:FOLDER or images:ARCHIVE (tar, tar.gz, zip)",
    "csv": "csv:FILE (columns image, label and optionally split)",
    "tfds": "tfds:NAME[/CONFIG][:VERSION]",
    "tfrecord": "tfrecord:PATTERN",
}
MODULE = "MODULE:FUNCTION"
PLACES = {"digits": None, "images": "FOLDER", "csv": "FILE", "tfds": "NAME", "tfrecord": "PATTERN"}


def open_source(settings: DataSettings) -> Source:
    """Open the source that data.source names.

    Raises:
        UserError: The source is unknown, cannot be opened, or has no column to group by.
    """
    reference, group_by = settings.source, settings.group_by
    kind, _, place = reference.partition(":")
    column = group_by.removeprefix(COLUMN) if group_by is not None and group_by.startswith(COLUMN) else None
    if kind not in FORMS and REFERENCE.match(reference):
        return _user_module(settings, kind, column)
    if not (reference == "digits" or (kind in FORMS and kind != "digits" and place)):
        raise _no_source(reference)
    if kind in ("digits", "images"):
        _refuse_features(settings, column)
        return DigitsSource() if kind == "digits" else _images(place, reference)
    if kind == "csv":
        return ManifestSource(place, settings, column)
    return (open_tfds if kind == "tfds" else open_tfrecord)(place, settings, column)


def look_at_source(settings: DataSettings) -> str:
    """Check that the source can be opened; return a one-line description of it.

    Lists only the first example of each part (a class folder, a file).

    Raises:
        UserError: See `open_source`; also if the source's layout is invalid or a part has no example.
    """
    kind, _, place = settings.source.partition(":")
    if kind == "tfds" and find_set(place, settings) is None:
        return f"{settings.source}, which TensorFlow Datasets first prepares in {data_dir(settings)}"
    source = open_source(settings)
    if not isinstance(source, ModuleSource):  # its constructor reads the first example
        with tempfile.TemporaryDirectory(prefix="slipway-") as scratch:
            for part in source.parts():
                next(iter(source.entries(part, Ignored(), Path(scratch))), None)
    return settings.source


def _images(place: str, reference: str) -> Source:
    is_archive = ENDING.search(place) and not local_path(place).expanduser().is_dir()
    return ArchiveSource(place, reference) if is_archive else ImagesSource(place, reference)


def _user_module(settings: DataSettings, kind: str, column: str | None) -> Source:
    try:
        return ModuleSource(settings.source, settings, column)
    except UserError as error:
        if error.nearest is None and (near := nearest(kind, FORMS)) and "no module" in error.message:
            error.nearest = _as_written(near, settings.source.partition(":")[2])
            error.allowed = " or ".join((*FORMS.values(), MODULE))
        raise


def _refuse_features(settings: DataSettings, column: str | None) -> None:
    """Reject feature settings for sources that have only images and labels."""
    unused = {"data.features": settings.features, "data.image": settings.image, "data.label": settings.label}
    for name, value in unused.items():
        if value is not None:
            raise UserError(
                f"The source {settings.source} has no features except image and label.", setting=name, value=value,
                fix=f"remove {name}, or list the images in a CSV file with their features",
            )  # fmt: skip
    if column is not None:
        raise UserError(
            f"The source {settings.source} has no columns.",
            setting="data.group_by",
            value=settings.group_by,
            allowed="a regular expression with one capturing group, searched for in each example's key",
        )


def _no_source(reference: str) -> UserError:
    kind, colon, place = reference.partition(":")
    near = nearest(kind, FORMS)
    return UserError(
        f"There is no source {reference!r}." if kind not in FORMS else f"The source {reference!r} is incomplete.",
        setting="data.source",
        value=reference,
        allowed=" or ".join((*FORMS.values(), MODULE)),
        nearest=_as_written(near, place) if near else None,
        fix=_looks_like_folder(reference, bool(colon)),
    )


def _as_written(kind: str, place: str) -> str:
    """Return a source reference of this kind, with the user's text after the colon."""
    usual = PLACES[kind]
    return f"{kind}:{place or usual}" if usual else kind


def _looks_like_folder(reference: str, has_colon: bool) -> str | None:
    """Return the fix for a reference that is a bare path."""
    if not has_colon and re.search(r"[/\\.~]", reference):
        return f"--set data.source=images:{reference}"
    return None


__all__ = ["FORMS", "look_at_source", "open_source"]
