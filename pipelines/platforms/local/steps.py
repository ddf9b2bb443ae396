"""Each step's op on this machine, and the pipeline that they make.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

import os
from typing import Any

import psutil
from kfp import dsl

from slipway.components.evaluate.component import evaluate
from slipway.components.plan_training.component import plan_training
from slipway.components.prepare_data.component import prepare_data
from slipway.components.register_model.component import register_model
from slipway.components.train.component import train
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.pipeline import plan_arguments, training_steps
from slipway.trainer.distributed.accelerators import find
from slipway.trainer.engines import table

# How much of the memory that is free a rehearsal's batches may take: the replicas themselves need some.
MEMORY_SHARE = 0.5


class LocalPlatform:
    """Processes on this machine, or containers of `image` where that is given.

    The image is made before the pipeline is; the access to a cloud is left out; a rehearsal registers nothing.
    """

    def __init__(self, *, rehearsal: bool = False, image: str = "") -> None:
        self.rehearsal = rehearsal
        self.image = image
        self.registers = not rehearsal

    def build_image(self, config: RunConfig) -> Any:  # noqa: ARG002
        return self.image or None

    def setup_access(self, config: RunConfig) -> Any:  # noqa: ARG002
        return None

    def prepare_data(self, config: RunConfig) -> Any:
        readers = config.readers
        if not self.rehearsal:  # replicas share this machine's devices, of which the configuration does not tell
            readers = max(readers, table.readers(config.train.engine, 1, find(os.environ).count))
        return self._step(prepare_data)(settings=config.data.model_dump_json(), replicas=readers)

    def plan_training(self, config: RunConfig, dataset: Any, image: Any) -> Any:
        return self._step(plan_training)(
            **plan_arguments(config),
            image=image or "",
            memory=int(psutil.virtual_memory().available * MEMORY_SHARE) if self.rehearsal else 0,
            dataset=dataset,
        )

    def train(self, config: RunConfig, worker_pool_specs: Any, dataset: Any, output: Any) -> Any:
        virtual = config.parsed_hardware.accelerators_per_replica if self.rehearsal else 0
        return self._step(train)(
            worker_pool_specs=worker_pool_specs,
            output=output,
            virtual_devices=virtual,
            restarts=config.train.restarts.model_dump_json(),
            dataset=dataset,
        )

    def evaluate(self, config: RunConfig, model: Any, dataset: Any, champion: Any) -> Any:
        return self._step(evaluate)(
            settings=config.evaluate.model_dump_json(), model=model, dataset=dataset, champion=champion
        )

    def register_model(self, config: RunConfig, trained: Any, evaluation: Any, run_id: Any, champion: Any) -> Any:
        return self._step(register_model)(
            settings=config.register_.model_dump_json(),
            model_name=config.model_name,
            run_id=run_id,
            verdict=evaluation.outputs["Output"],
            champion=champion,
            model=trained.outputs["model"],
            metrics=evaluation.outputs["metrics"],
        )

    def _step(self, component: Any) -> Any:
        if not self.image:
            return component
        return dsl.component(component.python_func, base_image=self.image, install_kfp_package=False)


def pipeline(config: RunConfig, *, rehearsal: bool = False, image: str = "") -> Any:
    """The pipeline for this machine, in containers of `image` where that is given.

    Its parameters are the run's id, its training output and the champion's folder.
    """
    platform = LocalPlatform(rehearsal=rehearsal, image=image)

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    def training(run_id: str, output: str, champion: str = "") -> None:
        training_steps(config, platform, run_id, output, champion)

    return training
