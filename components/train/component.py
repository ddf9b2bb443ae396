"""The step train: run a job on this machine, or collect the model of a finished custom job."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train(
    worker_pool_specs: list,  # type: ignore[type-arg]
    output: str,
    virtual_devices: int,
    restarts: str,
    train_job: str,
    model: Output[Model],
    metrics: Output[Metrics],
    tpu: str = "",
    search: str = "",
    dataset: Input[Dataset] = None,
) -> None:
    """Run the worker pools as processes on this machine, or in this container, as the pods of a TrainJob or on a TPU.

    In a rehearsal of a custom program (the environment variable SLIPWAY_REHEARSAL_STEPS), its model is not published.

    Args:
        worker_pool_specs: The output of plan_training.
        output: The base output directory (folder or URI) for model, checkpoints and logs; "" for the parent of the
            artifact `model`.
        virtual_devices: Number of virtual devices per replica in place of accelerators; 0 for none.
        restarts: RestartSettings as JSON.
        train_job: TrainJobSettings as JSON, for the pods of a TrainJob on the cluster of this container; "" for
            processes.
        model: The trained model.
        metrics: Its metrics on the validation split.
        tpu: TpuRequest as JSON, for a Cloud TPU that this step requests, watches and deletes; "" for processes.
        search: SearchSettings as JSON, for trials that train by TrainJobs, of which the best one's model is published;
            "" for one training.
        dataset: The prepared data set that the pools' commands refer to; declared as an input so that the platform
            mounts it if it is in an object store. None if there is none. It is copied to the bucket of a TPU.
    """
    import json
    import os
    from dataclasses import asdict
    from pathlib import Path

    from slipway.components.inputs import read
    from slipway.components.step import step
    from slipway.components.train.local_cluster import run_local_cluster
    from slipway.components.train.result import publish, rehearsed_steps
    from slipway.core.paths import REHEARSAL_VARIABLE, local_path
    from slipway.core.values import whole_numbers, write_metadata
    from slipway.trainer.config import RestartSettings

    with step("train") as outcome:
        output = output or model.uri.rpartition("/")[0]
        pools, policy = whole_numbers(worker_pool_specs), read(RestartSettings, "train.restarts", restarts)
        data, found = Path(dataset.path) if dataset else None, {}
        if search:
            from slipway.components.train.trainjob.manifest import TrainJobSettings
            from slipway.components.train.trainjob.search import run_search
            from slipway.components.train.tuning import SearchSettings

            pods, how = TrainJobSettings.model_validate_json(train_job), SearchSettings.model_validate_json(search)
            best = run_search(pools, output, pods, how, restarts=policy)
            output, restarted = best.output, best.restarts
            found = {"trial": str(best.trial), "parameters": json.dumps(best.parameters)}
        elif train_job:
            from slipway.components.train.trainjob.job import run_train_job
            from slipway.components.train.trainjob.manifest import TrainJobSettings

            pods = TrainJobSettings.model_validate_json(train_job)
            restarted = run_train_job(pools, output, pods, restarts=policy)
        elif tpu:
            from slipway.components.train.tpu.job import train_on_tpu
            from slipway.components.train.tpu.settings import TpuRequest

            restarted = train_on_tpu(TpuRequest.model_validate_json(tpu), pools[0], Path(output), data, policy)
        else:
            folder = local_path(output)
            restarted = run_local_cluster(pools, folder, virtual_devices=virtual_devices, restarts=policy)
        rehearsed = REHEARSAL_VARIABLE in os.environ
        result = rehearsed_steps(output) if rehearsed else publish(output, model, metrics, data)
        outcome.outputs = {"data": dataset.uri if dataset else None, **result, **found}
        model.metadata.update(found)
        outcome.outputs["restarts"] = [asdict(restart) for restart in restarted]
        write_metadata(metrics)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def collect_model(
    job: str,
    output: str,
    model: Output[Model],
    metrics: Output[Metrics],
    place: str = "",
    dataset: Input[Dataset] = None,
) -> str:
    """Publish the model in a job's base output directory (a gs:// URI); return the model's URI.

    Args:
        job: The resource of the finished job, from its launcher; "" if it ended in an earlier attempt.
        output: The job's base output directory.
        model: The trained model.
        metrics: Its metrics on the validation split.
        place: Project, region and endpoints as JSON (the fields of Connection), if the job is a search: the model is
            its best trial's. "" for a custom job.
        dataset: The prepared data set on which it was trained; None if there is none.
    """
    import json
    from pathlib import Path

    from slipway.components.step import step
    from slipway.components.train.result import publish

    with step("collect_model") as outcome:
        data, found = Path(dataset.path) if dataset else None, {}
        if place:
            from slipway.components.cloud.connection import Connection
            from slipway.components.train.search import find_best

            search = find_best(Connection(**json.loads(place)), job, output)
            output = search.output
            found = {"trial": search.best.id, "parameters": json.dumps(search.best.parameters)}
        outcome.outputs = {"job": job, **publish(output, model, metrics, data), **found}
        model.metadata.update(found)
    return model.uri
