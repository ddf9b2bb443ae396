"""The platform whose train step requests a Cloud TPU; all other steps run on this machine."""

from __future__ import annotations

from typing import Any

from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.local.steps import LocalSteps
from slipway.pipelines.platforms.tpu.checks import request_of


class TpuSteps(LocalSteps):
    """Processes on this machine, and the container `trainer` on the machines of a TPU."""

    def __init__(self, trainer: str) -> None:
        super().__init__()
        self._trainer = trainer

    def build_image(self) -> str:
        return self._trainer

    def readers(self, config: RunConfig) -> int:
        return config.readers

    def trained_on(self, config: RunConfig) -> dict[str, Any]:
        return {"backend": request_of(config)}
