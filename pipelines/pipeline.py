"""The training pipeline: its steps in order, independent of the platform."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kfp import dsl

from slipway import extensions, steps
from slipway.pipelines.config.config import ALWAYS
from slipway.pipelines.parameters import section

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask
    from kfp.dsl.pipeline_channel import PipelineArtifactChannel

    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.parameters import Channels
    from slipway.pipelines.platforms.steps import Champion, PlatformSteps, Text

PROMOTE = "promote"


def training_steps(
    config: RunConfig, platform: PlatformSteps, run_id: Text, output: Text, champion: Champion, parameters: Channels
) -> None:
    """Define the steps; call this inside a pipeline function.

    Args:
        config: The run's configuration.
        platform: How the steps run.
        run_id: The run's id: a pipeline parameter or a placeholder.
        output: The base output directory of training: a pipeline parameter or a placeholder.
        champion: The registered model to beat.
        parameters: The parameters of the pipeline by name; see `slipway.pipelines.parameters`.
    """
    image = platform.build_image()
    access = platform.setup_access(config)
    dataset = uri = None  # of a custom program that has its own data
    if config.prepared is not None:
        data = section("data", platform.data(config.prepared), config, parameters)
        readers = platform.readers(config)
        prepared = platform.add(steps.prepare_data, data, task=config.task, readers=readers, output=output)
        if platform.preparing_starts_machines(config):  # as training does
            first = (access, None if isinstance(image, str) else image.task)
            prepared.after(*(task for task in first if task is not None))
        dataset = prepared.outputs["dataset"]
        if not platform.includes("plan_training"):
            return
    elif config.data is not None:
        uri = section("data", config.data, config, parameters)["uri"]
    with _when(config, platform, dataset, champion):
        _train(config, platform, dataset, uri, image, access, run_id, output, champion, parameters)


def _when(
    config: RunConfig, platform: PlatformSteps, dataset: PipelineArtifactChannel | None, champion: Champion
) -> AbstractContextManager[None]:
    """Return the context in which tasks are added that run only if the condition of the run, if it has one, holds."""
    if dataset is None or config.when == ALWAYS or not platform.compares:
        return contextlib.nullcontext()
    context: AbstractContextManager[None] = extensions.load(extensions.conditions()[config.when].context)(
        platform, dataset, champion
    )
    return context


def _train(
    config: RunConfig,
    platform: PlatformSteps,
    dataset: PipelineArtifactChannel | None,
    uri: Text | None,
    image: Text,
    access: PipelineTask | None,
    run_id: Text,
    output: Text,
    champion: Champion,
    parameters: Channels,
) -> None:
    """Add the steps from the plan on; see `training_steps` for the arguments."""
    planned = platform.add(
        steps.plan_training,
        dataset,
        uri=uri,
        train=section("train", platform.training(config), config, parameters),
        model=config.model,
        worker_pools=config.worker_pools(),
        devices=config.training_hardware.accelerators_per_replica,
        memory=platform.memory,
        hosts=config.training_hardware.machines_per_replica,
        metric=platform.metric,
        slices=config.evaluate.slice_columns if dataset else (),
        trainer_image=image,
    )
    trained = platform.train(config, planned.output, dataset, output, access)
    if not platform.evaluates(config):
        return
    model = trained.outputs["model"]
    gate = section("evaluate", config.evaluate, config, parameters)
    evaluation = platform.add(
        steps.evaluate,
        model,
        dataset,
        uri=uri,
        settings=gate,
        champion=champion.uri,
        serve_module=config.serve.module,
        run=run_id,
    )
    if platform.registers:
        with dsl.If(evaluation.outputs["Output"] == PROMOTE):
            registered = platform.register_model(config, model, evaluation, run_id, champion)
            platform.deploy(config, registered)
