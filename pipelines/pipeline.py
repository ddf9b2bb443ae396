"""The training pipeline: its seven steps in order, independent of the platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp import dsl

from slipway import steps

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Champion, Platform, Text

PROMOTE = "promote"


def training_steps(config: RunConfig, platform: Platform, run_id: Text, output: Text, champion: Champion) -> None:
    """Define the steps; call this inside a pipeline function.

    Args:
        config: The run's configuration.
        platform: How the steps run.
        run_id: The run's id: a pipeline parameter or a placeholder.
        output: The base output directory of training: a pipeline parameter or a placeholder.
        champion: The registered model to beat.
    """
    image = platform.build_image()
    access = platform.setup_access(config)
    prepared = platform.add(steps.prepare_data, platform.data(config), readers=platform.readers(config))
    if config.data.beam is not None:  # Beam may start machines (Dataflow), as training does
        prepared.after(*(task for task in (access, None if isinstance(image, str) else image.task) if task is not None))
    dataset = prepared.outputs["dataset"]
    planned = platform.add(
        steps.plan_training,
        dataset,
        train=config.train,
        model=config.model,
        worker_pools=config.parsed_hardware.worker_pools(),
        devices=config.parsed_hardware.accelerators_per_replica,
        memory=platform.memory,
        hosts=config.parsed_hardware.machines_per_replica,
        trainer_image=image,
    )
    trained = platform.train(config, planned.output, dataset, output, access)
    model = trained.outputs["model"]
    evaluation = platform.add(steps.evaluate, model, dataset, settings=config.evaluate, champion=champion.uri)
    if platform.registers:
        with dsl.If(evaluation.outputs["Output"] == PROMOTE):
            platform.register_model(config, model, evaluation, run_id, champion)
