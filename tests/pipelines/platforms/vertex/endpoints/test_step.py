"""The step `deploy` in the pipeline for Vertex AI, and the checks that runs with it make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slipway.pipelines.cli.app import app
from tests.pipelines.platforms.vertex.endpoints.conftest import PARENT, Workspace
from tests.pipelines.platforms.vertex.test_spec import VERTEX


@pytest.fixture
def compile_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile a run whose endpoint file has these settings; return the command's result and the spec."""
    digits = yaml.safe_load(Path("configs/digits.yaml").read_text()) | {"vertex": VERTEX}
    monkeypatch.chdir(tmp_path)
    Path("configs/endpoints").mkdir(parents=True)

    def compiled(target: str = "vertex", deploy: str | None = "digits", **settings: Any) -> Any:
        section = {} if deploy is None else {"deploy": {"endpoint": deploy}}
        Path("run.yaml").write_text(yaml.safe_dump(digits | section))
        endpoint = {"configuration": "run.yaml", **settings}
        Path("configs/endpoints/digits.yaml").write_text(yaml.safe_dump(endpoint))
        arguments = ["config", "compile", "-c", "run.yaml", "--target", target, "-o", "spec.yaml"]
        result = CliRunner().invoke(app, arguments)
        return result, yaml.safe_load(Path("spec.yaml").read_text()) if result.exit_code == 0 else {}

    return compiled


def test_a_promoted_model_is_deployed_after_it_was_registered(compile_: Any) -> None:
    result, spec = compile_(max_replicas=4)
    assert result.exit_code == 0, result.output
    condition = spec["components"]["comp-condition-1"]["dag"]["tasks"]
    assert condition["deploy-model"]["dependentTasks"] == ["register-version"]
    inputs = condition["deploy-model"]["inputs"]
    assert inputs["artifacts"]["registered"]["taskOutputArtifact"]["producerTask"] == "register-version"
    deployment = json.loads(inputs["parameters"]["deployment"]["runtimeValue"]["constant"])
    assert deployment["settings"]["max_replicas"] == 4
    assert "retryPolicy" not in condition["deploy-model"]


@pytest.mark.parametrize(("target", "deploy"), [("vertex", None), ("local", "digits")])
def test_without_the_section_or_on_this_machine_nothing_is_deployed(
    compile_: Any, target: str, deploy: str | None
) -> None:
    result, spec = compile_(target, deploy)
    assert result.exit_code == 0, result.output
    assert "comp-register-version" in spec["components"] or "comp-register-model" in spec["components"]
    assert "deploy-model" not in json.dumps(spec["components"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"set": ["vertex.project=other"]}, "The endpoint digits is in other in europe-west4, the run in p in"),
        ({"model": "other"}, "The endpoint digits serves the model other; the run registers digits."),
        ({"machine": "n1-standard-3"}, "There is no machine type for online prediction 'n1-standard-3'."),
        ({"set": ["vertex.region=africa-south1"], "machine": "h100x1"}, "The endpoint digits is in p in africa-south1"),
        ({"machine": "gb200x4"}, "europe-west4 has no gb200x4"),
    ],
)
def test_an_endpoint_that_does_not_fit_is_found_before_the_run(
    compile_: Any, settings: dict[str, Any], problem: str
) -> None:
    result, _ = compile_(**settings)
    assert result.exit_code == 2
    assert problem.lower() in result.stderr.lower()


def test_an_endpoint_that_does_not_exist_is_named(compile_: Any) -> None:
    result, _ = compile_(deploy="digit")
    assert result.exit_code == 2
    assert "there is no endpoint 'digit'." in result.stderr


@pytest.fixture
def run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a pipeline that registers digits@N and deploys it, on the fake Vertex AI; return result and record."""
    from slipway.pipelines.platforms.vertex import run as watch

    monkeypatch.setattr(watch, "pause", lambda: None)
    # The step in this process leaves its signal handlers and logging alone.
    monkeypatch.setattr("slipway.components.step.stop_signals", tuple)
    monkeypatch.setattr("slipway.components.step.logging.basicConfig", lambda **_: None)
    configuration = workspace.folder / "configs/digits.yaml"
    configuration.write_text(configuration.read_text() + "deploy:\n  endpoint: digits\n")

    def ran(version: int, *, champion: bool = True) -> tuple[Any, dict[str, Any]]:
        name = f"{PARENT}/models/digits@{version}"
        registered = {"registered": (f"https://vertex/{name}", {"resourceName": name, "champion": champion})}
        workspace.google.region.pipelines.script["register-version"].work = lambda _: registered
        result = workspace.slipway("run", "-c", "configs/digits.yaml", "--target", "vertex", "--no-check")
        return result, json.loads((workspace.folder / "runs/latest/run.json").read_text())

    return ran


def test_a_run_deploys_what_it_registers_and_fails_if_that_is_withdrawn(workspace: Workspace, run: Any) -> None:
    workspace.register()
    result, record = run(1)
    assert result.exit_code == 0, result.output
    steps = [step["name"] for step in record["steps"]]
    assert steps[-2:] == ["register_model", "deploy"]
    assert workspace.traffic == {"digits@1": 100}
    workspace.register("--failing", "1")
    result, record = run(2)
    assert result.exit_code == 1, result.output
    assert [step["name"] for step in record["steps"] if step["status"] == "failed"] == ["deploy"]
    assert workspace.traffic == {"digits@1": 100}


@pytest.mark.parametrize(("decision", "champion"), [("reject", True), ("promote", False)])
def test_a_run_deploys_nothing_that_is_not_the_champion(
    workspace: Workspace, run: Any, decision: str, champion: bool
) -> None:
    workspace.register()
    workspace.google.region.pipelines.script["evaluate"].outputs = {"Output": decision}
    result, _ = run(1, champion=champion)
    assert result.exit_code == 0, result.output
    assert workspace.endpoints.all() == []
