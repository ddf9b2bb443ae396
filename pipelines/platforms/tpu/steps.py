"""The platform whose train step requests a Cloud TPU; all other steps run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway import steps
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.local.steps import LocalSteps
from slipway.pipelines.platforms.tpu.checks import request_of

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask
    from kfp.dsl.pipeline_channel import PipelineArtifactChannel, PipelineParameterChannel

    from slipway.pipelines.platforms.steps import Text


class TpuSteps(LocalSteps):
    """Processes on this machine, and the container `trainer` on the machines of a TPU."""

    def __init__(self, trainer: str) -> None:
        super().__init__()
        self._trainer = trainer

    def build_image(self) -> str:
        return self._trainer

    def readers(self, config: RunConfig) -> int:
        return config.readers

    def train(
        self,
        config: RunConfig,
        worker_pool_specs: PipelineParameterChannel,
        dataset: PipelineArtifactChannel,
        output: Text,
        access: PipelineTask | None,  # noqa: ARG002
    ) -> PipelineTask:
        return self.add(
            steps.train,
            worker_pool_specs,
            dataset,
            output=output,
            restarts=config.train.restarts,
            tpu=request_of(config),
        )
