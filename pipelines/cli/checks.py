"""Checks made before a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipway.core.errors import UserError
from slipway.pipelines.cli.options import Runner, Target


def check_configuration(
    configuration: Any,
    target: Target,
    *,
    runner: Runner = Runner.process,
    rehearsal: bool = False,
    submitting: bool = False,
) -> None:
    """Make the doctor's checks that apply to a run.

    Raises:
        UserError: A check failed.
    """
    from slipway.pipelines.doctor import refuse_on_failure
    from slipway.pipelines.doctor.check import Context

    context = Context(configuration, target.value, rehearsal=rehearsal, folder=Path.cwd(), runner=runner.value)
    refuse_on_failure(context, submitting=submitting)


def check_runner(asked: Runner, taken: Runner, what: str) -> None:
    """Refuse --runner docker for a run that does not use it."""
    if asked is Runner.docker and taken is not Runner.docker:
        raise UserError(f"--runner applies only to new local runs, not to {what}.", setting="--runner", value="docker")
