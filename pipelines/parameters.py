"""The parameters of a run's pipeline: the settings that change from run to run, shown by the platforms' interfaces."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from slipway.core.values import OPTION

if TYPE_CHECKING:
    from kfp.dsl.pipeline_channel import PipelineParameterChannel

    from slipway.pipelines.config.config import RunConfig
    from slipway.trainer.settings import Settings

# The parameters of a pipeline that is being defined, by name.
Channels: TypeAlias = "Mapping[str, PipelineParameterChannel]"
Value: TypeAlias = str | int | float
# A parameter's name and its setting. A setting of null is no parameter: KFP's parameters have values.
SETTINGS: Mapping[str, str] = {
    "data_source": "data.source",
    "data_uri": "data.uri",
    "epochs": "train.epochs",
    "steps": "train.steps",
    "examples": "train.examples",
    "batch_size": "train.batch_size",
    "learning_rate": "train.learning_rate",
    "seed": "train.seed",
    "gate_minimum": "evaluate.gate.minimum",
    "gate_maximum": "evaluate.gate.maximum",
}
ARGUMENTS = "train.arguments"
ARGUMENT_PREFIX = "argument_"


@dataclass(frozen=True)
class Parameter:
    """A pipeline parameter.

    Attributes:
        name: Its name in the platforms' interfaces.
        setting: The dotted name of its setting.
        value: The configuration's value; its type is the parameter's.
        description: What it sets.
        number: The position in `train.arguments`; None for other settings.
        option: What precedes the value in the argument: `--name=`, or "".
    """

    name: str
    setting: str
    value: Value
    description: str
    number: int | None = None
    option: str = ""


def parameters_of(config: RunConfig) -> list[Parameter]:
    """Return the parameters of a configuration: its settings that are not null, and its program's arguments."""
    return [*_settings(config), *_arguments(config)]


def values_of(config: RunConfig) -> dict[str, Value]:
    """Return the configuration's values of its parameters by name."""
    return {parameter.name: parameter.value for parameter in parameters_of(config)}


def is_parameter(setting: str) -> bool:
    """Return whether a setting, or the arguments of a custom program, are pipeline parameters."""
    return setting in (*SETTINGS.values(), ARGUMENTS)


def with_parameters(
    config: RunConfig, defaults: RunConfig | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a configuration's parameters to a pipeline function, as its last argument.

    Args:
        config: The configuration.
        defaults: The configuration with the parameters' default values, where it has the same parameters; by default,
            `config`.
    """
    parameters = parameters_of(config)
    values = values_of(config)
    values |= {name: value for name, value in values_of(defaults or config).items() if name in values}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        *declared, _ = inspect.signature(function).parameters.values()

        def pipeline(*channels: PipelineParameterChannel) -> None:
            function(*channels[: len(declared)], dict(zip(values, channels[len(declared) :], strict=True)))

        added = [
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=type(parameter.value),
                default=values[parameter.name],
            )
            for parameter in parameters
        ]
        # kfp reads the pipeline's parameters from the signature, and their descriptions from the docstring.
        pipeline.__signature__ = inspect.Signature([*declared, *added])  # type: ignore[attr-defined]
        described = "\n".join(f"    {parameter.name}: {parameter.description}" for parameter in parameters)
        pipeline.__doc__ = f"The pipeline.\n\nArgs:\n{described}\n"
        return pipeline

    return decorate


def section(name: str, settings: Settings, config: RunConfig, channels: Channels) -> dict[str, object]:
    """Return a section of a configuration with the pipeline's parameters in place of their values.

    Args:
        name: The section's name.
        settings: The section, as the platform needs it.
        config: The configuration.
        channels: The parameters of the pipeline that is being defined.
    """
    values: dict[str, object] = settings.model_dump(mode="json")
    for parameter in parameters_of(config):
        first, *path = parameter.setting.split(".")
        if first != name:
            continue
        where: object = values
        *parents, last = path if parameter.number is None else [*path, parameter.number]
        for part in parents:
            where = where[part]  # type: ignore[index]
        channel = channels[parameter.name]
        where[last] = f"{parameter.option}{channel}" if parameter.option else channel  # type: ignore[index]
    return values


def _settings(config: RunConfig) -> Iterator[Parameter]:
    for name, setting in SETTINGS.items():
        if config.train.program is not None and setting.startswith("train."):
            continue  # a custom program receives its arguments only
        value: object = config
        for part in setting.split("."):
            section, value = value, getattr(value, part, None)
        if value not in (None, ""):  # "": the source of data that are not prepared
            assert isinstance(value, Value)
            text = type(section).model_fields[part].description.partition("\n")[0]  # type: ignore[attr-defined]
            yield Parameter(name, setting, value, f"{setting}. {text.rstrip(':.')}.")


def _arguments(config: RunConfig) -> Iterator[Parameter]:
    """Yield the values among a custom program's arguments, named after the option before them or by their number."""
    names: set[str] = set()
    last = ""
    for number, argument in enumerate(config.train.arguments):
        option, before, value = last, "", argument
        if OPTION.match(argument):
            option, equals, value = argument.partition("=")
            last, before = ("", f"{option}=") if equals else (option, "")
            if not equals:
                continue
        stem = ARGUMENT_PREFIX + (re.sub(r"\W+", "_", option.strip("-"), flags=re.ASCII) or str(number + 1))
        numbered = (f"{stem}_{count}" for count in itertools.count(2))
        name = next(name for name in itertools.chain([stem], numbered) if name not in names)
        names.add(name)
        position = f"after {option}" if option else f"number {number + 1}"
        description = f"{ARGUMENTS}. Argument {position} of {config.train.program}."
        yield Parameter(name, ARGUMENTS, value, description, number, before)
