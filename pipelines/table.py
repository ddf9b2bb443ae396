"""The pipeline's steps: one row per step, with every fact that several places need.

To add a step, add its row here, its folder in `components/` and its call in `pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

PlatformName = Literal["local", "vertex", "kubeflow", "tpu"]
PLATFORMS: tuple[PlatformName, ...] = get_args(PlatformName)
# The platforms whose steps run on this machine.
HERE: tuple[PlatformName, ...] = ("local", "tpu")
Role = Literal["steps", "trainer", "evaluation"]


@dataclass(frozen=True)
class Task:
    """A task of a compiled pipeline.

    Attributes:
        name: Its name in the spec.
        image: Which of a run's images it uses: that of the steps, of the trainer, or of the evaluation (the steps'
            image with the engine, if the engine's models need it).
        cached: Whether a resumed run on this machine keeps its result, in a cache in the run's folder. The caches of
            Vertex AI and Kubeflow are off for every task; see `Platform.configure`.
        retried: Whether Vertex AI retries it after a failure (`vertex.retries`).
        concurrent: Whether it runs beside the other steps: it can fail its step, but neither starts nor ends it.
    """

    name: str
    image: Role = "steps"
    cached: bool = True
    retried: bool = True
    concurrent: bool = False


@dataclass(frozen=True)
class Step:
    """A step of the pipeline.

    Attributes:
        name: Its name in records and logs, and of its folder in `components/`.
        label: What it does, as displayed while it is running.
        outputs: The outputs of its last task. `Output` is the return value of a component.
        tasks: Its tasks by platform, the last one ending the step; an empty tuple if it runs outside the pipeline, and
            no entry for a platform that does not have it.
        starts_machines: Whether it starts machines on a cloud platform, which cost money; it waits for setup_access.
    """

    name: str
    label: str
    outputs: tuple[str, ...]
    tasks: Mapping[PlatformName, tuple[Task, ...]] = field(repr=False)
    starts_machines: bool = False


def _everywhere(task: Task) -> dict[PlatformName, tuple[Task, ...]]:
    return dict.fromkeys(PLATFORMS, (task,))


_TRAIN = Task("train", image="trainer")
_EVALUATE = Task("evaluate", image="evaluation")
# Registering has side effects, so a cached result proves nothing; a repeated step registers a run's model once.
_REGISTER_MODEL = Task("register-model", cached=False)

STEPS: Mapping[str, Step] = {
    step.name: step
    for step in (
        Step(
            "build_image",
            "building the image",
            outputs=("Output",),
            tasks={"local": (), "vertex": (Task("build-image"),), "tpu": ()},
        ),
        Step(
            "setup_access",
            "checking permissions",
            outputs=(),
            tasks={"vertex": (Task("setup-access"),)},
        ),
        Step(
            "prepare_data",
            "preparing the data set",
            outputs=("dataset", "statistics"),
            # The step finds an existing data set, and notices that it was deleted.
            tasks=_everywhere(Task("prepare-data", cached=False)),
        ),
        Step(
            "plan_training",
            "planning the training",
            outputs=("Output",),
            tasks=_everywhere(Task("plan-training")),
        ),
        Step(
            "train",
            "training",
            outputs=("model", "metrics"),
            tasks={
                "local": (_TRAIN,),
                # The custom job restarts its own replicas.
                "vertex": (Task("custom-training-job", image="trainer", retried=False), Task("collect-model")),
                "kubeflow": (_TRAIN,),
                "tpu": (Task("train-on-tpu"),),
            },
            starts_machines=True,
        ),
        Step(
            "evaluate",
            "evaluating the model",
            outputs=("Output", "metrics", "classification", "report"),
            tasks={
                "local": (_EVALUATE,),
                "vertex": (Task("find-champion", concurrent=True), _EVALUATE),
                "kubeflow": (Task("find-champion-folder", concurrent=True), _EVALUATE),
                "tpu": (_EVALUATE,),
            },
        ),
        Step(
            "register_model",
            "registering the model",
            outputs=("registered",),
            tasks={
                "local": (_REGISTER_MODEL,),
                "vertex": (Task("register-version"),),
                "kubeflow": (_REGISTER_MODEL,),
                "tpu": (_REGISTER_MODEL,),
            },
        ),
        Step(
            "deploy",
            "deploying the model",
            outputs=("Output",),
            # A repeated step would deploy a model again that was withdrawn; `slipway deploy` continues any other.
            tasks={"vertex": (Task("deploy-model", retried=False),)},
            starts_machines=True,
        ),
    )
}
# Tasks that run after the steps, however these ended, to notify of the outcome. They belong to no step: their own
# outcome is not a run's.
EXIT_TASKS = (
    Task("notify", cached=False, retried=False),
    Task("vertex-pipelines-notification-email", cached=False, retried=False),
)
_TASKS = [(step, task) for step in STEPS.values() for tasks in step.tasks.values() for task in tasks]
TASKS: Mapping[str, Task] = {task.name: task for task in (*(task for _, task in _TASKS), *EXIT_TASKS)}
_STEP_OF: Mapping[str, str] = {task.name: step.name for step, task in _TASKS}


def steps_on(platform: PlatformName) -> list[str]:
    """Return the names of a platform's steps in order."""
    return [name for name, step in STEPS.items() if platform in step.tasks]


def step_of(task: str) -> str | None:
    """Return the name of the step to which a task belongs; None for the pipeline's own (conditions, exit tasks)."""
    return _STEP_OF.get(task)
