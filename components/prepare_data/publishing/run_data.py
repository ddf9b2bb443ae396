"""The data set of a run, recorded in its output directory: a resumed run continues with the data that it began with."""

from __future__ import annotations

import json

from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.paths import local_path

FILE_NAME = "dataset.json"
# The beginning of a placeholder that the platform should have replaced, as in {{$.pipeline_job_name}}.
PLACEHOLDER = "{{$"


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
        uri: str = json.loads((local_path(output) / FILE_NAME).read_bytes())["uri"]
    except FileNotFoundError:
        return None
    return uri


def remember(output: str, uri: str) -> None:
    """Record the data set of the run with this output directory."""
    path = local_path(output) / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"uri": uri}).encode())
