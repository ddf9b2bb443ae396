"""What is remembered: about listed sources, in a cache, and which data set a run began with, in its output directory.

The cache is the folder `.listings` beside the prepared data sets of one name. It only holds hints: names, sizes and
modification times stand for content that was read once. An entry that is lost or damaged is ignored, which costs the
time of reading the source again. Files are replaced atomically; of two processes that write one at once, the last wins.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from pydantic import RootModel, ValidationError

from slipway.components.prepare_data.listing.plan import Target
from slipway.components.prepare_data.listing.split import Summary
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.paths import local_path
from slipway.core.values import JsonObject

FOLDER = ".listings"
# The sources of one shape that are remembered: the fingerprint of the data set by `Target.listing`, oldest first.
Fingerprints = RootModel[dict[str, str]]
MAX_REMEMBERED = 256
# In a run's output directory.
RUN_FILE = "dataset.json"
# The beginning of a placeholder that the platform should have replaced, as in {{$.pipeline_job_name}}.
PLACEHOLDER = "{{$"


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

    def schema(self, name: str) -> JsonObject | None:
        """Return what is remembered about a source that takes long to open; None if nothing is."""
        try:
            schema: JsonObject = json.loads(self._path(f"{name}-schema").read_bytes())
        except (OSError, ValueError):
            return None
        return schema

    def remember_schema(self, name: str, schema: JsonObject) -> None:
        """Remember what opening a source under `name` would find."""
        self._write(f"{name}-schema", json.dumps(schema))

    def fingerprints(self, target: Target) -> dict[str, str]:
        """Return the fingerprints of the data sets of the target's shape, by `Target.listing`."""
        try:
            return Fingerprints.model_validate_json(self._path(target.shape).read_bytes()).root
        except (OSError, ValidationError):
            return {}

    def remember_fingerprint(self, target: Target, fingerprint: str) -> None:
        """Remember the fingerprint of the data set whose source was listed as the target's."""
        known = {**self.fingerprints(target), target.listing: fingerprint}
        kept = dict(list(known.items())[-MAX_REMEMBERED:])
        self._write(target.shape, Fingerprints(kept).model_dump_json())

    def _path(self, name: str | None) -> Path:
        return self._folder / f"{name}.json"

    def _write(self, name: str, content: str) -> None:
        with contextlib.suppress(OSError):  # the data set is complete without it
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._path(name), content.encode())


def recall(output: str) -> str | None:
    """Return the URI of the data set of the run with this output directory; None if it has none yet.

    Raises:
        UserError: The directory is not the run's own: all runs would train on the data of the first one.
    """
    if PLACEHOLDER in output:
        raise UserError(
            f"The run's output directory contains an unresolved placeholder: {output}.",
            allowed="a directory for each run",
            fix="report this to Slipway's maintainers, with the version of the pipeline server",
        )
    try:
        uri: str = json.loads((local_path(output) / RUN_FILE).read_bytes())["uri"]
    except FileNotFoundError:
        return None
    return uri


def remember(output: str, uri: str) -> None:
    """Record the data set of the run with this output directory."""
    path = local_path(output) / RUN_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"uri": uri}).encode())
