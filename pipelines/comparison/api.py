"""`slipway.compare`: the page that compares runs, for notebooks."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.pipelines.api.errors import public
from slipway.pipelines.api.existing import Run
from slipway.pipelines.api.notebook import Report
from slipway.pipelines.comparison import page
from slipway.pipelines.runs import record as records
from slipway.pipelines.selection import selection


@public
def compare(*runs: Run | str) -> Report:
    """Return the page that compares runs, by default all: metrics, settings that differ, learning curves, data, code.

    Args:
        runs: Runs, or their ids; several.

    Raises:
        UserError: There is no such run, or there are none.
    """
    root = in_project(records.ROOT)
    folders = [records.find(run, root) if isinstance(run, str) else run._folder for run in runs]
    rows = [selection.read(folder) for folder in folders or records.folders(root)]
    if not rows:
        raise UserError("There are no runs yet.", fix="slipway run")
    return Report(page.write(selection.described(rows)), f"{len(rows)} runs compared")
