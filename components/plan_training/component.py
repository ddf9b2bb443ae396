"""The step plan_training: compute the worker pools' specifications."""

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
    hosts: int,
    slices: list,  # type: ignore[type-arg]
    uri: str = "",
    metric: str = "",
    dataset: Input[Dataset] = None,
) -> list:  # type: ignore[type-arg]
    """Return the complete worker_pool_specs of a custom job.

    Args:
        pools: The hardware's worker pools, without containers: replica_count, machine_spec, optionally disk_spec.
        devices: Number of accelerators per replica.
        model: ModelSettings as JSON; "" for a custom program.
        train: TrainSettings as JSON.
        image: The image that the workers run, "" for the current Python environment.
        memory: In a rehearsal, the memory in bytes for all replicas on this machine: a batch that does not fit is
            reduced, with a message. 0 disables fitting.
        hosts: Number of machines per replica: 1, except for TPU slices. Each reads and trains as a replica does.
        slices: The columns and conditions by which the evaluation divides the test split: checked here, so that a wrong
            one does not cost a training.
        uri: The data that a custom program receives as they are, if no data set is prepared; "" for none.
        metric: The metric on the validation split that the trials of a search on Vertex AI report; "" for no search.
        dataset: The prepared data set; None if there is none.
    """
    import shlex
    from pathlib import Path

    from slipway.components.inputs import read
    from slipway.components.plan_training.plan import plan_training as work
    from slipway.components.step import step
    from slipway.core import manifest
    from slipway.core.values import whole_numbers
    from slipway.trainer.config import ModelSettings, TrainSettings

    with step("plan_training") as outcome:
        how, data = read(TrainSettings, "train", train), manifest.read(Path(dataset.path)) if dataset else None
        if data and slices:
            from slipway.components.evaluate.slices import check  # imports numpy

            check(slices, data)
        result = work(
            pools=whole_numbers(pools),
            devices=devices,
            manifest=data,
            data=dataset.uri if dataset else uri,
            model=read(ModelSettings, "model", model) if model else None,
            train=how,
            image=image,
            memory=memory,
            hosts=hosts,
            metric=metric,
        )
        program = shlex.join(how.command or ()) or f"the entry point of {how.image}"
        program = f"python -m {how.module}" if how.module else program
        outcome.outputs = result.plan.model_dump() if result.plan else {"program": program}
    return result.worker_pool_specs
