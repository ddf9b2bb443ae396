"""Runs are sent to MLflow once, while they are executed and later; a server that fails costs a warning."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.platforms.base import CheckWarning, Context
from slipway.pipelines.platforms.table import PLATFORMS
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import Part, RunFolder, RunRecord, StepRecord
from slipway.pipelines.tracking import mlflow, tracking
from slipway.pipelines.tracking.checks import tracker
from tests.fakes.http_service import Raw, Stream
from tests.fakes.mlflow import FakeMlflow, StoredRun


@pytest.fixture
def server() -> Iterator[FakeMlflow]:
    with FakeMlflow() as found:
        yield found


def configuration(server: FakeMlflow, **track: Any) -> RunConfig:
    values = {
        "name": "digits",
        "data": {"source": "digits"},
        "model": {
            "builder": "slipway.trainer.models.digits:build",
            "arguments": {"é(x)": "y" * 9000, **{f"a{n}": n for n in range(99)}},
        },
        "train": {"epochs": 2},
        "tune": {"parameters": {"train.learning_rate": {"low": 0.1, "high": 0.5}}},
        "notify": {"webhook": "https://chat/s3cret"},
        "track": {"mlflow": server.url, **track},
    }
    return validate(values, "test.yaml")


@pytest.fixture
def folder(tmp_path: Path, server: FakeMlflow) -> RunFolder:
    return runs.create(configuration(server), tmp_path / "my runs")


def record_of(folder: RunFolder, **fields: Any) -> RunRecord:
    return RunRecord(
        run_id=folder.run_id, name="digits", platform="local", hardware="cpu", created=datetime.now(UTC),
        steps=[
            StepRecord(name="prepare_data", outputs={"fingerprint": "f1"}), StepRecord(name="train"),
            StepRecord(name="evaluate"),
        ], **fields
    )  # fmt: skip


def ended(record: RunRecord) -> RunRecord:
    record.status, record.ended = "succeeded", datetime.now(UTC)
    record.step("evaluate").outputs = {"metrics": {"accuracy": 0.75, "loss": 1.5}}
    return record


def trained(folder: RunFolder, *steps: int) -> None:
    """Write a history with these steps."""
    file = folder.path / "train" / "logs" / "metrics.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    for step in steps:
        lines.append({"kind": "train", "step": step, "epoch": step / 10, "loss": 1 / step, "time": 1000.5 + step})
        lines.append({"kind": "validation", "step": step, "loss": None, "recall@5": 0.5, "time": 1000.5 + step})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def send(folder: RunFolder, config: RunConfig, record: RunRecord) -> None:
    tracking.tracker_of(config).send(tracking.of_run(folder, config, record))


@pytest.fixture
def sent_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is sent again after some milliseconds."""
    monkeypatch.setattr(tracking, "SECONDS", 0.01)
    monkeypatch.setattr(tracking, "MAX_FRACTION", 1.0)


def test_a_run_is_sent_once_however_often_it_is_sent(folder: RunFolder, server: FakeMlflow) -> None:
    config, record = configuration(server), record_of(folder)
    trained(folder, 1, 2)
    send(folder, config, record)
    run = server.run(folder.run_id)
    assert run.info["status"] == "RUNNING"
    assert not server.artifacts
    trained(folder, 1, 2, 3)
    folder.report_file.write_text("<p>report")
    for _ in range(2):
        send(folder, config, ended(record))
    assert server.run(folder.run_id) is run
    assert run.series("train/loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert run.series("train/epoch") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert run.series("validation/recall_5") == [(step, 0.5) for step in (1, 2, 3)]
    assert run.metrics[0]["timestamp"] == 1001500
    assert {name: run.series(f"test/{name}") for name in record.metrics} == {
        "accuracy": [(3, 0.75)],
        "loss": [(3, 1.5)],
    }
    assert run.params["train.epochs"] == "2.0"
    assert run.params["model.arguments.é_x_"] == "y" * 500
    assert run.params["tune.parameters.train.learning_rate.high"] == "0.5"
    assert len(run.params) > 100  # more than a batch
    assert not any("s3cret" in value for value in run.params.values())
    tags = {"slipway.run": folder.run_id, "slipway.data": "f1", "slipway.configuration": config.fingerprint()}
    assert run.tags.items() >= tags.items()
    assert (run.info["status"], run.info["end_time"]) == ("FINISHED", round(1000 * record.ended.timestamp()))
    assert server.artifacts == {f"1/{run.info['run_id']}/artifacts/report.html": b"<p>report"}
    assert server.experiments == {"digits": "1"}


def test_a_programs_options_are_parameters(tmp_path: Path, server: FakeMlflow) -> None:
    values = {"name": "x", "track": {"mlflow": server.url}}
    config = validate({**values, "train": {"module": "program", "arguments": ["--lr", "1e-3", "--fast"]}}, "test.yaml")
    folder = runs.create(config, tmp_path)
    send(folder, config, record_of(folder))
    sent = {name: value for name, value in server.run(folder.run_id).params.items() if name.startswith("train.")}
    assert {name: value for name, value in sent.items() if not name.startswith("train.restarts.")} == {
        "train.module": "program",
        "train.processes": "1",
        "train.arguments.lr": "0.001",
        "train.arguments.fast": "true",
    }


def test_another_evaluation_adds_its_metrics_and_leaves_the_parameters(folder: RunFolder, server: FakeMlflow) -> None:
    trained(folder, 5)
    record = ended(record_of(folder))
    send(folder, configuration(server), record)
    changed = configuration(server).model_copy(update={"name": "other"})
    record.metrics["accuracy"], record.ended = 0.5, datetime.now(UTC)
    tracking.tracker_of(configuration(server)).send(tracking.of_run(folder, changed, record))
    run = server.run(folder.run_id)
    assert run.series("test/accuracy") == [(5, 0.75), (5, 0.5)]
    assert run.series("test/loss") == [(5, 1.5)]
    assert run.params["name"] == "digits"


@pytest.mark.usefixtures("sent_often")
def test_a_server_that_is_killed_costs_a_warning_with_what_was_not_sent(folder: RunFolder, server: FakeMlflow) -> None:
    said: list[str] = []
    record = record_of(folder)
    trained(folder, 1, 2)
    with tracking.tracked(folder, configuration(server), record, said.append):
        until(lambda: server.runs and server.run(folder.run_id).series("train/loss") == [(1, 1.0), (2, 0.5)])
        server.stop()
        trained(folder, 1, 2, 3, 4)
        folder.report_file.write_text("<p>report")
        ended(record)
    [warning] = said
    assert "could not be reached (ConnectionError). Not sent: metrics (8 values), status, report.html." in warning
    assert warning.endswith(f"To send it: slipway runs track {folder.run_id}")
    server.start()
    send(folder, configuration(server), record)
    run = server.run(folder.run_id)
    assert [step for step, _ in run.series("train/loss")] == [1, 2, 3, 4]
    assert run.info["status"] == "FINISHED"


@pytest.mark.usefixtures("sent_often")
def test_a_server_that_has_lost_the_run_receives_it_again(folder: RunFolder, server: FakeMlflow) -> None:
    said: list[str] = []
    record = record_of(folder)
    trained(folder, 1)
    with tracking.tracked(folder, configuration(server), record, said.append):
        until(lambda: "/runs/update" in server.calls)
        server.runs = {}
        until(lambda: server.runs and server.run(folder.run_id).metrics)
        ended(record)
    assert said == []
    assert server.run(folder.run_id).series("train/loss") == [(1, 1.0)]


def test_a_server_that_is_down_from_the_start(folder: RunFolder) -> None:
    said: list[str] = []
    stopped = FakeMlflow().start()
    stopped.stop()
    with tracking.tracked(folder, configuration(stopped), record_of(folder), said.append):
        pass
    [warning] = said
    assert "Not sent: parameters, metrics (0 values), status." in warning


@pytest.mark.parametrize(
    ("variables", "header"),
    [
        ({"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "pw"}, "Basic YW5uOnB3"),
        ({"MLFLOW_TRACKING_TOKEN": "t0ken"}, "Bearer t0ken"),
    ],
)
def test_credentials_are_those_of_mlflow(
    folder: RunFolder, server: FakeMlflow, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], header: str
) -> None:
    server.authorization = header
    with pytest.raises(UserError, match="answered 401: Unauthorized"):
        tracking.tracker_of(configuration(server)).check()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    send(folder, configuration(server), record_of(folder))
    assert server.run(folder.run_id)


@pytest.mark.parametrize("url", ["http://ann:pw@host", "host:5000", "file:///mlruns"])
def test_other_addresses_are_refused(server: FakeMlflow, url: str) -> None:
    with pytest.raises(UserError, match=r"track\.mlflow"):
        configuration(server, mlflow=url)


def test_artifacts_of_a_server_that_does_not_store_them_are_named(folder: RunFolder, server: FakeMlflow) -> None:
    server.root = "s3://bucket"
    folder.report_file.write_text("<p>report")
    with pytest.raises(UserError, match=r"stores artifacts in s3://bucket.* Not sent: report\.html\.$"):
        send(folder, configuration(server), ended(record_of(folder)))
    run = server.run(folder.run_id)
    assert (run.info["status"], "end_time" in run.info, run.tags["slipway.data"]) == ("FINISHED", True, "f1")


def test_trials_are_children_of_their_search_which_ends_with_the_evaluation(
    folder: RunFolder, server: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path.parent.parent)
    folder.path.parent.rename("runs")
    trial, config = RunFolder(Path("runs") / folder.run_id), configuration(server, experiment="searches")
    record = record_of(trial, study="digits-1", part=Part(source="base", first="plan_training", last="train"))
    said: list[str] = []
    with tracking.tracked_study(config, "digits-1", said.append):
        search: StoredRun = server.run("digits-1")
        assert search.info["status"] == "RUNNING"
        send(trial, config, ended(record))
        trial.write(record)
        trained(trial, 1)  # after the trial was sent
        best = runs.create(config)
        best.write(ended(record_of(best, study="digits-1", part=Part(source="t", first="evaluate", last="register"))))
    assert said == []
    assert (search.info["status"], search.series("test/accuracy")) == ("FINISHED", [(0, 0.75)])
    assert search.tags["slipway.best"] == best.run_id
    assert server.run(trial.run_id).series("train/loss") == [(1, 1.0)]
    assert set(search.params) == {name for name in server.run(trial.run_id).params if name.startswith("tune.")}
    for child in (trial, best):
        assert server.run(child.run_id).tags["mlflow.parentRunId"] == search.info["run_id"]
    assert len(server.runs) == 3


def test_a_search_that_is_stopped_is_sent_later_by_its_name(
    folder: RunFolder, server: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path.parent.parent)
    folder.path.parent.rename("runs")
    trial, config = RunFolder(Path("runs") / folder.run_id), configuration(server)
    trial.write(ended(record_of(trial, study="digits-1")))
    said: list[str] = []
    server.stop()
    with pytest.raises(KeyboardInterrupt), tracking.tracked_study(config, "digits-1", said.append):
        raise KeyboardInterrupt
    assert [line.rpartition("To send it: ")[2] for line in said] == ["slipway runs track digits-1"] * 2
    server.start()
    sent = CliRunner().invoke(app, ["runs", "track", "digits-1", "--set", f"track.mlflow={server.url}"])
    assert sent.exit_code == 0, sent.output
    search = server.run("digits-1")
    assert (search.info["status"], search.info["run_id"] in sent.output) == ("KILLED", True)
    assert server.run(trial.run_id).tags["mlflow.parentRunId"] == search.info["run_id"]


def test_the_command_sends_a_run_and_needs_a_tracker(
    folder: RunFolder, server: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path.parent.parent)
    folder.path.parent.rename("runs")
    RunFolder(Path("runs") / folder.run_id).write(ended(record_of(folder)))
    sent = CliRunner().invoke(app, ["runs", "track"])
    assert sent.stdout.strip() == f"{server.url}/#/experiments/1/runs/{server.run(folder.run_id).info['run_id']}"
    refused = CliRunner().invoke(app, ["runs", "track", "latest", "--set", "track=null"])
    assert (refused.exit_code, "has no section track" in refused.output) == (2, True)
    assert re.search(r"fix:      slipway runs track \S+ --set track\.mlflow=http://localhost:5000\n", refused.output)


def test_the_command_sends_no_rehearsal(folder: RunFolder, server: FakeMlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path.parent.parent)
    folder.path.parent.rename("runs")
    RunFolder(Path("runs") / folder.run_id).write(ended(record_of(folder, rehearsal=9)))
    refused = CliRunner().invoke(app, ["runs", "track"])
    assert (refused.exit_code, f"{folder.run_id} is a rehearsal" in refused.output) == (2, True)
    assert server.runs == {}


def test_the_doctor_warns_of_a_server_that_does_not_respond(server: FakeMlflow) -> None:
    context = Context(configuration(server), PLATFORMS["local"])
    assert tracker(context) == f"MLflow at {server.url}"
    server.stop()
    with pytest.raises(CheckWarning, match="could not be reached"):
        tracker(context)


# Answers that are not MLflow's; the last is only noticed where it is read.
HOSTILE = {
    "login page": b"<!doctype html><title>Sign in</title>",
    "list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "not UTF-8": b'{"experiment_id": "\xff"}',
    "other types": b'{"experiment": null, "run": [], "runs": {}, "experiment_id": []}',
}


@pytest.mark.parametrize("answer", [*HOSTILE])
def test_an_answer_that_is_not_mlflows_is_a_sentence_at_every_call(
    folder: RunFolder, server: FakeMlflow, answer: str
) -> None:
    """Whichever call of a transmission it answers, as a proxy whose session has ended."""
    folder.report_file.write_text("<p>report")
    trained(folder, 1)
    record, refused = ended(record_of(folder)), list[int]()
    for hostile in range(12):
        server.runs, server.experiments, server.calls, calls = {}, {}, [], itertools.count()
        server.gate = lambda _: Raw(HOSTILE[answer]) if next(calls) == hostile else None  # noqa: B023
        try:
            send(folder, configuration(server), record)
        except UserError as error:
            assert re.search("did not answer as MLflow does, but with no content type; .* Not sent: ", error.message)
            refused.append(hostile)
    assert refused == ([0, 1, 2, 3] if answer == "other types" else [*range(10)])


def test_the_command_says_in_a_sentence_that_a_server_is_none_of_mlflow(
    folder: RunFolder, server: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path.parent.parent)
    folder.path.parent.rename("runs")
    RunFolder(Path("runs") / folder.run_id).write(ended(record_of(folder)))
    server.gate = lambda _: Raw(HOSTILE["login page"], headers={"Content-Type": "text/html"})
    refused = CliRunner().invoke(app, ["runs", "track"])
    assert (
        refused.exit_code,
        refused.output.startswith(f"error: MLflow at {server.url} did not answer as MLflow does, "),
    ) == (2, True)
    assert "but with text/html; it may be a proxy or login page. Not sent: parameters, " in " ".join(
        refused.output.split()
    )


HEADER = b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\nA: "


@pytest.fixture(params=[HEADER, HEADER + b"\r\n\r\n"])
def dripping(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that answers with a byte now and then, in the header or the body."""
    ends = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(request.param)
            while not ends.wait(0.05):
                connection.sendall(b"a")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=[listening.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        ends.set()


def test_a_server_that_drips_ends_a_call_and_delays_a_run_only_for_a_while(
    folder: RunFolder, server: FakeMlflow, dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, said, began = configuration(server, mlflow=dripping), list[str](), time.monotonic()
    monkeypatch.setattr(mlflow, "CALL_SECONDS", 0.3)
    with pytest.raises(UserError, match="did not answer completely in 0 s"):
        tracking.tracker_of(config).check()
    monkeypatch.setattr(mlflow, "CALL_SECONDS", 60)
    monkeypatch.setattr(tracking, "MAX_DELAY_SECONDS", 0.3)
    with tracking.tracked(folder, config, record_of(folder), said.append):
        pass
    with tracking.tracked_study(config, "digits-1", said.append):
        pass
    assert time.monotonic() - began < 20
    assert [warning.partition(dripping)[2][:22] for warning in said] == [
        " took more than 0 s. T",
        " did not answer comple",
        " did not answer comple",
    ]


def test_a_large_answer_is_not_read_to_its_end(server: FakeMlflow) -> None:
    sent: list[int] = []

    def parts() -> Iterator[bytes]:
        for _ in range(3000):
            sent.append(1)
            yield bytes(1 << 20)

    server.gate = lambda _: Stream(parts(), "application/json")
    with pytest.raises(UserError, match="answered with more than 8,000,000 bytes"):
        tracking.tracker_of(configuration(server)).check()
    assert len(sent) < 100


def test_an_error_of_the_client_is_a_warning_with_the_command_that_sends_the_rest() -> None:
    said: list[str] = []
    with tracking.warned(said.append, "slipway runs track r-1"):
        raise ValueError("too long")
    (warning,) = said
    assert warning.startswith("warning: not everything was tracked. ")
    assert "ValueError: too long" in warning
    assert warning.endswith("; to send it: slipway runs track r-1")
