"""`slipway config`: the resolved configuration with the origin of each value, and the JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.config.schema import schema_text
from slipway.pipelines.platforms.vertex.schedules.settings import ScheduleSettings

DIGITS = Path("configs/digits.yaml")
OPTIONS = ("--set", "train.steps=7", "--set", 'model.arguments={text: "a\\nb"}', "--hardware", "cpu*2")


def config(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments], prog_name="slipway")


def test_show_prints_a_configuration_that_loads_the_same(tmp_path: Path):
    result = config("show", str(DIGITS), *OPTIONS)
    assert result.exit_code == 0, result.output
    path = tmp_path / "shown.yaml"
    path.write_text(result.stdout)
    assert load(path) == load(DIGITS, [OPTIONS[1], OPTIONS[3]], "cpu*2")
    lines = {line.split(":")[0].strip(): line.partition("  # ")[2] for line in result.stdout.splitlines()}
    assert lines["hardware"] == "--hardware cpu*2"
    assert lines["steps"] == "--set train.steps=7"
    assert lines["epochs"] == lines["vertex"] == "default"
    assert lines["learning_rate"] == f"{DIGITS}:{1 + DIGITS.read_text().splitlines().index('  learning_rate: 0.002')}"


def test_show_as_json_has_a_value_and_an_origin_by_dotted_key():
    rows = json.loads(config("show", "--set", "train.epochs=3", "--json").stdout)
    assert rows["train.epochs"] == {"value": 3.0, "from": "--set train.epochs=3"}
    assert rows["train.batch_size"]["from"].startswith(f"{DIGITS}:")
    assert rows["data.image_size"] == {"value": None, "from": "default"}


def test_show_refuses_what_a_run_refuses():
    result = config("show", "--set", "train.batch=3")
    assert result.exit_code == 2
    assert "train.batch is not a setting" in result.stderr
    assert (
        json.loads(config("show", "--set", "train.batch=3", "--json").stdout)["error"]["nearest"] == "train.batch_size"
    )


@pytest.mark.parametrize(("arguments", "model"), [((), RunConfig), (("schedule",), ScheduleSettings)])
def test_schema(arguments: tuple[str, ...], model: type[RunConfig]):
    assert config("schema", *arguments).stdout == schema_text(model)
    assert yaml.safe_load(schema_text(model))["additionalProperties"] is False
