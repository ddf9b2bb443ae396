"""Each step's op on this machine, and the pipeline that they make.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

from typing import Any

import psutil
from kfp import dsl

from components.evaluate.component import evaluate
from components.plan_training.component import plan_training
from components.prepare_data.component import prepare_data
from components.register_model.component import register_model
from components.train.component import train
from pipelines.config import RunConfig
from pipelines.training import training_steps

# How much of the memory that is free a rehearsal's batches may take: the replicas themselves need some.
MEMORY_SHARE = 0.5


class LocalPlatform:
    """Processes on this machine. The image and the access to a cloud are left out; a rehearsal registers nothing."""

    def __init__(self, *, rehearsal: bool = False) -> None:
        self.rehearsal = rehearsal
        self.registers = not rehearsal

    def build_image(self, config: RunConfig) -> Any:  # noqa: ARG002
        return None

    def setup_access(self, config: RunConfig) -> Any:  # noqa: ARG002
        return None

    def prepare_data(self, config: RunConfig) -> Any:
        return prepare_data(settings=config.data.model_dump_json(), replicas=config.parsed_hardware.replicas)

    def plan_training(self, config: RunConfig, dataset: Any, image: Any) -> Any:
        return plan_training(
            pools=config.parsed_hardware.worker_pools(),
            devices=config.parsed_hardware.accelerators_per_replica,
            model=config.model.model_dump_json(),
            train=config.train.model_dump_json(exclude_none=True),
            image=image or "",
            memory=int(psutil.virtual_memory().available * MEMORY_SHARE) if self.rehearsal else 0,
            dataset=dataset,
        )

    def train(self, config: RunConfig, worker_pool_specs: Any, output: Any) -> Any:
        virtual = config.parsed_hardware.accelerators_per_replica if self.rehearsal else 0
        restarts = config.train.restarts.model_dump_json()
        return train(worker_pool_specs=worker_pool_specs, output=output, virtual_devices=virtual, restarts=restarts)

    def evaluate(self, config: RunConfig, model: Any, dataset: Any, champion: Any) -> Any:
        return evaluate(settings=config.evaluate.model_dump_json(), model=model, dataset=dataset, champion=champion)

    def register_model(self, config: RunConfig, trained: Any, evaluation: Any, run_id: Any, champion: Any) -> Any:
        return register_model(
            settings=config.register_.model_dump_json(),
            model_name=config.model_name,
            run_id=run_id,
            verdict=evaluation.outputs["Output"],
            champion=champion,
            model=trained.outputs["model"],
            metrics=evaluation.outputs["metrics"],
        )


def pipeline(config: RunConfig, *, rehearsal: bool = False) -> Any:
    """The pipeline for this machine; its parameters are the run's id, its training output and the champion's folder."""
    platform = LocalPlatform(rehearsal=rehearsal)

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.model.builder} on {config.data.source}")
    def training(run_id: str, output: str, champion: str = "") -> None:
        training_steps(config, platform, run_id, output, champion)

    return training
