"""The pipeline's steps: one row per step, with every fact that several places need.

To add a step, add its row here, its folder in `components/` and its call in `pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from slipway import extensions

Role = Literal["steps", "trainer", "evaluation"]


@dataclass(frozen=True)
class Task:
    """A task of a compiled pipeline.

    Attributes:
        name: Its name in the spec.
        image: Which of a run's images it uses: that of the steps, of the trainer, or of the evaluation (the steps'
            image with the engine, if the engine's models need it).
        cached: Whether a resumed run on this machine keeps its result, in a cache in the run's folder. The caches of
            Vertex AI and Kubeflow are off for every task; see `PlatformSteps.configure`.
        retried: Whether Vertex AI retries it after a failure (`vertex.retries`).
        concurrent: Whether it runs beside the other steps: it can fail its step, but neither starts nor ends it.
        search: Whether only the pipeline of a search (`slipway tune`) has it, in place of the task before it.
    """

    name: str
    image: Role = "steps"
    cached: bool = True
    retried: bool = True
    concurrent: bool = False
    search: bool = False


@dataclass(frozen=True)
class Step:
    """A step of the pipeline.

    Attributes:
        name: Its name in records and logs, and of its folder in `components/`.
        label: What it does, as displayed while it is running.
        outputs: The outputs of its last task. `Output` is the return value of a component.
        tasks: Its tasks, the last one ending the step; None if only the platforms of `on` have it.
        on: Other tasks by platform; an empty tuple if it runs outside the pipeline there.
        starts_machines: Whether it starts machines on a cloud platform, which cost money; it waits for setup_access.
        settings: The sections of the configuration that it reads, if it can be run again from an earlier run.
        condition: The value of `when` with which runs have it; "" for all runs.
        result: The function that says what it did from its outputs, as "module:function"; see `runs/results.py`.
    """

    name: str
    label: str
    outputs: tuple[str, ...]
    tasks: tuple[Task, ...] | None = field(default=None, repr=False)
    on: Mapping[str, tuple[Task, ...]] = field(default_factory=dict, repr=False)
    starts_machines: bool = False
    settings: tuple[str, ...] = ()
    condition: str = ""
    result: str = ""

    def is_on(self, platform: str) -> bool:
        """Return whether a platform has the step, in its pipeline or outside of it."""
        return platform in self.on or self.tasks is not None

    def tasks_on(self, platform: str) -> tuple[Task, ...]:
        """Return its tasks in a platform's pipeline."""
        return self.on.get(platform, self.tasks or ())


_EVALUATE = Task("evaluate", image="evaluation")

_CORE = {
    step.name: step
    for step in (
        Step(
            "build_image",
            "building the image",
            outputs=("Output",),
            on={"local": (), "vertex": (Task("build-image"),), "tpu": ()},
            result="slipway.pipelines.runs.results:build_image",
        ),
        Step(
            "setup_access",
            "checking permissions",
            outputs=(),
            on={"vertex": (Task("setup-access"),)},
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
            on={
                # The custom job, or those of a search's trials, restart their own replicas.
                "vertex": (
                    Task("custom-training-job", image="trainer", retried=False),
                    Task("hyperparameter-tuning-job", image="trainer", retried=False, search=True),
                    Task("collect-model"),
                ),
            },
            starts_machines=True,
            settings=("train", "model", "hardware"),
            result="slipway.pipelines.runs.results:train",
        ),
        Step(
            "evaluate",
            "evaluating the model",
            outputs=("Output", "metrics", "classification", "report"),
            tasks=(_EVALUATE,),
            on={
                "vertex": (Task("find-champion", concurrent=True), _EVALUATE),
                "kubeflow": (Task("find-champion-folder", concurrent=True), _EVALUATE),
            },
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
            on={"vertex": (Task("register-version"),)},
            settings=("register", "serve"),
            result="slipway.pipelines.runs.results:register_model",
        ),
        Step(
            "deploy",
            "deploying the model",
            outputs=("Output",),
            # A repeated step would deploy a model again that was withdrawn; `slipway deploy` continues any other.
            on={"vertex": (Task("deploy-model", retried=False),)},
            starts_machines=True,
            result="slipway.pipelines.runs.results:deploy",
        ),
    )
}


def _in_order() -> Iterator[Step]:
    added = [(condition.after, extensions.load(condition.step)) for condition in extensions.conditions().values()]
    for step in _CORE.values():
        yield step
        yield from (row for after, row in added if after == step.name)


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
