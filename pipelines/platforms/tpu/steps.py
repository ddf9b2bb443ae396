"""The platform whose train step requests a Cloud TPU; all other steps run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.components.train.component import train_on_tpu
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
            train_on_tpu,
            worker_pool_specs=worker_pool_specs,
            output=output,
            request=request_of(config).model_dump_json(),
            restarts=config.train.restarts.model_dump_json(),
            dataset=dataset,
        )
