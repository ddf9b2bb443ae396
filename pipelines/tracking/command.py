"""`slipway runs track`: send what a tracker does not have of a run or search."""

from __future__ import annotations

from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.options import Overrides, complete_run
from slipway.pipelines.terminal import console, say, user_errors


@user_errors
def track(
    run_id: Annotated[
        str, typer.Argument(metavar="[RUN]", help="A run's id, latest, or a search's.", autocompletion=complete_run)
    ] = "latest",
    overrides: Overrides = None,
) -> None:
    """Send to the tracker (section track) what it does not have of a run or search, as after it was down."""
    from slipway.pipelines.api import starting
    from slipway.pipelines.config.config import load, no_section
    from slipway.pipelines.runs import record as runs
    from slipway.pipelines.tracking import tracking
    from slipway.pipelines.tracking.settings import TrackSettings

    of_search = tracking.runs_of(run_id)
    folder = of_search[0][0] if of_search else runs.find(run_id)
    configuration = load(folder.configuration_file, overrides or ())
    if configuration.section(TrackSettings) is None:
        fix = f"slipway runs track {run_id} --set track.mlflow=http://localhost:5000"
        raise no_section("track", "mlflow, experiment", fix)
    tracker = tracking.tracker_of(configuration)
    if of_search:
        tracking.send_study(configuration, run_id, tracker)
    else:
        record = starting.current(folder, say)
        if record.rehearsal:
            raise UserError(f"{record.run_id} is a rehearsal, which is not tracked.", fix="slipway runs track RUN")
        tracker.send(tracking.of_run(folder, configuration, record))
    console.print(tracker.page)
