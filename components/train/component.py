"""The step train: run a job."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train(
    worker_pool_specs: list,  # type: ignore[type-arg]
    output: str,
    virtual_devices: int,
    restarts: str,
    model: Output[Model],
    metrics: Output[Metrics],
    backend: str = "",
    dataset: Input[Dataset] = None,
) -> None:
    """Run the worker pools as processes on this machine, or in this container, or on another backend.

    In a rehearsal of a custom program (the environment variable SLIPWAY_REHEARSAL_STEPS), its model is not published.

    Args:
        worker_pool_specs: The output of plan_training.
        output: The base output directory (folder or URI) for model, checkpoints and logs; "" for the parent of the
            artifact `model`.
        virtual_devices: Number of virtual devices per replica in place of accelerators; 0 for none.
        restarts: RestartSettings as JSON.
        model: The trained model.
        metrics: Its metrics on the validation split.
        backend: What trains elsewhere, as JSON; see slipway.components.train.backends. "" for processes.
        dataset: The prepared data set that the pools' commands refer to; declared as an input so that the platform
            mounts it if it is in an object store. None if there is none. A backend may copy it.
    """
    import os
    from dataclasses import asdict
    from pathlib import Path

    from slipway.components.inputs import read
    from slipway.components.step import step
    from slipway.components.train.backends import Trained, train_on
    from slipway.components.train.local_cluster import run_local_cluster
    from slipway.components.train.result import publish, rehearsed_steps
    from slipway.core.paths import REHEARSAL_VARIABLE, local_path
    from slipway.core.values import whole_numbers, write_metadata
    from slipway.trainer.config import RestartSettings

    with step("train") as outcome:
        output = output or model.uri.rpartition("/")[0]
        pools, policy = whole_numbers(worker_pool_specs), read(RestartSettings, "train.restarts", restarts)
        data = Path(dataset.path) if dataset else None
        if backend:
            trained = train_on(backend, pools, output, data, policy)
        else:
            replicas = run_local_cluster(pools, local_path(output), virtual_devices=virtual_devices, restarts=policy)
            trained = Trained(output, replicas)
        rehearsed = REHEARSAL_VARIABLE in os.environ
        result = rehearsed_steps(trained.output) if rehearsed else publish(trained.output, model, metrics, data)
        outcome.outputs = {"data": dataset.uri if dataset else None, **result, **trained.facts}
        model.metadata.update(trained.facts)
        outcome.outputs["restarts"] = [asdict(restart) for restart in trained.restarts]
        write_metadata(metrics)
