"""A trial's arguments: they override settings, and the plan follows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway.components.plan_training.plan import plan_training
from slipway.core.errors import UserError
from slipway.core.manifest import FILE_NAME
from slipway.trainer.__main__ import main
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.distributed.accelerators import PLANNED_VARIABLE
from slipway.trainer.overrides import overridden, text_of, value_of
from tests.components.plan_training.test_plan import manifest, pools

MODEL = ModelSettings(builder="a.b:c", arguments={"width": 3})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "a data set"
    folder.mkdir()
    (folder / FILE_NAME).write_text(manifest(1000, 4).model_dump_json())
    return folder


def planned(data: Path, replicas: int = 1, **train: Any) -> str:
    settings = TrainSettings(**({"epochs": 2, "batch_size": 50} | train))
    result = plan_training(pools(replicas), 0, manifest(1000, 4), str(data), MODEL, settings, "")
    return str(result.worker_pool_specs[0]["container_spec"]["args"][1])


def test_the_job_is_the_one_that_would_have_been_planned_with_these_settings(data: Path) -> None:
    arguments = ["--train.batch_size=20", "--train.learning_rate=0.25", "--train.optimizer=sgd", "--train.momentum=0.5"]
    found = JobConfig.model_validate_json(overridden(planned(data, replicas=2), arguments, {}))
    direct = planned(data, replicas=2, batch_size=20, learning_rate=0.25, optimizer="sgd", momentum=0.5)
    assert found == JobConfig.model_validate_json(direct)
    assert (found.plan.steps, found.plan.batch_per_replica) == (100, 10)


def test_a_length_replaces_the_configured_one_and_arguments_of_the_builder_are_kept(data: Path) -> None:
    arguments = ["--train.steps=7", "--model.arguments.depth=2.0", "--train.schedule.shape=cosine"]
    found = JobConfig.model_validate_json(overridden(planned(data), arguments, {}))
    assert (found.plan.steps, found.train.epochs) == (7, None)
    assert found.model.arguments == {"width": 3, "depth": 2.0}
    assert found.train.schedule.shape == "cosine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--train.batch_size=7"], "cannot be split evenly over 2 replicas"),
        (["--train.momentum=0.9"], "adam does not accept momentum"),
        (["--train.learning_rates=1"], "The settings of this trial are not valid: Extra inputs"),
        (["--data.seed=1"], "--data.seed=1 is not an argument of the trainer"),
        (["--train.batch_size"], "--train.batch_size is not an argument"),
    ],
)
def test_settings_that_are_not_valid_end_the_trial(
    data: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", planned(data, replicas=2), *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_batch_is_divided_among_the_accelerators_of_the_machine(data: Path) -> None:
    with pytest.raises(UserError, match="1 replica of 8 devices"):
        overridden(planned(data), ["--train.batch_size=20"], {PLANNED_VARIABLE: "gpu:8"})


@pytest.mark.parametrize("value", ["sgd", "1", "true", "a b", '"', "", 3, 0.5, True, None, [1, "2"], {"width": 8}])
def test_values_travel_as_text(value: Any) -> None:
    assert value_of(text_of(value)) == value
    assert text_of(value) == (value if value in ("sgd", "a b", '"', "") else json.dumps(value))
