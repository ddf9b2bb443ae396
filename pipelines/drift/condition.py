"""The condition `when: drift` of a run, and its step in the pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.step import Step, Task

if TYPE_CHECKING:
    from kfp.dsl.pipeline_channel import PipelineArtifactChannel

    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.steps import Champion, PlatformSteps

DRIFT = "drift"
STEP = Step(
    "check_drift",
    "comparing the data with the champion's",
    outputs=("Output", "page"),
    tasks=(Task("check-drift", image="evaluation"),),
    condition=DRIFT,
    result="slipway.pipelines.drift.condition:result",
)


def result(outputs: JsonObject, *, judged: bool) -> str:  # noqa: ARG001
    """Return what the step found out, in a few words."""
    if "reason" not in outputs:
        return ""
    return str(outputs["reason"]) + ("" if outputs["decision"] == DRIFT else ": the run ends here")


def check(config: RunConfig) -> None:
    """Check that a run that trains only if the data have drifted has what it compares.

    Raises:
        UserError: It has no data that Slipway prepares, no champion, or one that only a function of the user's loads.
    """
    problem, fix = "", ""
    if config.prepared is None:
        problem, fix = "Slipway prepares no data for it", "--set when=always"
    elif config.evaluate.champion == "none":
        problem, fix = "the champion is not asked for", "--set evaluate.champion=registered"
    elif config.serve.module is not None:
        problem, fix = f"only {config.serve.module} loads its models", "--set when=always"
    if problem:
        raise UserError(
            f"The run cannot find out whether the data have drifted: {problem}.", setting="when", value=DRIFT, fix=fix
        )


@contextlib.contextmanager
def if_drifted(platform: PlatformSteps, dataset: PipelineArtifactChannel, champion: Champion) -> Iterator[None]:
    """Let the tasks that are added inside this context run only if the data have drifted."""
    from kfp import dsl

    from slipway.components.check_drift.steps import check_drift

    checked = platform.add(check_drift, dataset, champion=champion.uri)
    with dsl.If(checked.outputs["Output"] == DRIFT):
        yield
