"""Slipway's steps for KFP pipelines; see docs/steps.md.

Each function adds a task to the pipeline that is being defined and returns it. `image` is the container image that the
task runs in; without it, the pipeline can only run on this machine, with `kfp.local`. Settings are a settings object, a
mapping with its fields, or a pipeline parameter or an output of a task: a dict, or the settings as JSON. Values in a
mapping may be pipeline parameters, items of loops and outputs of tasks. Objects and mappings are validated when the
pipeline is defined, and the values of parameters by the step. Slipway's own pipeline (`slipway.pipelines.pipeline`)
uses the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slipway import extensions
from slipway.components.evaluate import component as _evaluate
from slipway.components.plan_training import component as _plan_training
from slipway.components.prepare_data import component as _prepare_data
from slipway.components.register_model import component as _register_model
from slipway.components.tasks import Place, add, on_image, section
from slipway.components.train import component as _train

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask
    from kfp.dsl.pipeline_channel import PipelineParameterChannel

    from slipway.components.evaluate.settings import EvaluateSettings
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.register_model.registry import RegisterSettings
    from slipway.components.tasks import Artifact, Fields, Number, Text
    from slipway.components.train.backends import Backend
    from slipway.core.manifest import TaskName
    from slipway.trainer.config import ModelSettings, RestartSettings, TrainSettings

__all__ = [
    "Place",
    "evaluate",
    "find_champion_folder",
    "on_image",
    "plan_training",
    "prepare_data",
    "register_model",
    "train",
]
ONE_REPLICA: Sequence[Mapping[str, object]] = ({"replica_count": 1},)


def prepare_data(
    data: DataSettings | Fields,
    *,
    task: TaskName = "classification",
    readers: int = 1,
    output: Text = "",
    folds: Number | None = None,
    fold: Number | None = None,
    image: Place = "",
) -> PipelineTask:
    """Prepare a data set, or reuse it if the source is unchanged. Outputs: `dataset`, `statistics` (an HTML page).

    The step itself decides, so it is not cached: a platform's cache sees the settings, not what is in the source.

    Args:
        data: The `data` section of a run's configuration. If `store` is "", the data set is stored with the task's
            artifacts.
        task: What is learned: classification, multilabel or regression.
        readers: Number of processes that will read the data set.
        output: The run's base output directory, if the run can be resumed: it then keeps its data set.
        folds: Number of folds of a cross-validation, of a source without splits; None for none.
        fold: The fold that is the test split, from 0.
        image: The container image of the task.
    """
    from slipway.components.prepare_data.settings import DataSettings

    settings = section(DataSettings, data)
    added = add(
        _prepare_data.prepare_data,
        image,
        settings=settings,
        replicas=readers,
        output=output,
        task=task,
        folds=folds,
        fold=fold,
    )
    return added.set_caching_options(False)


def plan_training(
    dataset: Artifact | None = None,
    *,
    uri: Text | None = None,
    train: TrainSettings | Fields,
    model: ModelSettings | Fields | None = None,
    worker_pools: Sequence[Mapping[str, object]] = ONE_REPLICA,
    devices: int = 0,
    memory: int = 0,
    hosts: int = 1,
    slices: Sequence[str] = (),
    metric: str = "",
    trainer_image: Text = "",
    image: Place = "",
) -> PipelineTask:
    """Divide the training among the replicas. Output: `Output`, the worker_pool_specs of a Vertex AI custom job.

    Args:
        dataset: A prepared data set; None for a custom program that has its own data.
        uri: The data that such a program receives, as they are; None for none.
        train: The `train` section of a run's configuration.
        model: The `model` section; None for a custom program.
        worker_pools: Vertex AI worker pools without containers.
        devices: Number of accelerators per replica.
        memory: Memory in bytes to which the batch size is reduced; 0 for no limit.
        hosts: Number of machines per replica: 1, except for TPU slices.
        slices: The columns and conditions of `evaluate.slices`, to check them before the training.
        metric: The metric on the validation split that the trials of a search on Vertex AI report; "" for no search.
        trainer_image: The container image of the replicas; "" for the Python environment of the task `train`.
        image: The container image of the task.
    """
    from slipway.trainer.config import ModelSettings, TrainSettings

    return add(
        _plan_training.plan_training,
        image,
        pools=list(worker_pools),
        devices=devices,
        model="" if model is None else section(ModelSettings, model),
        # The task `train` has the restarts; a change of them leaves the plan in the cache.
        train=section(TrainSettings, train, without="restarts"),
        image=trainer_image,
        memory=memory,
        hosts=hosts,
        slices=list(slices),
        metric=metric,
        uri=uri or "",
        dataset=dataset,
    )


def train(
    worker_pool_specs: PipelineParameterChannel,
    dataset: Artifact | None = None,
    *,
    output: Text = "",
    restarts: RestartSettings | Fields | None = None,
    virtual_devices: int = 0,
    backend: Backend | None = None,
    image: Place = "",
) -> PipelineTask:
    """Train on the machine of the task, one process per replica. Outputs: `model`, `metrics` of the validation split.

    To train on machines of their own, pass a `backend`; on Vertex AI, pass the plan to `CustomTrainingJobOp` and its
    job to `collect_model`.

    Args:
        worker_pool_specs: The output of `plan_training`.
        dataset: The data set that was planned for; None if there is none.
        output: Folder or URI for model, checkpoints and logs; "" for the task's artifacts.
        restarts: Limit and backoff of restarts; None for the defaults.
        virtual_devices: Number of virtual devices per replica in place of accelerators.
        backend: What trains on other machines: the settings of an extension's backend, such as TrainJobs; None to train
            in the task's container.
        image: The container image of the task.
    """
    from slipway.trainer.config import RestartSettings

    return add(
        _train.train,
        image,
        worker_pool_specs=worker_pool_specs,
        output=output,
        virtual_devices=virtual_devices,
        restarts=section(RestartSettings, restarts),
        backend="" if backend is None else backend.as_json(),
        dataset=dataset,
    )


def evaluate(
    model: Artifact,
    dataset: Artifact | None = None,
    *,
    uri: Text | None = None,
    settings: EvaluateSettings | Fields | None = None,
    champion: Text = "none",
    serve_module: str | None = None,
    run: Text = "",
    seed_metrics: Sequence[float] = (),
    image: Place = "",
) -> PipelineTask:
    """Measure a model, by default on the test split, and apply the gate.

    Outputs: `Output` ("promote", "reject", "unchanged" or "not comparable"), `metrics`, `classification`, `report` (an
    HTML page).

    Args:
        model: A trained model.
        dataset: The prepared data set; None for a custom program that has its own data.
        uri: The data of such a program, for `evaluate.module`; None for none.
        settings: The `evaluate` section of a run's configuration; None for the defaults.
        champion: Folder or gs:// URI of the registered model to beat; "" or "none" for none.
        serve_module: What loads a custom program's model for serving, as module:function; a model that it cannot serve
            is rejected.
        run: The run's id, which the report names.
        seed_metrics: The gate's metric of the same training with other seeds: their mean has to be significantly
            better than the champion's metric, too, if the gate has a significance.
        image: The container image of the task.
    """
    from slipway.components.evaluate.settings import EvaluateSettings

    return add(
        _evaluate.evaluate,
        image,
        settings=section(EvaluateSettings, settings),
        uri=uri or "",
        model=model,
        dataset=dataset,
        champion=champion,
        serve_module=serve_module or "",
        run=run,
        seed_metrics=list(seed_metrics) or None,
    )


def find_champion_folder(registry: Text, model_name: Text, *, image: Place = "") -> PipelineTask:
    """Find the champion in a registry that is a folder. Output: `Output`, its folder; "" if there is none yet."""
    return add(_register_model.find_champion_folder, image, registry=registry, model_name=model_name)


def register_model(
    model: Artifact,
    metrics: Artifact,
    verdict: Text,
    *,
    model_name: Text,
    run_id: Text,
    settings: RegisterSettings | Fields | None = None,
    champion: Text = "none",
    serve_module: str | None = None,
    image: Place = "",
) -> PipelineTask:
    """Register a promoted model as the champion in a registry that is a folder. Output: `registered`.

    Args:
        model: The trained model.
        metrics: The metrics of `evaluate`.
        verdict: The verdict of `evaluate`; must be "promote".
        model_name: The model's name in the registry.
        run_id: The run that trained it; each run is registered once.
        settings: The `register` section of a run's configuration; None for the defaults.
        champion: The champion that `evaluate` compared with; "" if there was none, "none" to skip the comparison.
        serve_module: What loads a custom program's model, as module:function.
        image: The container image of the task.
    """
    from slipway.components.register_model.registry import RegisterSettings

    return add(
        _register_model.register_model,
        image,
        settings=section(RegisterSettings, settings),
        model_name=model_name,
        run_id=run_id,
        verdict=verdict,
        champion=champion,
        model=model,
        metrics=metrics,
        serve_module=serve_module or "",
    )


def __getattr__(name: str) -> Any:
    for extension in extensions.installed():
        if name in extension.steps:
            return extensions.load(extension.steps[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(name for extension in extensions.installed() for name in extension.steps)]
