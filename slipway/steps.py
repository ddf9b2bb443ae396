"""Slipway's steps for KFP pipelines; see docs/steps.md.

Each function adds a task to the pipeline that is being defined and returns it. `image` is the container image that the
task runs in; without it, the pipeline can only run on this machine, with `kfp.local`. Settings are a settings object, a
mapping with its fields, or a pipeline parameter or an output of a task: a dict, or the settings as JSON. Values in a
mapping may be pipeline parameters, items of loops and outputs of tasks. Objects and mappings are validated when the
pipeline is defined, and the values of parameters by the step. Slipway's own pipeline (`slipway.pipelines.pipeline`)
uses the same functions.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kfp import dsl
from kfp.compiler.pipeline_spec_builder import to_protobuf_value
from kfp.dsl.for_loop import LoopArgumentVariable, LoopParameterArgument
from kfp.dsl.pipeline_channel import (
    PipelineArtifactChannel,
    PipelineChannel,
    PipelineParameterChannel,
    extract_pipeline_channels_from_any,
)
from kfp.dsl.pipeline_context import Pipeline
from kfp.dsl.python_component import PythonComponent
from kfp.dsl.structures import InputSpec
from kfp.dsl.types import type_utils
from kfp.local import subprocess_task_handler
from kfp.local.orchestrator import task_spec_utils
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineTaskSpec
from pydantic import BaseModel, JsonValue, ValidationError

from slipway.components.check_drift import component as _check_drift
from slipway.components.deploy import component as _deploy
from slipway.components.evaluate import component as _evaluate
from slipway.components.inputs import PREFIX, reference, references, value_at
from slipway.components.plan_training import component as _plan_training
from slipway.components.prepare_data import component as _prepare_data
from slipway.components.register_model import component as _register_model
from slipway.components.train import component as _train
from slipway.core.errors import UserError

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask
    from kfp.dsl.base_component import BaseComponent

    from slipway.components.deploy.settings import Deployment
    from slipway.components.evaluate.settings import EvaluateSettings
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.register_model.registry import RegisterSettings
    from slipway.components.train.tpu.settings import TpuRequest
    from slipway.components.train.trainjob.manifest import TrainJobSettings
    from slipway.components.train.tuning import SearchSettings
    from slipway.core.manifest import TaskName
    from slipway.trainer.config import ModelSettings, RestartSettings, TrainSettings

    # The fields of a settings object, or what has them when the pipeline runs: as a dict or as JSON.
    Fields: TypeAlias = Mapping[str, object] | PipelineChannel
    Text: TypeAlias = str | PipelineParameterChannel
    Artifact: TypeAlias = PipelineArtifactChannel

# A container image, or a function that receives the component and returns the one to run instead.
Place: TypeAlias = "str | Callable[[BaseComponent], Callable[..., PipelineTask]]"

# kfp.local does not quote the interpreter's path in its shell script: with a space in it, no step would start.
_replace_interpreter = subprocess_task_handler.replace_python_executable
subprocess_task_handler.replace_python_executable = lambda command, python: _replace_interpreter(
    command, shlex.quote(python)
)


def _iteration(loop: PipelineTaskSpec, item: object, _name: str) -> PipelineTaskSpec:
    """Return the task of one of a loop's iterations; kfp.local's own has the item in place of tasks' outputs, too."""
    task = PipelineTaskSpec()
    task.CopyFrom(loop)
    constant = task.inputs.parameters[loop.parameter_iterator.item_input].runtime_value.constant
    constant.CopyFrom(to_protobuf_value(item))
    task.ClearField("parameter_iterator")
    return task


task_spec_utils.create_parameter_loop_iteration_task_spec = _iteration

__all__ = [
    "Place",
    "check_drift",
    "collect_model",
    "deploy_model",
    "evaluate",
    "find_champion",
    "find_champion_folder",
    "on_image",
    "plan_training",
    "prepare_data",
    "register_model",
    "register_version",
    "train",
]
ONE_REPLICA: Sequence[Mapping[str, object]] = ({"replica_count": 1},)


def on_image(component: BaseComponent, image: Place) -> Callable[..., PipelineTask]:
    """Return a Python component that runs in the container image `image`; "" returns it unchanged."""
    if callable(image):
        return image(component)
    placed: Callable[..., PipelineTask] = component
    if image:
        built = dsl.component(component.python_func, base_image=image, install_kfp_package=False)
        # The inputs of its function, and those of `_with_inputs`.
        placed = _inputs_replaced(built, component.component_spec.inputs)
    return placed


def prepare_data(
    data: DataSettings | Fields, *, task: TaskName = "classification", readers: int = 1, output: Text = "",
    image: Place = "",
) -> PipelineTask:  # fmt: skip
    """Prepare a data set, or reuse it if the source is unchanged. Outputs: `dataset`, `statistics` (an HTML page).

    The step itself decides, so it is not cached: a platform's cache sees the settings, not what is in the source.

    Args:
        data: The `data` section of a run's configuration. If `store` is "", the data set is stored with the task's
            artifacts.
        task: What is learned: classification, multilabel or regression.
        readers: Number of processes that will read the data set.
        output: The run's base output directory, if the run can be resumed: it then keeps its data set.
        image: The container image of the task.
    """
    from slipway.components.prepare_data.settings import DataSettings

    settings = _section(DataSettings, data)
    added = _task(_prepare_data.prepare_data, image, settings=settings, replicas=readers, output=output, task=task)
    return added.set_caching_options(False)


def check_drift(dataset: Artifact, *, champion: Text, image: Place = "") -> PipelineTask:
    """Compare a data set with that of the champion. Outputs: `Output` ("drift" or "same"), `page` (an HTML page).

    Args:
        dataset: A prepared data set, in the store that has the champion's.
        champion: Folder or gs:// URI of the registered model; "" if there is none yet.
        image: The container image of the task.
    """
    return _task(_check_drift.check_drift, image, dataset=dataset, champion=champion)


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

    return _task(
        _plan_training.plan_training,
        image,
        pools=list(worker_pools),
        devices=devices,
        model="" if model is None else _section(ModelSettings, model),
        # The task `train` has the restarts; a change of them leaves the plan in the cache.
        train=_section(TrainSettings, train, without="restarts"),
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
    train_job: TrainJobSettings | None = None,
    tpu: TpuRequest | None = None,
    search: SearchSettings | None = None,
    image: Place = "",
) -> PipelineTask:
    """Train on the machine of the task, one process per replica. Outputs: `model`, `metrics` of the validation split.

    To train on machines of their own instead, pass `train_job` on Kubeflow; on Vertex AI, pass the plan to
    `CustomTrainingJobOp` and its job to `collect_model`.

    Args:
        worker_pool_specs: The output of `plan_training`.
        dataset: The data set that was planned for; None if there is none.
        output: Folder or URI for model, checkpoints and logs; "" for the task's artifacts.
        restarts: Limit and backoff of restarts; None for the defaults.
        virtual_devices: Number of virtual devices per replica in place of accelerators.
        train_job: What the pods of a TrainJob have that trains on the task's cluster, with a pod per replica; `output`
            must be on its volume, which the task has to mount. None to train in the task's container.
        tpu: The Cloud TPU VM that the task requests, on which it trains, and that it deletes; None to train in the
            task's container.
        search: How to search for better settings, by TrainJobs with what `train_job` says; the best trial's model is
            the output. None for one training.
        image: The container image of the task.
    """
    from slipway.trainer.config import RestartSettings

    return _task(
        _train.train,
        image,
        worker_pool_specs=worker_pool_specs,
        output=output,
        virtual_devices=virtual_devices,
        restarts=_section(RestartSettings, restarts),
        train_job="" if train_job is None else train_job.model_dump_json(),
        tpu="" if tpu is None else tpu.model_dump_json(),
        search="" if search is None else search.model_dump_json(),
        dataset=dataset,
    )


def collect_model(
    job: Text,
    output: Text,
    dataset: Artifact | None = None,
    *,
    connection: Mapping[str, object] | None = None,
    image: Place = "",
) -> PipelineTask:
    """Publish the model of a finished custom job, or of the best trial of a search.

    Outputs: `model`, `metrics` of the validation split.

    Args:
        job: The output `gcp_resources` of CustomTrainingJobOp or HyperparameterTuningJobRunOp; "" if the job ended in
            an earlier attempt of the run.
        output: The job's base output directory, a gs:// URI.
        dataset: The prepared data set on which the model was trained, if there is one.
        connection: As for `find_champion`, if the job is a search; None for a custom job.
        image: The container image of the task.
    """
    place = json.dumps(connection) if connection else ""
    return _task(_train.collect_model, image, job=job, output=output, place=place, dataset=dataset)


def evaluate(
    model: Artifact,
    dataset: Artifact | None = None,
    *,
    uri: Text | None = None,
    settings: EvaluateSettings | Fields | None = None,
    champion: Text = "none",
    serve_module: str | None = None,
    run: Text = "",
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
        image: The container image of the task.
    """
    from slipway.components.evaluate.settings import EvaluateSettings

    return _task(
        _evaluate.evaluate,
        image,
        settings=_section(EvaluateSettings, settings),
        uri=uri or "",
        model=model,
        dataset=dataset,
        champion=champion,
        serve_module=serve_module or "",
        run=run,
    )


def find_champion_folder(registry: Text, model_name: Text, *, image: Place = "") -> PipelineTask:
    """Find the champion in a registry that is a folder. Output: `Output`, its folder; "" if there is none yet."""
    return _task(_register_model.find_champion_folder, image, registry=registry, model_name=model_name)


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

    return _task(
        _register_model.register_model,
        image,
        settings=_section(RegisterSettings, settings),
        model_name=model_name,
        run_id=run_id,
        verdict=verdict,
        champion=champion,
        model=model,
        metrics=metrics,
        serve_module=serve_module or "",
    )


def find_champion(connection: Mapping[str, object], model_name: Text, *, image: Place = "") -> PipelineTask:
    """Find the champion in Vertex AI Model Registry. Outputs: `uri` (gs://) and `version`; "" if there is none yet.

    Args:
        connection: `project`, `region` and optionally `endpoints` (host by service).
        model_name: The model's name in the registry.
        image: The container image of the task.
    """
    return _task(_register_model.find_champion, image, place=json.dumps(connection), model_name=model_name)


def register_version(
    model: Artifact,
    metrics: Artifact,
    verdict: Text,
    *,
    connection: Mapping[str, object],
    model_name: str,
    container: Mapping[str, object],
    run_id: Text,
    job: Text,
    labels: Mapping[str, str] | None = None,
    encryption_key: str | None = None,
    champion: Text = "none",
    image: Place = "",
) -> PipelineTask:
    """Register a promoted model as the champion in Vertex AI Model Registry. Output: `registered`.

    Args:
        model: The trained model.
        metrics: The metrics of `evaluate`.
        verdict: The verdict of `evaluate`; must be "promote".
        connection: As for `find_champion`.
        model_name: The model's name in the registry.
        container: The container that serves the model, with the fields of Vertex AI's ModelContainerSpec: `image_uri`;
            `command`, `ports`, `predict_route`, `health_route` and `env`, if the image needs them.
        run_id: The run that trained it; each run is registered once.
        job: The pipeline job's resource name, such as `dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER`.
        labels: The model's labels.
        encryption_key: The Cloud KMS key that encrypts the model.
        champion: The version that `evaluate` compared with; "" if there was none, "none" to skip the comparison.
        image: The container image of the task.
    """
    candidate = {
        "model": model_name,
        "container": dict(container),
        "labels": dict(labels or {}),
        "encryption_key": encryption_key,
    }
    return _task(
        _register_model.register_version,
        image,
        place=json.dumps(connection),
        candidate=json.dumps(candidate),
        run_id=run_id,
        job=job,
        verdict=verdict,
        champion=champion,
        model=model,
        metrics=metrics,
    )


def deploy_model(
    registered: Artifact,
    *,
    connection: Mapping[str, object],
    deployment: Deployment,
    image: Place = "",
) -> PipelineTask:
    """Deploy a registered champion to an endpoint on Vertex AI, step by step. Output: `Output`, the version's name.

    Args:
        registered: The version of `register_version`; one that is not the champion is not deployed.
        connection: As for `find_champion`.
        deployment: The endpoint, as `slipway.pipelines.platforms.vertex.endpoints.files` reads it from its file.
        image: The container image of the task.
    """
    return _task(
        _deploy.deploy_model,
        image,
        place=json.dumps(connection),
        deployment=deployment.model_dump_json(),
        registered=registered,
    )


@dataclass(frozen=True)
class _Section:
    """Settings for a step: JSON, and the channels whose values it contains, by the task's input."""

    text: Text
    inputs: Mapping[str, PipelineChannel]


def _section(settings: type[BaseModel], value: BaseModel | Fields | None, *, without: str = "") -> _Section:
    """Return settings (None: the defaults), without one of their fields."""
    channels: dict[str, PipelineChannel] = {}

    def refer(channel: object) -> str:
        if not isinstance(channel, PipelineParameterChannel | dsl.Collected) or _is_artifact(channel):
            expected = "values, pipeline parameters and outputs that are no artifacts"
            raise TypeError(f"Settings may be {expected}; got {channel!r}.")
        name = PREFIX + channel.full_name
        channels[name] = channel
        return reference(name)

    if isinstance(value, PipelineChannel):
        text = json.dumps(refer(value))
        return _Section(value, {}) if _type(value) == "String" else _Section(text, channels)
    if not isinstance(value, Mapping) or not extract_pipeline_channels_from_any(dict(value)):
        validated = settings.model_validate({} if value is None else value)
        return _Section(validated.model_dump_json(exclude={without}), {})
    text, items = json.dumps(value, default=refer), _loop_items()
    for channel in extract_pipeline_channels_from_any(text):  # as parts of texts
        text = text.replace(channel.pattern, refer(items.get(channel.full_name, channel)))
    values = json.loads(text)
    _check(settings, values)
    values.pop(without, None)
    text = json.dumps(values)
    return _Section(text, {name: channels[name] for name in sorted(channels) if reference(name) in text})


def _is_artifact(channel: PipelineChannel) -> bool:
    return isinstance(channel, dsl.Collected) and channel.is_artifact_channel


def _loop_items() -> dict[str, PipelineChannel]:
    """Return the items of the loops that are being defined, and their fields, by the names that texts have of them."""
    pipeline = Pipeline.get_default_pipeline()  # None of a task that is executed at once
    loops = [group for group in (pipeline.groups if pipeline else ()) if isinstance(group, dsl.ParallelFor)]
    items = [loop.loop_argument for loop in loops if isinstance(loop.loop_argument, LoopParameterArgument)]
    return {item.full_name: item for loop in items for item in (loop, *loop._referenced_subvars.values())}


def _type(channel: PipelineChannel) -> str:
    """Return kfp's name of a channel's type.

    kfp gives a loop's items the Python type of the first item, and their fields that of the first field.
    """
    if isinstance(channel, LoopParameterArgument | LoopArgumentVariable) and channel.is_with_items_loop_argument:
        items = channel.items_or_pipeline_channel
        values = [item[channel.subvar_name] for item in items] if isinstance(channel, LoopArgumentVariable) else items
        types = {type(value) for value in values}
        common = float if types == {int, float} else types.pop() if len(types) == 1 else str
        channel.channel_type = type_utils.get_canonical_type_name_for_type(common) or "String"
    elif not type_utils.is_parameter_type(channel.channel_type):  # of List[Any]
        channel.channel_type = "String"
    return str(type_utils.IR_TYPE_TO_IN_MEMORY_SPEC_TYPE[type_utils.get_parameter_type_name(channel.channel_type)])


def _check(settings: type[BaseModel], values: Mapping[str, JsonValue]) -> None:
    """Raise ValidationError for an unknown key or an invalid value; the step checks what depends on channels."""
    try:
        settings.model_validate(values)
    except UserError:
        pass  # two settings that contradict each other
    except ValidationError as error:
        for problem in error.errors():
            value = value_at(dict(values), problem["loc"])
            depends = isinstance(value, dict | None) or references(value)
            if problem["type"] == "extra_forbidden" or not depends:
                raise


def _task(component: BaseComponent, image: Place, /, **arguments: object) -> PipelineTask:
    """Add a task; the channels in its settings become additional inputs, which `slipway.components.inputs` reads."""
    sections = {name: argument for name, argument in arguments.items() if isinstance(argument, _Section)}
    inputs = {name: channel for section in sections.values() for name, channel in section.inputs.items()}
    texts = {name: section.text for name, section in sections.items()}
    given = {name: value for name, value in arguments.items() if value is not None}  # kfp has no constant for None
    task = on_image(_with_inputs(component, inputs), image)(**{**given, **texts, **inputs})
    task._outputs = _Outputs(task.name, task.outputs)
    return task


class _Outputs(dict[str, PipelineChannel]):
    """The outputs of a task, by name; an unknown name is an error with the names that it has."""

    def __init__(self, task: str, outputs: Mapping[str, PipelineChannel]) -> None:
        super().__init__(outputs)
        self._task = task

    def __missing__(self, name: str) -> PipelineChannel:
        raise UserError.unknown(f"output of {self._task}", name, self)


def _with_inputs(component: BaseComponent, inputs: Mapping[str, PipelineChannel]) -> BaseComponent:
    """Return a component that accepts additional inputs."""
    if not inputs:
        return component
    types = {name: InputSpec(type=_type(channel)) for name, channel in inputs.items()}
    return _inputs_replaced(component, {**(component.component_spec.inputs or {}), **types})


def _inputs_replaced(component: BaseComponent, inputs: dict[str, InputSpec] | None) -> BaseComponent:
    specification = copy.deepcopy(component.component_spec)
    specification.inputs = inputs
    return PythonComponent(component_spec=specification, python_func=component.python_func)
