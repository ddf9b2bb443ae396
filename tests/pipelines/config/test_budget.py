"""The setting `budget`: a number of dollars, or a section that also says how long a training may do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slipway.components.plan_training.plan import plan_training
from slipway.components.worker_pools import replicas_of
from slipway.core.errors import UserError
from slipway.core.idle import IDLE_VARIABLE
from slipway.pipelines.config.config import RunConfig, load
from slipway.trainer.config import TrainSettings

DIGITS = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"epochs": 3, "batch_size": 64},
}
PROGRAM = {"name": "program", "data": {"uri": "gs://bucket/data"}, "train": {"module": "task"}}


@pytest.fixture
def configured(tmp_path: Path):
    """Load the digits' configuration with a budget in its file, and overrides."""

    def load_with(budget: object, *overrides: str) -> RunConfig:
        file = tmp_path / "slipway.yaml"
        file.write_text(yaml.safe_dump({**DIGITS, "budget": budget}))
        return load(file, overrides)

    return load_with


@pytest.mark.parametrize(
    ("budget", "overrides", "dollars", "seconds"),
    [
        (500, (), 500.0, None),
        (None, (), None, None),
        ({"dollars": 500, "idle": "30m"}, (), 500.0, 1800),
        ({"idle": "2h"}, (), None, 7200),
        (500, ("budget.idle=1m",), 500.0, 60),
        (None, ("budget.idle=1d",), None, 86400),
        ({"dollars": 500, "idle": "30m"}, ("budget=7",), 7.0, 1800),
        ({"dollars": 500, "idle": "30m"}, ("budget.idle=null",), 500.0, None),
        ({"dollars": 500, "idle": "30m"}, ("budget=null",), None, None),
    ],
)
def test_a_number_is_short_for_dollars_and_changes_only_those(configured, budget, overrides, dollars, seconds):
    config = configured(budget, *overrides)
    variables = [{"name": IDLE_VARIABLE, "value": str(seconds)}]
    pools = config.training_hardware.worker_pools()
    assert config.dollars == dollars
    assert config.worker_pools() == ([{**pools[0], "container_spec": {"env": variables}}] if seconds else pools)


def test_a_configuration_without_idle_is_what_it_was(configured):
    config = configured(500)
    assert yaml.safe_load(config.as_yaml())["budget"] == 500.0
    assert config.model_dump(mode="json")["budget"] == 500.0


@pytest.mark.parametrize("idle", ["30s", "0m", "soon"])
def test_an_idle_time_is_at_least_a_minute(configured, idle):
    with pytest.raises(UserError, match="must be minutes, hours or days, such as 30m") as caught:
        configured(None, f"budget.idle={idle}")
    assert caught.value.setting == "budget.idle"


def test_every_replica_of_a_program_is_told_how_long_it_may_be_idle():
    config = RunConfig.model_validate({**PROGRAM, "hardware": "cpu*3", "budget": {"idle": "5m"}})
    planned = plan_training(config.worker_pools(), 0, None, "gs://bucket/data", None, config.train, "")
    replicas = replicas_of(planned.worker_pool_specs, [1, 2, 3])
    assert [replica.environment[IDLE_VARIABLE] for replica in replicas] == ["300"] * 3
    assert {replica.environment["SLIPWAY_DATA"] for replica in replicas} == {"gs://bucket/data"}


@pytest.mark.parametrize(
    ("train", "hardware", "text"),
    [
        ({"command": ["./train.sh"]}, "cpu", "does not apply to ./train.sh: only"),
        ({"image": "image:1"}, "cpu", "does not apply to image:1: only"),
        ({"module": "task"}, "tpu-v5e-4x4", "does not apply to task on a TPU slice: only"),
    ],
)
def test_programs_that_nobody_watches_are_refused(train, hardware, text):
    values = {**PROGRAM, "train": train, "hardware": hardware}
    RunConfig.model_validate(values)
    with pytest.raises(UserError, match=text) as caught:
        RunConfig.model_validate({**values, "budget": {"idle": "5m"}})
    assert caught.value.fix == "--set budget.idle=null"
    RunConfig.model_validate({**values, "budget": {"idle": None}})


def test_slipways_trainer_may_be_on_a_slice():
    assert TrainSettings.model_validate(DIGITS["train"]).program is None
    RunConfig.model_validate({**DIGITS, "hardware": "tpu-v5e-4x4", "budget": {"idle": "5m"}})
