"""Tasks of Slipway's components in KFP pipelines: their settings, with the channels in these, and their images."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable, Mapping
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

from slipway.components.inputs import PREFIX, reference, references, value_at
from slipway.core.errors import UserError

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask
    from kfp.dsl.base_component import BaseComponent

    # The fields of a settings object, or what has them when the pipeline runs: as a dict or as JSON.
    Fields: TypeAlias = Mapping[str, object] | PipelineChannel
    Text: TypeAlias = str | PipelineParameterChannel
    Number: TypeAlias = int | PipelineParameterChannel
    Artifact: TypeAlias = PipelineArtifactChannel

# A container image, or a function that receives the component and returns the one to run instead.
Place: TypeAlias = "str | Callable[[BaseComponent], Callable[..., PipelineTask]]"

# kfp.local does not quote the interpreter's path in its shell script: with a space in it, no step would start, and
# nothing else decides how a user's pipeline starts its steps there. Seen with kfp 2.17.0; no upstream issue is known.
_replace_interpreter = subprocess_task_handler.replace_python_executable
subprocess_task_handler.replace_python_executable = lambda command, python: _replace_interpreter(
    command, shlex.quote(python)
)


def _iteration(loop: PipelineTaskSpec, item: object, _name: str) -> PipelineTaskSpec:
    """Return the task of one of a loop's iterations, in which the outputs of tasks outside of the loop are inputs, too.

    Kfp.local's function has the loop's item in their place: a step in a user's loop would train on it as its data set.
    Seen with kfp 2.17.0; no upstream issue is known.
    """
    task = PipelineTaskSpec()
    task.CopyFrom(loop)
    constant = task.inputs.parameters[loop.parameter_iterator.item_input].runtime_value.constant
    constant.CopyFrom(to_protobuf_value(item))
    task.ClearField("parameter_iterator")
    return task


task_spec_utils.create_parameter_loop_iteration_task_spec = _iteration


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


@dataclass(frozen=True)
class Section:
    """Settings for a step: JSON, and the channels whose values it contains, by the task's input."""

    text: Text
    inputs: Mapping[str, PipelineChannel]


def section(settings: type[BaseModel], value: BaseModel | Fields | None, *, without: str = "") -> Section:
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
        return Section(value, {}) if _type(value) == "String" else Section(text, channels)
    if not isinstance(value, Mapping) or not extract_pipeline_channels_from_any(dict(value)):
        validated = settings.model_validate({} if value is None else value)
        return Section(validated.model_dump_json(exclude={without}), {})
    text, items = json.dumps(value, default=refer), _loop_items()
    for channel in extract_pipeline_channels_from_any(text):  # as parts of texts
        text = text.replace(channel.pattern, refer(items.get(channel.full_name, channel)))
    values = json.loads(text)
    _check(settings, values)
    values.pop(without, None)
    text = json.dumps(values)
    return Section(text, {name: channels[name] for name in sorted(channels) if reference(name) in text})


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


def add(component: BaseComponent, image: Place, /, **arguments: object) -> PipelineTask:
    """Add a task; the channels in its settings become additional inputs, which `slipway.components.inputs` reads."""
    sections = {name: argument for name, argument in arguments.items() if isinstance(argument, Section)}
    inputs = {name: channel for section in sections.values() for name, channel in section.inputs.items()}
    texts = {name: section.text for name, section in sections.items()}
    values = {name: value for name, value in arguments.items() if value is not None}  # kfp has no constant for None
    task = on_image(_with_inputs(component, inputs), image)(**{**values, **texts, **inputs})
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
