"""Training by TrainJobs on the cluster of the step's container: one, or one for each trial of a search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from slipway.components.train.backends import Backend, Trained
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.components.train.tuning import SearchSettings
from slipway.components.worker_pools import WorkerPool
from slipway.core.values import JsonObject
from slipway.trainer.config import RestartSettings


class TrainJobs(Backend):
    """TrainJobs on Kubernetes; the step's task has to mount their volume, which has the output directory."""

    name: ClassVar[str] = "trainjob"
    pods: TrainJobSettings = Field(description="What the pods of a TrainJob have, one per replica.")
    search: SearchSettings | None = Field(
        default=None, description="How to search for better settings; null: one training."
    )


def train(
    settings: JsonObject,
    pools: list[WorkerPool],
    output: str,
    dataset: Path | None,  # noqa: ARG001
    restarts: RestartSettings,
) -> Trained:
    """Train with the settings of `TrainJobs`; see `slipway.components.train.backends.train_on`."""
    jobs = TrainJobs.model_validate(settings)
    if jobs.search is None:
        from slipway.components.train.trainjob.job import run_train_job

        return Trained(output, run_train_job(pools, output, jobs.pods, restarts=restarts))
    from slipway.components.train.trainjob.search import run_search

    best = run_search(pools, output, jobs.pods, jobs.search, restarts=restarts)
    facts = {"trial": str(best.trial), "parameters": json.dumps(best.parameters)}
    return Trained(best.output, best.restarts, facts)
