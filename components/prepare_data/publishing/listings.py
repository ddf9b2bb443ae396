"""What is remembered about listed sources, so that an unchanged source is recognized without being read.

A cache in the folder `.listings` beside the prepared data sets of one name. It only holds hints: names, sizes and
modification times stand for content that was read once. An entry that is lost or damaged is ignored, which costs the
time of reading the source again. Files are replaced atomically; of two processes that write one at once, the last wins.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from pydantic import RootModel, ValidationError

from slipway.components.prepare_data.listing.index import Summary
from slipway.components.prepare_data.listing.plan import Target
from slipway.core.atomic import replace_file

FOLDER = ".listings"
# The sources of one shape that are remembered: the fingerprint of the data set by `Target.listing`, oldest first.
Fingerprints = RootModel[dict[str, str]]
MOST_REMEMBERED = 256


class Listings:
    """The cache in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def summary(self, name: str | None) -> Summary | None:
        """Return the summary of the listing remembered under `name`."""
        try:
            return Summary.model_validate_json(self._path(name).read_bytes()) if name else None
        except (OSError, ValidationError):
            return None

    def remember_summary(self, name: str | None, summary: Summary) -> None:
        """Remember the summary of a listing under `name`, unless it is None."""
        if name:
            self._write(name, summary.model_dump_json())

    def fingerprints(self, target: Target) -> dict[str, str]:
        """Return the fingerprints of the data sets of the target's shape, by `Target.listing`."""
        try:
            return Fingerprints.model_validate_json(self._path(target.shape).read_bytes()).root
        except (OSError, ValidationError):
            return {}

    def remember_fingerprint(self, target: Target, fingerprint: str) -> None:
        """Remember the fingerprint of the data set whose source was listed as the target's."""
        known = {**self.fingerprints(target), target.listing: fingerprint}
        kept = dict(list(known.items())[-MOST_REMEMBERED:])
        self._write(target.shape, Fingerprints(kept).model_dump_json())

    def _path(self, name: str | None) -> Path:
        return self._folder / f"{name}.json"

    def _write(self, name: str, content: str) -> None:
        with contextlib.suppress(OSError):  # the data set is complete without it
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._path(name), content.encode())
