"""The pipelines' parameters: which settings they are, and that nothing else in a spec depends on them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

from slipway.core.values import by_option
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.parameters import SETTINGS, parameters_of, values_of
from slipway.pipelines.platforms.kubeflow import steps as kubeflow
from slipway.pipelines.platforms.local import steps as local
from slipway.pipelines.platforms.table import PLATFORMS
from slipway.pipelines.platforms.tpu.steps import TpuSteps
from slipway.pipelines.platforms.vertex import steps as vertex
from slipway.pipelines.platforms.vertex.images import Images
from tests.pipelines.platforms.kubeflow.conftest import IMAGE
from tests.pipelines.platforms.vertex.test_spec import VERTEX

DIGITS: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"epochs": 3},
    "vertex": VERTEX,
    "kubeflow": {"host": "http://localhost:8080", "image": IMAGE, "volume": "claim"},
    "tpu": {
        "project": "my-project",
        "zones": ["us-west4-a"],
        "bucket": "gs://my-bucket",
        "service_account": "tpu@my-project.iam.gserviceaccount.com",
    },
}


def configuration(**sections: Any) -> RunConfig:
    return validate({key: value for key, value in {**DIGITS, **sections}.items() if value is not None}, "the test")


def custom(*arguments: str) -> RunConfig:
    return configuration(model=None, train={"module": "mine.train", "arguments": list(arguments)})


def on_tpu(config: RunConfig) -> RunConfig:
    return RunConfig.model_validate({**config.model_dump(by_alias=True), "hardware": "tpu-v5e-1x1"})


def spec_of(folder: Path, config: RunConfig, platform: str) -> dict[str, Any]:
    pipeline = {
        "local": lambda: local.pipeline(config),
        "vertex": lambda: vertex.pipeline(config, Images("steps@sha256:1", "trainer@sha256:2", "evaluation@sha256:3")),
        "kubeflow": lambda: kubeflow.pipeline(config),
        "tpu": lambda: local.pipeline(on_tpu(config), platform=TpuSteps("trainer@sha256:2")),
    }[platform]()
    compiler.Compiler().compile(pipeline, str(folder / "spec.yaml"))
    return dict(next(yaml.safe_load_all((folder / "spec.yaml").read_text())))


def test_settings_that_are_set_are_parameters() -> None:
    assert values_of(configuration()) == {
        "data_source": "digits",
        "epochs": 3.0,
        "batch_size": 64,
        "learning_rate": 0.001,
        "seed": 0,
    }
    config = configuration(train={"steps": 10}, evaluate={"gate": {"metric": "loss", "maximum": 2}})
    assert {"steps": 10, "gate_maximum": 2.0}.items() <= values_of(config).items()
    assert "epochs" not in values_of(config)


def test_a_custom_module_has_its_arguments_and_no_settings_of_the_loop() -> None:
    assert values_of(custom("--lr", "0.1")) == {"data_source": "digits", "argument_lr": "0.1"}


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--learning-rate=1e-3", "-n", "12"], {"learning_rate": "1e-3", "n": "12"}),
        (["fit", "--fast", "--name", "a b=c", "--empty="], {"1": "fit", "name": "a b=c", "empty": ""}),
        (["--layers", "64", "32", "--shift", "-1.5"], {"layers": "64", "layers_2": "32", "shift": "-1.5"}),
        (["--seed=1", "input.csv", "--seed", "2"], {"seed": "1", "2": "input.csv", "seed_2": "2"}),
        (["--fast"], {}),
    ],
)
def test_an_argument_is_named_after_its_option(arguments: list[str], values: dict[str, str]) -> None:
    found = [parameter for parameter in parameters_of(custom(*arguments)) if parameter.number is not None]
    assert {parameter.name: parameter.value for parameter in found} == {f"argument_{k}": v for k, v in values.items()}
    assert all(arguments[p.number or 0] == f"{p.option}{p.value}" for p in found)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--learning-rate=1e-3", "-n", "12", "--fast"], {"learning-rate": 0.001, "n": 12, "fast": True}),
        (
            ["fit", "--augment", "--name", "a b=c", "--empty="],
            {"1": "fit", "augment": True, "name": "a b=c", "empty": ""},
        ),
        (["--lr", "0.1", "--lr=0.2", "--shift", "-1.5"], {"lr": 0.2, "shift": -1.5}),  # as a trial of a search has it
        (["--limit", "inf", "--name=nan"], {"limit": "inf", "name": "nan"}),
    ],
)
def test_arguments_are_compared_by_option(arguments: list[str], values: dict[str, Any]) -> None:
    assert by_option(arguments) == values


def test_the_record_of_a_program_has_none_of_the_trainers_settings() -> None:
    stored = yaml.safe_load(custom("--lr", "0.1").as_yaml())
    assert stored["train"].keys() == {"module", "arguments", "processes", "restarts"}
    assert validate(stored, "config.yaml") == custom("--lr", "0.1")
    assert {"engine", "learning_rate", "seed"} <= yaml.safe_load(configuration().as_yaml())["train"].keys()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            configuration(train={"epochs": 3}, evaluate={"gate": {"minimum": 0.5}}),
            configuration(
                data={"source": "tfds:mnist"},
                train={"epochs": 4.5, "batch_size": 96, "learning_rate": 0.3, "seed": 7},
                evaluate={"gate": {"minimum": 0.25}},
            ),
        ),
        (custom("--lr=0.1", "--size", "3"), custom("--lr=0.2", "--size", "four")),
    ],
    ids=["slipway's trainer", "custom module"],
)
def test_configurations_that_differ_in_parameters_differ_in_defaults_only(
    tmp_path: Path, platform: str, first: RunConfig, second: RunConfig
) -> None:
    specs = [spec_of(tmp_path, config, platform) for config in (first, second)]
    for spec, config in zip(specs, (first, second), strict=True):
        parameters = spec["root"]["inputDefinitions"]["parameters"]
        defaults = {name: one.pop("defaultValue") for name, one in parameters.items() if "defaultValue" in one}
        assert defaults == values_of(config)
        assert all(parameters[name]["description"] for name in defaults)
    assert specs[0] == specs[1]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_constant_contains_a_placeholder_of_a_parameter(tmp_path: Path, platform: str) -> None:
    spec = spec_of(tmp_path, configuration(evaluate={"gate": {"minimum": 0.5}}), platform)
    dags = [spec["root"]["dag"], *(one["dag"] for one in spec["components"].values() if "dag" in one)]
    inputs = [task.get("inputs", {}).get("parameters", {}) for dag in dags for task in dag["tasks"].values()]
    constants = [one["runtimeValue"]["constant"] for each in inputs for one in each.values() if "runtimeValue" in one]
    assert len(constants) > 5
    assert "{{$.inputs" not in json.dumps(constants)


def test_the_parameters_are_documented() -> None:
    text = Path("docs/vertex.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([\w.]+)`", text, re.MULTILINE)
    assert dict(rows).items() >= SETTINGS.items()


def execute(folder: Path, config: RunConfig, **parameters: Any) -> subprocess.CompletedProcess[str]:
    (folder / "run.yaml").write_text(config.as_yaml())
    arguments = {"run_id": "first", "output": str(folder / "output"), "champion": "none", **parameters}
    return subprocess.run(
        [sys.executable, "-m", "tests.programs.run_pipeline", "local", "run.yaml", "artifacts", json.dumps(arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{Path.cwd()}:{folder}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_a_run_with_other_parameters_trains_with_them(tmp_path: Path) -> None:
    config = configuration(hardware="cpu*2", evaluate={"gate": {"minimum": 0.99}})
    values = {"epochs": 1.0, "batch_size": 100, "learning_rate": 0.01, "seed": 3, "gate_minimum": 0.01}
    done = execute(tmp_path, config, **values)
    assert done.returncode == 0, done.stdout + done.stderr
    model = json.loads((tmp_path / "output/model/model.json").read_text())
    assert (model["batch_size"], model["learning_rate"], model["seed"]) == (100, 0.01, 3)
    assert model["steps"] == 1438 // 100
    [report] = tmp_path.glob("artifacts/*/evaluate/report")
    assert "0.0100" in report.read_text()
    assert "meets the minimum of" in report.read_text()


def test_an_invalid_value_fails_its_step_with_one_sentence(tmp_path: Path) -> None:
    done = execute(tmp_path, configuration(), learning_rate=-1.0)
    assert done.returncode == 1
    assert "The parameter learning_rate is invalid: input should be greater than 0." in done.stdout


def test_a_custom_module_receives_changed_arguments(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; sys.exit(f'received {sys.argv[1:]}')")
    config = configuration(model=None, train={"module": "mine", "arguments": ["--lr=0.1", "--name", "first", "--fast"]})
    done = execute(tmp_path, config, argument_lr="0.25", argument_name='it\'s "new"')
    assert done.returncode == 1
    assert "received ['--lr=0.25', '--name', 'it\\'s \"new\"', '--fast']" in done.stdout
