"""A step's settings as JSON, in which `${parameter--NAME}` stands for an input of the task: a pipeline parameter.

Each parameter is an input of its own, because neither Kubeflow Pipelines nor Vertex AI reliably replaces KFP's
placeholders inside a constant (kubeflow/pipelines issues 11035, 11504 and 12040), and a value with a quotation mark
would end the JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import JsonValue, ValidationError

from slipway.core.errors import UserError
from slipway.core.values import JsonObject, whole_numbers
from slipway.trainer.settings import Settings

PREFIX = "parameter--"
REFERENCE = re.compile(rf"\$\{{({PREFIX}[\w-]+)\}}")
# KFP passes the task's inputs to the process as JSON, after this option (it is in the args of every compiled spec).
EXECUTOR_INPUT = "--executor_input"
Of = TypeVar("Of", bound=Settings)


def reference(name: str) -> str:
    """Return the text that stands for the task's input `name`."""
    return f"${{{name}}}"


def read(settings: type[Of], section: str, text: str | JsonObject, inputs: Mapping[str, JsonValue] | None = None) -> Of:
    """Return a step's settings with the values of the task's inputs.

    Args:
        settings: The class of the settings.
        section: The section of a run's configuration that they are, for messages.
        text: The settings as JSON; kfp.local passes an item of an untyped list as it is, also if it is a mapping.
        inputs: The task's inputs; by default, those of this process.

    Raises:
        UserError: A value is invalid, such as one that was typed in the platform's user interface.
    """
    values = json.loads(text) if isinstance(text, str) else text
    inputs = task_inputs(sys.argv) if inputs is None else inputs
    try:
        return settings.model_validate_json(json.dumps(_filled(values, inputs)))
    except ValidationError as error:
        problem = error.errors()[0]
        named = references(value_at(values, problem["loc"]))
        setting = ".".join(str(part) for part in (section, *problem["loc"]))
        parameter = " and ".join(name.removeprefix(PREFIX) for name in named)
        message = str(problem.get("ctx", {}).get("error") or problem["msg"])
        raise UserError(
            f"{f'The parameter {parameter}' if parameter else setting} is invalid: {message[0].lower()}{message[1:]}.",
            setting=setting if problem["loc"] else None,
            value=problem["input"],
            fix=f"start the run again with a valid value of {parameter}" if parameter else None,
        ) from None


def value_at(values: JsonValue, path: Sequence[int | str]) -> JsonValue:
    """Return the value at a location that pydantic reports; None if there is none, such as for a missing setting."""
    try:
        for part in path:
            values = values[part]  # type: ignore[index]
    except (LookupError, TypeError):
        return None
    return values


def references(value: JsonValue) -> list[str]:
    """Return the names of the inputs in a value that is a text."""
    return REFERENCE.findall(value) if isinstance(value, str) else []


def task_inputs(arguments: Sequence[str]) -> dict[str, JsonValue]:
    """Return the inputs of the task from the arguments of KFP's executor; none if it is not what runs this process."""
    if EXECUTOR_INPUT not in arguments:
        return {}
    executor_input = json.loads(arguments[arguments.index(EXECUTOR_INPUT) + 1])
    return dict(whole_numbers(executor_input.get("inputs", {}).get("parameterValues", {})))


def _filled(value: JsonValue, inputs: Mapping[str, JsonValue]) -> JsonValue:
    """Return a JSON value with all references replaced; a number stays a number unless it is part of a text."""
    if isinstance(value, dict):
        return {key: _filled(item, inputs) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, inputs) for item in value]
    if not isinstance(value, str):
        return value
    whole = REFERENCE.fullmatch(value)
    if whole is not None and whole[1] in inputs:
        return inputs[whole[1]]
    return REFERENCE.sub(lambda match: str(inputs.get(match[1], match[0])), value)
