"""The settings of a step with the values of pipeline parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipway.components.inputs import PREFIX, read, reference, task_inputs
from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings


def text(**values: Any) -> str:
    """Settings as JSON; a value in angle brackets stands for a parameter."""
    return json.dumps(values).replace("<", "${" + PREFIX).replace(">", "}")


def given(**values: Any) -> dict[str, Any]:
    return {PREFIX + name: value for name, value in values.items()}


def test_numbers_stay_numbers_and_texts_stay_texts() -> None:
    read_back = read(
        TrainSettings,
        "train",
        text(epochs="<length>", learning_rate="<rate>", class_weights={'a "b"': "<weight>"}),
        given(length=3, rate=0.1, weight=2.5),
    )
    assert (read_back.epochs, read_back.learning_rate) == (3.0, 0.1)
    assert read_back.class_weights == {'a "b"': 2.5}


@pytest.mark.parametrize("value", ['quo"ted', "new\nline", "${" + PREFIX + "other}", "{{$.inputs}}", ""])
def test_any_text_can_be_a_value(value: str) -> None:
    arguments = ["--name=<name>", "<name>", "${HOME}", "${model}"]
    settings = read(TrainSettings, "train", text(module="mine", arguments=arguments), given(name=value))
    assert settings.arguments == (f"--name={value}", value, "${HOME}", "${model}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"learning_rate": -0.1}, "The parameter rate is invalid: input should be greater than 0."),
        ({"batch_size": 2.5}, "The parameter rate is invalid: input should be a valid integer"),
        ({"learning_rate": "fast"}, "The parameter rate is invalid: input should be a valid number"),
        ({"precision": "int4"}, "The parameter rate is invalid: input should be 'auto', 'float32'"),
    ],
)
def test_an_invalid_value_is_an_error_of_the_user_that_names_the_parameter(values: dict[str, Any], said: str) -> None:
    [(setting, value)] = values.items()
    with pytest.raises(UserError) as refused:
        read(TrainSettings, "train", text(epochs=1, **{setting: "<rate>"}), given(rate=value))
    assert refused.value.message.startswith(said)
    assert (refused.value.setting, refused.value.value) == (f"train.{setting}", value)
    assert refused.value.fix == "start the run again with a valid value of rate"


def test_settings_that_contradict_each_other_are_refused_by_the_step() -> None:
    settings = text(epochs=1, learning_rate="<rate>", schedule={"shape": "cosine", "final": 0.01})
    assert read(TrainSettings, "train", settings, given(rate=0.1)).learning_rate == 0.1
    with pytest.raises(UserError, match="The final learning rate is not below the peak"):
        read(TrainSettings, "train", settings, given(rate=0.001))


def test_invalid_settings_without_a_parameter_are_an_error_of_the_user() -> None:
    with pytest.raises(UserError, match=r"train\.batch_size is invalid"):
        read(TrainSettings, "train", json.dumps({"epochs": 1, "batch_size": 0}))
    with pytest.raises(UserError, match=r"train is invalid: set exactly one of epochs, .*; got none"):
        read(TrainSettings, "train", "{}")


def test_the_inputs_come_from_the_arguments_of_kfps_executor() -> None:
    inputs = {"inputs": {"parameterValues": {"train": "{}", PREFIX + "batch_size": 64.0}}, "outputs": {}}
    arguments = ["executor_main.py", "--executor_input", json.dumps(inputs), "--function_to_execute", "plan_training"]
    assert task_inputs(arguments) == {"train": "{}", PREFIX + "batch_size": 64}
    assert task_inputs(["pytest"]) == {}
    assert reference(PREFIX + "seed") == "${parameter--seed}"
