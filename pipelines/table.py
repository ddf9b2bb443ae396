"""The pipeline's steps: one row per step, with every fact that several places need.

To add a step, add its row here, its folder in `components/` and its call in `pipeline.py`. Extensions add rows of their
own, and the tasks that steps have on their platforms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from slipway import extensions
from slipway.pipelines.step import EVALUATE, Step, Task

_CORE = {
    step.name: step
    for step in (
        Step(
            "build_image",
            "building the image",
            outputs=("Output",),
            on={"local": ()},
            result="slipway.pipelines.runs.results:build_image",
        ),
        Step(
            "prepare_data",
            "preparing the data set",
            outputs=("dataset", "statistics"),
            # The step finds an existing data set, and notices that it was deleted.
            tasks=(Task("prepare-data", cached=False),),
            settings=("data", "task"),
            result="slipway.pipelines.runs.results:prepare_data",
        ),
        Step(
            "plan_training",
            "planning the training",
            outputs=("Output",),
            tasks=(Task("plan-training"),),
            result="slipway.pipelines.runs.results:plan_training",
        ),
        Step(
            "train",
            "training",
            outputs=("model", "metrics"),
            tasks=(Task("train", image="trainer"),),
            starts_machines=True,
            settings=("train", "model", "hardware"),
            result="slipway.pipelines.runs.results:train",
        ),
        Step(
            "evaluate",
            "evaluating the model",
            outputs=("Output", "metrics", "classification", "report"),
            tasks=(EVALUATE,),
            settings=("evaluate", "serve"),
            result="slipway.pipelines.runs.results:evaluate",
        ),
        Step(
            "register_model",
            "registering the model",
            outputs=("registered",),
            # Registering has side effects, so a cached result proves nothing; a repeated step registers a run's model
            # once.
            tasks=(Task("register-model", cached=False),),
            settings=("register", "serve"),
            result="slipway.pipelines.runs.results:register_model",
        ),
    )
}


def _in_order() -> Iterator[Step]:
    rows = [(after, extensions.load(reference)) for after, reference in extensions.rows()]
    tasks = {platform: extensions.load(reference) for platform, reference in extensions.tasks().items()}
    for row in _CORE.values():
        for step in (row, *(step for after, step in rows if after == row.name)):
            yield replace(
                step, on={**step.on, **{name: of[step.name] for name, of in tasks.items() if step.name in of}}
            )


STEPS: Mapping[str, Step] = {step.name: step for step in _in_order()}
# Tasks that run after the steps, however these ended, to notify of the outcome. They belong to no step: their own
# outcome is not a run's.
EXIT_TASKS = (
    Task("notify", cached=False, retried=False),
    Task("vertex-pipelines-notification-email", cached=False, retried=False),
)
_TASKS = [(step, task) for step in STEPS.values() for tasks in (step.tasks or (), *step.on.values()) for task in tasks]
TASKS: Mapping[str, Task] = {task.name: task for task in (*(task for _, task in _TASKS), *EXIT_TASKS)}
_STEP_OF: Mapping[str, str] = {task.name: step.name for step, task in _TASKS}


def steps_on(platform: str) -> list[str]:
    """Return the names of a platform's steps in order."""
    return [name for name, step in STEPS.items() if step.is_on(platform)]


def absent_steps(when: str) -> set[str]:
    """Return the steps that a run has not whose condition is `when`."""
    return {name for name, step in STEPS.items() if step.condition not in ("", when)}


def step_of(task: str) -> str | None:
    """Return the name of the step to which a task belongs; None for the pipeline's own (conditions, exit tasks)."""
    return _STEP_OF.get(task)
