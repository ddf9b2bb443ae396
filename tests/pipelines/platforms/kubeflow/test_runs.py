"""Runs on a Kubeflow Pipelines server: submitted once, followed, explained, stopped."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.pipelines.api import starting
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import validate
from slipway.pipelines.platforms.kubeflow import launch
from slipway.pipelines.platforms.kubeflow.server import COOKIE_VARIABLE, TOKEN_VARIABLE, Server
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.continuing import UnansweredError
from slipway.pipelines.runs.record import CREATION_TIME, RunRecord
from slipway.pipelines.table import steps_on
from tests.fakes.errors import ConnectionReset, ServiceError
from tests.fakes.kubeflow import FakeKubeflow
from tests.fakes.mlflow import FakeMlflow
from tests.fakes.webhook import FakeWebhook
from tests.pipelines.platforms.kubeflow.conftest import IMAGE, configuration

# Of a run that trains in any case.
EXECUTED = [name for name in steps_on("kubeflow") if name != "check_drift"]


class Events:
    """A watcher that records its events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        self.seen.append((event["event"], event["step"]))


def test_a_run_is_submitted_with_its_parameters_and_followed_to_its_end(kubeflow: FakeKubeflow) -> None:
    folder, record = launch.submit(
        configuration(host=kubeflow.host, service_account="trainer", pipeline_root="s3://bucket/kfp", volume="slipway")
    )
    [(resource, run)] = kubeflow.runs.items()
    assert record.job == resource
    assert run["display_name"] == folder.run_id
    assert run["service_account"] == "trainer"
    assert run["runtime_config"] == {
        "parameters": {
            "run_id": folder.run_id,
            "output": f"/mnt/slipway/runs/{folder.run_id}",
            "data_source": "digits",
            "epochs": 30,
            "batch_size": 64,
            "learning_rate": 0.002,
            "seed": 0,
            "gate_minimum": 0.97,
        },
        "pipeline_root": "s3://bucket/kfp",
    }
    executors = run["pipeline_spec"]["pipeline_spec"]["deploymentSpec"]["executors"]
    assert {executor["container"]["image"] for executor in executors.values()} == {IMAGE}
    events = Events()
    record = launch.watch(folder, events)
    assert record.status == "succeeded"
    assert [step for event, step in events.seen if event == "finished"] == EXECUTED
    assert record.step("train").seconds == 30
    assert runs.find("latest").read() == record


def test_a_program_with_its_own_data_has_no_step_that_prepares_any(kubeflow: FakeKubeflow) -> None:
    values = configuration(host=kubeflow.host).model_dump(by_alias=True)
    own = {"data": {"uri": "s3://rows"}, "model": None, "train": {"command": ["julia", "fit.jl"]}}
    folder, record = launch.submit(validate({**values, **own}, "the test"))
    [run] = kubeflow.runs.values()
    assert run["runtime_config"]["parameters"]["data_uri"] == "s3://rows"
    events = Events()
    assert launch.watch(folder, events).status == "succeeded"
    expected = [name for name in EXECUTED if name != "prepare_data"]
    assert [step.name for step in record.steps] == expected
    assert [step for event, step in events.seen if event == "finished"] == expected


def test_a_rejected_model_leaves_the_registration_skipped(kubeflow: FakeKubeflow) -> None:
    kubeflow.rejected = True
    folder, record = launch.submit(configuration(host=kubeflow.host))
    record = launch.watch(folder, Events())
    assert (record.status, record.step("register_model").status) == ("succeeded", "skipped")


def test_a_failed_step_is_named_with_its_pods_log(kubeflow: FakeKubeflow) -> None:
    kubeflow.failures["train"] = "OOMKilled (exit code 137)"
    folder, record = launch.submit(configuration(host=kubeflow.host, namespace="ml"))
    record = launch.watch(folder, Events())
    assert record.status == "failed"
    assert record.error is not None
    assert (record.error.step, record.error.message) == ("train", "OOMKilled (exit code 137)")
    assert record.error.fix == f"kubectl -n ml logs {folder.run_id}-train-executor -c main"
    assert record.step("evaluate").status == "skipped"


@pytest.mark.parametrize("seed", range(4))
def test_one_run_is_created_despite_failing_calls(kubeflow: FakeKubeflow, seed: int) -> None:
    print(f"seed {seed}")
    kubeflow.faults._random.seed(seed)
    kubeflow.faults.share = 0.3
    folder, record = launch.submit(configuration(host=kubeflow.host))
    record = launch.watch(folder, Events())
    assert record.status == "succeeded"
    assert kubeflow.faults.struck.total() > 0
    assert len(kubeflow.runs) == 1
    assert len(kubeflow.experiments) == 1


def test_a_run_is_found_if_the_response_is_lost(kubeflow: FakeKubeflow, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[str] = []

    def after(method: str) -> None:
        if method.endswith("POST /apis/v2beta1/runs") and not lost:
            lost.append(method)
            raise ConnectionReset

    monkeypatch.setattr(kubeflow.faults, "after", after)
    _, record = launch.submit(configuration(host=kubeflow.host))
    assert lost
    assert list(kubeflow.runs) == [record.job]


def test_an_interrupted_submission_is_found_by_its_name(kubeflow: FakeKubeflow) -> None:
    folder, record = launch.submit(configuration(host=kubeflow.host))
    resource, record.job = record.job, None
    folder.write(record)
    assert launch.refresh(folder).job == resource
    record.job, record.requested = None, datetime.now(UTC)
    folder.write(record)
    kubeflow.runs.clear()
    assert launch.refresh(folder).status == "running"  # the request may still arrive
    record.requested -= CREATION_TIME
    folder.write(record)
    lost = launch.refresh(folder)
    assert lost.status == "failed"
    assert lost.error is not None
    assert "never submitted" in lost.error.message


def test_a_submission_that_is_interrupted_or_not_answered_leaves_a_run_that_is_found(
    kubeflow: FakeKubeflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, said = Server.submit, []

    def interrupted(*given: Any) -> None:
        submit(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Server, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            launch.submit(configuration(host=kubeflow.host), None, said.append)
    (folder,) = runs.folders()
    assert said[-1].startswith(f"Run {folder.run_id} may have been submitted.")
    assert launch.cancel(folder).status == "cancelled"
    assert [run["state"] for run in kubeflow.runs.values()] == ["CANCELED"]

    def unanswered(*given: Any) -> None:
        submit(*given)
        raise UnansweredError("The Kubeflow Pipelines server does not respond: reset.")

    with monkeypatch.context() as patch:
        patch.setattr(Server, "submit", unanswered)
        with pytest.raises(UnansweredError):
            launch.submit(configuration(host=kubeflow.host), None, said.append)
    newest = next(iter(runs.folders()))
    assert newest.run_id != folder.run_id
    assert launch.refresh(newest).job in kubeflow.runs


def test_cancel_ends_the_run_on_the_server(kubeflow: FakeKubeflow) -> None:
    folder, _ = launch.submit(configuration(host=kubeflow.host))
    launch.refresh(folder)
    assert starting.cancel(folder, print).status == "cancelled"
    assert [run["state"] for run in kubeflow.runs.values()] == ["CANCELED"]
    assert starting.cancel(folder, print).status == "cancelled", "repeated, it does nothing"


def test_a_rejected_run_is_removed_and_a_rejected_resume_changes_nothing(kubeflow: FakeKubeflow) -> None:
    kubeflow.faults.plan("POST /apis/v2beta1/runs", ServiceError(400, "no"), times=1)
    with pytest.raises(UserError, match="server rejected the request"):
        launch.submit(configuration(host=kubeflow.host))
    assert list(Path("runs").iterdir()) == []
    kubeflow.failures["train"] = "OOMKilled (exit code 137)"
    folder, _ = launch.submit(configuration(host=kubeflow.host))
    failed = launch.watch(folder, Events())
    kubeflow.faults.plan("POST /apis/v2beta1/runs", ServiceError(400, "no"), times=1)
    with pytest.raises(UserError, match="server rejected the request"):
        launch.resume(folder)
    assert folder.read() == failed
    assert len(kubeflow.runs) == 1


def test_a_multi_user_server_requires_a_namespace(kubeflow: FakeKubeflow) -> None:
    kubeflow.multi_user = True
    with pytest.raises(UserError) as error:
        launch.submit(configuration(host=kubeflow.host))
    assert error.value.setting == "kubeflow.namespace"
    assert runs.folders() is not None and not list(runs.folders())
    launch.submit(configuration(host=kubeflow.host, namespace="team-a"))
    assert [one["namespace"] for one in kubeflow.experiments.values()] == ["team-a"]
    with pytest.raises(UserError, match="denied access"):
        launch.submit(configuration(host=kubeflow.host, namespace="team-b"))


def test_a_token_authenticates(kubeflow: FakeKubeflow, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeflow.token = "secret-token"
    with pytest.raises(UserError) as error:
        launch.submit(configuration(host=kubeflow.host))
    assert TOKEN_VARIABLE in str(error.value)
    assert COOKIE_VARIABLE in str(error.value)
    monkeypatch.setenv(TOKEN_VARIABLE, "secret-token")
    folder, _ = launch.submit(configuration(host=kubeflow.host))
    assert not any("secret-token" in path.read_text() for path in folder.path.rglob("*") if path.is_file())


def test_an_unreachable_server_creates_nothing(kubeflow: FakeKubeflow) -> None:
    with pytest.raises(UserError, match="No Kubeflow Pipelines server") as error:
        launch.submit(configuration(host="http://localhost:1"))
    assert error.value.setting == "kubeflow.host"
    assert not list(runs.folders())


def test_a_gateway_without_its_server_is_no_wrong_address(kubeflow: FakeKubeflow) -> None:
    kubeflow.faults.plan("healthz", ServiceError(503, "no healthy upstream"), times=99)
    with pytest.raises(UserError, match=r"answers 503: .*no healthy upstream") as error:
        launch.submit(configuration(host=kubeflow.host))
    assert "No Kubeflow Pipelines server" not in error.value.message
    assert "kubectl -n kubeflow get pods" in str(error.value.fix)


def test_status_logs_and_explain_of_a_run(kubeflow: FakeKubeflow) -> None:
    Path("run.yaml").write_text(configuration(host=kubeflow.host).as_yaml())

    def slipway(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments))

    kubeflow.rejected = True
    done = slipway("run", "-c", "run.yaml", "--target", "kubeflow", "--require-promotion")
    assert done.exit_code == 3, done.output
    assert "/#/runs/details/" in done.stdout
    assert "✓ train" in done.stdout
    kubeflow.failures["evaluate"] = "the pod was evicted"
    assert slipway("run", "-c", "run.yaml", "--target", "kubeflow").exit_code == 1
    explained = slipway("explain")
    assert (explained.exit_code, "The step evaluate failed: the pod was evicted" in explained.stdout) == (1, True)
    assert "kubectl -n kubeflow logs" in slipway("logs").stderr
    kubeflow.failures.clear()
    assert slipway("run", "--resume", "latest", "--no-wait").exit_code == 0
    followed = slipway("status", "--follow")
    assert (followed.exit_code, "verdict  not promoted" in followed.stdout) == (0, True)
    first, again = list(kubeflow.runs.values())[1:]
    assert again["display_name"] == f"{first['display_name']}-2"
    assert again["runtime_config"] == first["runtime_config"]


def test_an_interruption_does_not_stop_the_run(kubeflow: FakeKubeflow, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.yaml").write_text(configuration(host=kubeflow.host).as_yaml())

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(launch, "time", SimpleNamespace(sleep=interrupt))  # the fakes' threads sleep on
        stopped = CliRunner().invoke(app, ["run", "-c", "run.yaml", "--target", "kubeflow"])
    [run] = kubeflow.runs.values()
    assert stopped.exit_code == 130
    assert run["state"] == "RUNNING"
    assert f"slipway status --follow {run['display_name']}" in stopped.stdout
    watched = CliRunner().invoke(app, ["status", "--follow"])
    assert watched.exit_code == 0
    assert (run["state"], "✓ register_model" in watched.stdout) == ("SUCCEEDED", True)


def test_the_outcome_of_a_run_is_posted_to_a_webhook(kubeflow: FakeKubeflow, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeWebhook() as webhook:
        monkeypatch.setenv("HOOK", webhook.url)  # on the cluster, the Secret sets it
        config = configuration(host=kubeflow.host, notify={"webhook": "env:HOOK"}, secret="hooks")
        kubeflow.failures["train"] = "OOMKilled (exit code 137)"
        folder, record = launch.submit(config)
        assert launch.watch(folder, Events()).status == "failed"
    [body] = webhook.received
    assert body["text"].splitlines() == [
        f"✗ {record.run_id} failed on Kubeflow (cpu)",
        "OOMKilled (exit code 137)",
        f"fix: slipway explain {record.run_id}",
        f"page: {record.console}",
    ]
    written = folder.specification_file.read_text()
    assert webhook.url not in written
    pod = list(yaml.safe_load_all(written))[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-notify"]
    assert pod["secretAsEnv"] == [{"secretName": "hooks", "keyToEnv": [{"secretKey": "HOOK", "envVar": "HOOK"}]}]


@pytest.mark.parametrize(
    ("notify", "fix"),
    [({"email": ["a@b.c"]}, "notify.webhook=env:"), ({"webhook": "env:HOOK"}, "kubeflow.secret=slipway")],
)
def test_what_kubeflow_cannot_notify_is_refused(kubeflow: FakeKubeflow, notify: dict[str, Any], fix: str) -> None:
    Path("run.yaml").write_text(configuration(host=kubeflow.host, notify=notify).as_yaml())
    result = CliRunner().invoke(app, ["run", "-c", "run.yaml", "--target", "kubeflow"])
    assert (result.exit_code, fix in result.stderr) == (2, True), result.output
    assert not kubeflow.runs


def searching(host: str, parameters: dict[str, Any], **kubeflow: Any) -> list[str]:
    """Write run.yaml; return the command that searches on the server."""
    values = configuration(host=host, **kubeflow).model_dump(mode="json", by_alias=True, exclude_none=True)
    Path("run.yaml").write_text(yaml.safe_dump({**values, "tune": {"parameters": parameters, "trials": 6}}))
    return ["tune", "-c", "run.yaml", "--target", "kubeflow"]


def test_a_search_is_submitted_and_resumed_as_a_run_whose_training_searches(kubeflow: FakeKubeflow) -> None:
    kubeflow.failures["train"] = "OOMKilled (exit code 137)"
    command = searching(kubeflow.host, {"train.learning_rate": {"low": 0.001, "high": 0.1}})
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    kubeflow.failures.clear()
    result = CliRunner().invoke(app, ["run", "--resume", "latest"])
    assert result.exit_code == 0, result.output
    assert runs.find("latest").read().searches
    for run in kubeflow.runs.values():
        tasks = run["pipeline_spec"]["pipeline_spec"]["root"]["dag"]["tasks"]
        given = tasks["train"]["inputs"]["parameters"]
        settings = json.loads(given["backend"]["runtimeValue"]["constant"])["settings"]
        search = settings["search"]
        assert (search["metric"], search["direction"], search["trials"], search["seed"]) == (
            "accuracy",
            "maximize",
            6,
            0,
        )
        assert settings["pods"]["volume"] == "slipway"


@pytest.mark.parametrize(
    ("parameters", "settings", "said"),
    [
        ({"hardware": {"choices": ["cpu", "cpu*2"]}}, {}, "hardware cannot be tuned on Kubeflow"),
        ({"train.batch_size": {"choices": [32, 64]}}, {"pipeline_root": "s3://bucket/kfp"}, "kubeflow.volume"),
    ],
)
def test_a_search_that_kubeflow_cannot_execute_is_refused(
    kubeflow: FakeKubeflow, parameters: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    result = CliRunner().invoke(app, searching(kubeflow.host, parameters, **settings))
    assert (result.exit_code, said in result.output) == (2, True), result.output
    assert not kubeflow.runs


def test_a_run_that_the_server_has_created_in_mlflow_is_continued_there(kubeflow: FakeKubeflow) -> None:
    with FakeMlflow() as mlflow:
        kubeflow.mlflow = mlflow
        values = configuration(host=kubeflow.host).model_dump(mode="json", by_alias=True, exclude_none=True)
        Path("run.yaml").write_text(yaml.safe_dump({**values, "track": {"mlflow": mlflow.url}}))
        result = CliRunner().invoke(app, ["run", "-c", "run.yaml", "--target", "kubeflow"])
        assert result.exit_code == 0, result.output
        (run,) = mlflow.runs.values()
        record = runs.find("latest").read()
        assert (run.tags["slipway.run"], run.tags["slipway.verdict"]) == (record.run_id, "promote")
        assert (run.info["status"], run.params["train.epochs"]) == ("FINISHED", "30.0")
        with FakeMlflow() as other:
            sent = CliRunner().invoke(app, ["runs", "track", "latest", "--set", f"track.mlflow={other.url}"])
            assert sent.exit_code == 0, sent.output
            assert other.run(record.run_id).info["status"] == "FINISHED"
