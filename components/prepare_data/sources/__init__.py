"""The sources of examples: `open_source` finds the one that a setting names."""

from __future__ import annotations

import re

from components.prepare_data.settings import COLUMN
from components.prepare_data.sources.archive import ENDING, ArchiveSource
from components.prepare_data.sources.csv_file import ManifestSource
from components.prepare_data.sources.digits import DigitsSource
from components.prepare_data.sources.images import ImagesSource
from components.prepare_data.sources.source import Source
from trainer.errors import UserError, nearest
from trainer.places import local_path

FORMS = {
    "digits": "digits",
    "images": "images:FOLDER or images:ARCHIVE (tar, tar.gz, zip)",
    "csv": "csv:FILE (columns image, label and perhaps split)",
}


def open_source(reference: str, group_by: str | None = None) -> Source:
    """The source that `reference` (the setting data.source) names; `group_by` is the setting data.group_by.

    Raises:
        UserError: There is no such kind of source, or it can not be opened, or it has no columns to group by.
    """
    kind, colon, place = reference.partition(":")
    column = group_by.removeprefix(COLUMN) if group_by is not None and group_by.startswith(COLUMN) else None
    if kind == "csv" and place:
        return ManifestSource(place, reference, column)
    if column is not None and kind in FORMS:
        raise UserError(
            f"The source {reference} has no columns.",
            setting="data.group_by",
            value=group_by,
            allowed="a regular expression with one group in parentheses, which is searched for in each example's key",
        )
    if reference == "digits":
        return DigitsSource()
    if kind == "images" and place:
        is_archive = ENDING.search(place) and not local_path(place).expanduser().is_dir()
        return ArchiveSource(place, reference) if is_archive else ImagesSource(place, reference)
    near = nearest(kind, FORMS)
    guess = f"{near}:{place or 'FOLDER'}" if near == "images" else f"csv:{place or 'FILE'}" if near == "csv" else near
    raise UserError(
        f"There is no source {reference!r}." if kind not in FORMS else f"The source {reference!r} is not complete.",
        setting="data.source",
        value=reference,
        allowed=" or ".join(FORMS.values()),
        nearest=guess,
        mend=_looks_like_folder(reference, bool(colon)),
    )


def _looks_like_folder(reference: str, has_colon: bool) -> str | None:
    """What mends a reference that is a bare path."""
    if not has_colon and re.search(r"[/\\.~]", reference):
        return f"a folder of images is written images:{reference}"
    return None


__all__ = ["FORMS", "open_source"]
