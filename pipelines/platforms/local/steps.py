"""The pipeline for this machine.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from kfp import compiler, dsl
from kfp.dsl.base_component import BaseComponent

from slipway import steps
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.parameters import Channels, with_parameters
from slipway.pipelines.pipeline import training_steps
from slipway.pipelines.platforms.local.containers import HOST
from slipway.pipelines.platforms.local.replica import in_container
from slipway.pipelines.platforms.steps import Champion, PlatformSteps
from slipway.pipelines.step import Role, Task
from slipway.trainer.config import TrainSettings
from slipway.trainer.distributed.accelerators import find
from slipway.trainer.engines import table

# Fraction of the free memory for the batches of a rehearsal; the replicas need the rest.
MEMORY_SHARE = 0.5


class LocalSteps(PlatformSteps):
    """Processes on this machine, or containers of `image` if it is set, which is built before the pipeline runs.

    No permissions are checked. A rehearsal registers no model, and evaluates none of a custom program. In containers,
    a program with an image of its own (`own_image`) is started from a process, which runs a container for each replica.
    The results of the tasks `earlier` are in kfp's cache. `arguments` are those of steps that no setting has.
    """

    def __init__(
        self,
        *,
        rehearsal: bool = False,
        image: str = "",
        own_image: bool = False,
        earlier: Sequence[str] = (),
        last: str | None = None,
        arguments: Mapping[str, JsonObject] | None = None,
    ) -> None:
        self.rehearsal = rehearsal
        self.arguments = arguments or {}
        self.last = last
        self.registers = not rehearsal and self.includes("register_model")
        self._earlier = frozenset(earlier)
        self.memory = int(psutil.virtual_memory().available * MEMORY_SHARE) if rehearsal else 0
        self._image = image
        self._hosts_training = bool(image) and own_image

    def image(self, role: Role) -> str:  # noqa: ARG002
        return self._image

    def place(self, row: Task) -> steps.Place:
        return HOST if self._hosts_training and row.name == "train" else super().place(row)

    def training(self, config: RunConfig) -> TrainSettings:
        if self._hosts_training:
            return in_container(config.train)
        runs_here = config.train.module or config.train.command  # in Slipway's environment, whatever the image is
        return config.train.model_copy(update={"image": None}) if runs_here else config.train

    def configure(self, task: dsl.PipelineTask, row: Task) -> dsl.PipelineTask:
        configured = super().configure(task, row)
        if row.name in self._earlier:
            return configured.set_caching_options(True, row.name)
        return configured.set_caching_options(row.cached)

    def evaluates(self, config: RunConfig) -> bool:
        if not self.includes("evaluate"):
            return False
        return not self.rehearsal or config.train.program is None  # a rehearsed program may not have exported a model

    def readers(self, config: RunConfig) -> int:
        if self.rehearsal:
            return config.readers
        # TPUs and virtual devices of this machine, which the configuration does not contain; it contains GPUs.
        here = find(os.environ)
        devices = 0 if here.kind == "gpu" else here.count
        return max(config.readers, table.readers(config.train.engine, 1, devices))

    def trained_on(self, config: RunConfig) -> dict[str, Any]:
        return {"virtual_devices": config.training_hardware.accelerators_per_replica} if self.rehearsal else {}


def pipeline(
    config: RunConfig,
    *,
    rehearsal: bool = False,
    image: str = "",
    earlier: Sequence[str] = (),
    last: str | None = None,
    arguments: Mapping[str, JsonObject] | None = None,
    platform: PlatformSteps | None = None,
) -> BaseComponent:
    """Return the pipeline for this machine; see `LocalSteps` for its arguments. Or, return that for `platform`.

    Its parameters are the run's id, its training output, the champion's folder and those of the configuration.
    """
    if platform is None:
        platform = LocalSteps(
            rehearsal=rehearsal,
            image=image,
            own_image=config.train.image is not None,
            earlier=earlier,
            last=last,
            arguments=arguments,
        )

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    @with_parameters(config)
    def training(run_id: str, output: str, champion: str, parameters: Channels) -> None:
        training_steps(config, platform, run_id, output, Champion(champion, champion), parameters)

    return training


def compile_to(path: Path, config: RunConfig, platform: PlatformSteps | None = None) -> None:
    """Write the pipeline spec of a configuration; see `pipeline`."""
    compiler.Compiler().compile(pipeline(config, platform=platform), str(path))
