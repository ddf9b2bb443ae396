"""The check of a run's tracker."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Check, CheckWarning, Context, NotApplicableError
from slipway.pipelines.tracking.settings import TrackSettings
from slipway.pipelines.tracking.tracking import tracker_of


def tracker(context: Context) -> str:
    """The tracker responds; without it, a run succeeds, and is sent later."""
    settings = context.config.section(TrackSettings)
    if settings is None or context.rehearsal:
        raise NotApplicableError("the run is not tracked")
    try:
        tracker_of(context.config).check()
    except UserError as error:
        raise CheckWarning(error.message, "start it, or later: slipway runs track RUN") from None
    return f"MLflow at {settings.mlflow}"


CHECKS = (Check("tracker", tracker, of_run=True),)
