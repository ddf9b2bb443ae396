"""The CPUs, memory and disk of a pipeline's steps, by the names of `pipelines/table.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import Field

from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.kubernetes import Cpu, Memory, quantity
from slipway.pipelines.table import STEPS, step_of, steps_on
from slipway.trainer.settings import Settings

GIGABYTE = 1e9
ON_LARGER_DISKS = ("prepare_data", "evaluate")


class StepResources(Settings):
    """The resources of one step, by the step's name."""

    cpu: Cpu | None = Field(default=None, description="CPUs, such as 8 or 500m; null: the platform's default.")
    memory: Memory | None = Field(default=None, description="Memory, such as 64G; null: the platform's default.")


class VertexStepResources(StepResources):
    """The machine of one step, by the step's name: by default 4 vCPUs with 16 GB of memory and a disk of 100 GB.

    `train` is not among them: it runs on the machines of `hardware`.
    """

    disk: Memory | None = Field(
        default=None,
        description="Boot disk, such as 500G. Above 100G the step runs as a custom job, because Vertex AI gives a step "
        "no larger disk. null: 100G.",
    )

    @property
    def cpus(self) -> float | None:
        """The number of CPUs; None if not set."""
        return None if self.cpu is None else quantity(str(self.cpu))

    @property
    def memory_gb(self) -> int | None:
        """The memory in gigabytes, rounded up; None if not set."""
        return None if self.memory is None else math.ceil(quantity(self.memory) / GIGABYTE)

    @property
    def disk_gb(self) -> int | None:
        """The boot disk in gigabytes, rounded up; None if not set."""
        return None if self.disk is None else math.ceil(quantity(self.disk) / GIGABYTE)

    @property
    def needs_custom_job(self) -> bool:
        """Whether the step runs as a custom job, for a larger disk than Vertex AI gives to a pipeline's step.

        Source: https://docs.cloud.google.com/vertex-ai/docs/pipelines/machine-types ("If you want to specify the disk
        space in the machine configuration, you must create a custom training job from a component").
        """
        from slipway.pipelines.hardware.quotas import DEFAULT_DISK_GB  # imports the catalogue

        return (self.disk_gb or 0) > DEFAULT_DISK_GB


Resources = TypeVar("Resources", bound=StepResources)


def check_steps(steps: Iterable[str], platform: str, *, but: Iterable[str] = ()) -> None:
    """Raise UserError for a step that the platform does not have, or whose resources cannot be set there (`but`)."""
    known = [name for name in steps_on(platform) if name not in but]
    for name in steps:
        if name in but:
            raise UserError(
                f"The machines of the step {name} are those of the training hardware.",
                setting=f"{platform}.steps",
                value=name,
                allowed=", ".join(known),
                fix=f"remove {platform}.steps.{name}, and set --hardware CHOICE",
            )
        if name not in known:
            near = nearest(name, known)
            fix = f"write {platform}.steps.{near}" if near else f"remove {platform}.steps.{name}"
            raise UserError.unknown(f"step on {platform}", name, known, setting=f"{platform}.steps", fix=fix)


def check_vertex_steps(steps: Mapping[str, VertexStepResources]) -> None:
    """Raise UserError for an unknown step, and for a machine that a step cannot have on Vertex AI."""
    from slipway.pipelines.hardware.quotas import DEFAULT_DISK_GB, MAX_DISK_GB, MAX_STEP_CPUS, MAX_STEP_MEMORY_GB

    check_steps(steps, "vertex", but=("train",))
    for name, resources in steps.items():
        if resources.needs_custom_job and name not in ON_LARGER_DISKS:
            raise UserError(
                f"The step {name} cannot have a larger disk; it stores nothing on it.",
                setting=f"vertex.steps.{name}.disk",
                value=resources.disk,
                allowed=f"{DEFAULT_DISK_GB}G; more for {' and '.join(ON_LARGER_DISKS)}",
                fix=f"--set vertex.steps.{name}.disk=null",
            )
        for setting, value, least, most, unit in (
            ("cpu", resources.cpus, 0, MAX_STEP_CPUS, ""),
            ("memory", resources.memory_gb, 0, MAX_STEP_MEMORY_GB, "G"),
            ("disk", resources.disk_gb, DEFAULT_DISK_GB, MAX_DISK_GB, "G"),
        ):
            if value is not None and not least <= value <= most:
                near = f"{most if value > most else least}{unit}"
                raise UserError(
                    f"A step on Vertex AI cannot have a {setting} of {value:,g}{unit}.",
                    setting=f"vertex.steps.{name}.{setting}",
                    value=str(getattr(resources, setting)),
                    allowed=f"{f'{least} to' if least else 'up to'} {most}{unit}",
                    nearest=near,
                )


def resources_of(task: str, steps: Mapping[str, Resources], platform: str) -> Resources | None:
    """Return the resources of a task: those of its step, if it is the task that does the step's work, the last one."""
    step = step_of(task)
    if step is None or STEPS[step].tasks_on(platform)[-1].name != task:
        return None
    return steps.get(step)
