"""The public steps: the example of docs/steps.md, and settings that are refused when a pipeline is defined."""

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
from kfp import compiler, dsl
from kfp.local import subprocess_task_handler
from pydantic import ValidationError

from slipway import steps
from slipway.components.prepare_data.component import prepare_data

PROGRAMS = re.findall(r"```python\n(.*?)```", Path("docs/steps.md").read_text(), re.S)


def program(pipeline: str) -> str:
    """The program on the page that defines a pipeline."""
    [text] = [text for text in PROGRAMS if f"def {pipeline}(" in text]
    return text


def defined(pipeline: str) -> Any:
    """A pipeline on the page, which needs its annotations as types."""
    module: dict[str, Any] = {}
    exec(compile(program(pipeline), "docs/steps.md", "exec", dont_inherit=True), module)
    return module[pipeline]


def run(script: Path) -> None:
    """Run a script, whose steps are processes, in its folder."""
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "tests.programs.script", script.name]
    done = subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page's example ran, as it stands there."""
    folder = tmp_path_factory.mktemp("example")
    (folder / "my_pipeline.py").write_text(program("digits_by_size"))
    run(folder / "my_pipeline.py")
    return folder


@pytest.mark.slow
def test_a_step_of_the_users_decides_about_the_training(example: Path) -> None:
    trained = json.loads(next(example.glob("local_outputs/*/train/model/model.json")).read_text())
    assert trained["planned_steps"] == 112  # 5 x 1,438 examples in batches of 64
    version = json.loads((example / "models/digits/1/metadata.json").read_text())
    assert version["run_id"] == "first"
    assert version["metrics"]["accuracy"] >= 0.5


@pytest.mark.slow
def test_every_task_of_the_example_has_its_image(example: Path) -> None:
    specification = yaml.safe_load((example / "my_pipeline.yaml").read_text())
    executors = specification["deploymentSpec"]["executors"]
    assert {executor["container"]["image"].rpartition("/")[2] for executor in executors.values()} == {"steps:1"}
    assert len(executors) == 6


@pytest.mark.extension("vertex")
def test_a_custom_job_of_ones_own_gets_the_planned_worker_pools(tmp_path: Path) -> None:
    compiler.Compiler().compile(defined("digits_on_machines"), str(tmp_path / "spec.yaml"))
    tasks = yaml.safe_load((tmp_path / "spec.yaml").read_text())["root"]["dag"]["tasks"]
    assert set(tasks) == {"prepare-data", "plan-training", "custom-training-job", "collect-model", "evaluate"}
    plan = tasks["plan-training"]["inputs"]["parameters"]
    assert plan["devices"]["runtimeValue"]["constant"] == 4
    assert [pool["replica_count"] for pool in plan["pools"]["runtimeValue"]["constant"]] == [1, 1]
    pools = tasks["custom-training-job"]["inputs"]["parameters"]["worker_pool_specs"]
    assert pools == {"taskOutputParameter": {"producerTask": "plan-training", "outputParameterKey": "Output"}}


def test_the_task_is_an_input_of_prepare_data(tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline():  # type: ignore[no-untyped-def]
        steps.prepare_data({"source": "csv:prices.csv"}, task="regression")

    compiler.Compiler().compile(pipeline, str(tmp_path / "spec.yaml"))
    (task,) = yaml.safe_load((tmp_path / "spec.yaml").read_text())["root"]["dag"]["tasks"].values()
    assert task["inputs"]["parameters"]["task"]["runtimeValue"]["constant"] == "regression"


def test_unknown_settings_are_refused_when_the_pipeline_is_defined() -> None:
    with pytest.raises(ValidationError, match="sauce"):

        @dsl.pipeline
        def wrong():
            steps.prepare_data({"sauce": "digits"})


def test_parameters_in_settings_are_inputs_of_the_task(tmp_path: Path) -> None:
    compiler.Compiler().compile(defined("digits_by_parameters"), str(tmp_path / "spec.yaml"))
    tasks = yaml.safe_load((tmp_path / "spec.yaml").read_text())["root"]["dag"]["tasks"]
    given = tasks["prepare-data"]["inputs"]["parameters"]
    assert given["parameter--source"] == {"componentInputParameter": "source"}
    assert json.loads(given["settings"]["runtimeValue"]["constant"]) == {
        "source": "${parameter--source}",
        "store": "datasets/${parameter--name}",
    }
    assert tasks["plan-training"]["inputs"]["parameters"]["parameter--learning_rate"]


def test_an_item_of_a_loop_is_an_input_of_the_task(tmp_path: Path) -> None:
    compiler.Compiler().compile(defined("digits_by_rate"), str(tmp_path / "spec.yaml"))
    components = yaml.safe_load((tmp_path / "spec.yaml").read_text())["components"]
    parameters = components["comp-plan-training"]["inputDefinitions"]["parameters"]
    assert parameters["parameter--rates-loop-item"] == {"parameterType": "NUMBER_DOUBLE"}


PARAMETERS = """
import os
from kfp import local
import my_pipeline
local.init(local.SubprocessRunner(use_venv=False))
my_pipeline.digits_by_parameters(name="second", learning_rate=0.5)
"""


@pytest.mark.slow
def test_parameters_in_settings_have_the_values_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "my_pipeline.py").write_text(program("digits_by_parameters"))
    (tmp_path / "run.py").write_text(PARAMETERS)
    run(tmp_path / "run.py")
    trained = json.loads(next(tmp_path.glob("local_outputs/*/train/model/model.json")).read_text())
    assert (trained["learning_rate"], trained["epochs"]) == (0.5, 1.0)
    assert len(list(tmp_path.glob("datasets/second/digits/*/manifest.json"))) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": "{parameter}", "lerning_rate": 0.1},
        {"epochs": "{parameter}", "learning_rate": -1},
        {"epochs": 3, "lerning_rate": "{parameter}"},
        {"epochs": "{parameter}", "schedule": {"shape": "round"}},
    ],
)
def test_what_does_not_depend_on_a_parameter_is_checked_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):

        @dsl.pipeline
        def wrong():
            data = steps.prepare_data({"source": "digits"}).outputs["dataset"]
            parameter = steps.find_champion_folder("registry", "digits").output
            given = {name: parameter if value == "{parameter}" else value for name, value in settings.items()}
            steps.plan_training(data, train=given)


def test_a_setting_that_contradicts_a_parameters_value_is_left_to_the_step() -> None:
    @dsl.pipeline
    def possible():
        data = steps.prepare_data({"source": "digits"}).outputs["dataset"]
        value = steps.find_champion_folder("registry", "digits").output
        schedule = {"shape": "cosine", "final": 0.01}
        steps.plan_training(data, train={"epochs": value, "learning_rate": value, "schedule": schedule})


def test_an_artifact_is_no_setting() -> None:
    with pytest.raises(TypeError, match="outputs that are no artifacts"):

        @dsl.pipeline
        def wrong():
            data = steps.prepare_data({"source": "digits"}).outputs["dataset"]
            steps.evaluate(data, data, settings={"batch_size": data})


def test_an_image_leaves_the_component_itself_unchanged(tmp_path: Path) -> None:
    compiler.Compiler().compile(steps.on_image(prepare_data, "mine:1"), str(tmp_path / "step.yaml"))
    assert "image: mine:1" in (tmp_path / "step.yaml").read_text()
    assert steps.on_image(prepare_data, "") is prepare_data
    assert prepare_data.component_spec.implementation.container.image == "python:3.11"


def test_an_interpreter_in_a_folder_with_a_space_in_its_name_runs_the_steps(tmp_path: Path) -> None:
    interpreter = tmp_path / "my code" / "python"
    interpreter.parent.mkdir()
    interpreter.symlink_to(sys.executable)
    step = ["sh", "-ec", "python3 -c 'print(1)' && python3 -c 'print(2)'"]
    command = subprocess_task_handler.replace_python_executable(step, str(interpreter))
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["1", "2"]
