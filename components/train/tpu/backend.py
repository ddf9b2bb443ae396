"""Training on a Cloud TPU that the step requests, watches and deletes."""

from __future__ import annotations

from pathlib import Path

from slipway.components.train.backends import Trained
from slipway.components.train.tpu.settings import TpuRequest
from slipway.components.worker_pools import WorkerPool
from slipway.core.values import JsonObject
from slipway.trainer.config import RestartSettings


def train(
    settings: JsonObject, pools: list[WorkerPool], output: str, dataset: Path | None, restarts: RestartSettings
) -> Trained:
    """Train with the settings of `TpuRequest`; see `slipway.components.train.backends.train_on`."""
    from slipway.components.train.tpu.job import train_on_tpu

    request = TpuRequest.model_validate(settings)
    return Trained(output, train_on_tpu(request, pools[0], Path(output), dataset, restarts))
