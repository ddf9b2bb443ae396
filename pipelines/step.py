"""What a step of the pipeline is, and a task of a compiled one: the rows of the table of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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


EVALUATE = Task("evaluate", image="evaluation")
