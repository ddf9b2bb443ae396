"""The training pipeline: its seven steps in order, independent of the platform."""

from __future__ import annotations

from typing import Any, Protocol

from kfp import dsl

from slipway.pipelines.config.config import RunConfig

PROMOTE = "promote"


class Platform(Protocol):
    """The op of each step on one platform; a step that the platform does not have returns None.

    Tasks have outputs by name, as in kfp: prepare_data `dataset`; train `model`; evaluate `Output` (the verdict) and
    `metrics`. `registers` is false if no model is registered.
    """

    registers: bool

    def build_image(self, config: RunConfig) -> Any: ...
    def setup_access(self, config: RunConfig) -> Any: ...
    def prepare_data(self, config: RunConfig) -> Any: ...
    def plan_training(self, config: RunConfig, dataset: Any, image: Any) -> Any: ...
    def train(self, config: RunConfig, worker_pool_specs: Any, dataset: Any, output: Any) -> Any: ...
    def evaluate(self, config: RunConfig, model: Any, dataset: Any, champion: Any) -> Any: ...
    def register_model(self, config: RunConfig, trained: Any, evaluation: Any, run_id: Any, champion: Any) -> Any: ...


def plan_arguments(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of plan_training, which are the same on every platform."""
    return {
        "pools": config.parsed_hardware.worker_pools(),
        "devices": config.parsed_hardware.accelerators_per_replica,
        "model": config.model.model_dump_json() if config.model else "",
        "train": config.train.model_dump_json(exclude_none=True, exclude={"restarts"}),  # for the step train
    }


def training_steps(config: RunConfig, platform: Platform, run_id: Any, output: Any, champion: Any) -> None:
    """Define the steps; call this inside a pipeline function.

    Args:
        config: The run's configuration.
        platform: Returns the op of each step.
        run_id: The run's id: a pipeline parameter or a placeholder.
        output: The base output directory of training: a pipeline parameter or a placeholder.
        champion: The registered model to beat, in the form that the platform's steps accept.
    """
    image = platform.build_image(config)
    access = platform.setup_access(config)
    prepared = platform.prepare_data(config)
    planned = platform.plan_training(config, prepared.outputs["dataset"], image)
    trained = platform.train(config, planned.output, prepared.outputs["dataset"], output)
    if access is not None:
        trained.after(access)
    evaluation = platform.evaluate(config, trained.outputs["model"], prepared.outputs["dataset"], champion)
    if platform.registers:
        with dsl.If(evaluation.outputs["Output"] == PROMOTE):
            platform.register_model(config, trained, evaluation, run_id, champion)
