"""The step plan_training: what every worker pool will run."""

from kfp import dsl
from kfp.dsl import Dataset, Input


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def plan_training(
    pools: list,  # type: ignore[type-arg]
    devices: int,
    model: str,
    train: str,
    image: str,
    memory: int,
    dataset: Input[Dataset],
) -> list:  # type: ignore[type-arg]
    """Give the complete worker_pool_specs (a list, as a custom job takes it).

    Args:
        pools: The hardware's worker pools, without containers.
        devices: How many accelerators a replica has.
        model: ModelSettings as JSON; "" with a training module of the user's own.
        train: TrainSettings as JSON.
        image: The image that the workers run, "" for the Python at hand.
        memory: The bytes that all replicas have together on this machine, in a rehearsal; 0: nothing is to be fitted.
        dataset: The prepared data set.
    """
    from pathlib import Path

    from slipway.components.plan_training.plan import plan_training as work
    from slipway.components.step import step
    from slipway.core import manifest
    from slipway.core.values import whole_numbers
    from slipway.trainer.config import ModelSettings, TrainSettings

    with step("plan_training") as outcome:
        result = work(
            pools=whole_numbers(pools),
            devices=devices,
            manifest=manifest.read(Path(dataset.path)),
            data=dataset.uri,
            model=ModelSettings.model_validate_json(model) if model else None,
            train=TrainSettings.model_validate_json(train),
            image=image,
            memory=memory,
        )
        outcome.outputs = (
            result.plan.model_dump() if result.plan else {"module": TrainSettings.model_validate_json(train).module}
        )
    return result.worker_pool_specs
