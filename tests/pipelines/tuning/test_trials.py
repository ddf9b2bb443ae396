"""Trials without processes: their runs are folders in which the test plays the training."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import pytest

from slipway.core.errors import UserError
from slipway.pipelines.api import starting
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.local import launch
from slipway.pipelines.runs import lock
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.deadline import deadline
from slipway.pipelines.runs.record import ErrorRecord, RunFolder, RunRecord, StepRecord
from slipway.pipelines.tuning import search, trials
from slipway.pipelines.tuning import study as studies
from slipway.pipelines.tuning.trials import Ended, Trials
from slipway.trainer.config import ModelSettings
from tests.pipelines.tuning.test_study import RATE, configuration

Play = Callable[[RunRecord, float], None]


class Machine:
    """Starts runs by calling `play` with the record and the learning rate; counts starts and resumes."""

    def __init__(self, root: Path, play: Play) -> None:
        self.root, self.play = root, play
        self.started: list[str] = []
        self.resumed: list[str] = []

    @contextlib.contextmanager
    def rerun(self, _base: RunFolder, _only: str, _from: None, changes: list[str], *_: Any, **__: Any) -> Iterator[Any]:
        earlier = len([path for path in (self.root / "runs").iterdir() if not path.is_symlink()])
        rate = float(changes[0].partition("=")[2])
        if rate > 0.09:
            raise UserError("the rate is too high")
        folder = RunFolder(self.root / "runs" / f"trial-{earlier}")
        folder.path.mkdir()
        record = RunRecord(
            run_id=folder.run_id, name="digits", platform="local", hardware="cpu", created=datetime.now(UTC),
            steps=[StepRecord(name="train", outputs={"rate": rate})],
        )  # fmt: skip
        folder.write(record)
        yield starting.Ready(folder, None, record)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def resume(self, folder: RunFolder, *_: Any) -> Iterator[Any]:
        assert folder.holder() is None  # otherwise refused
        self.resumed.append(folder.run_id)
        yield starting.Ready(folder, None, folder.read())  # type: ignore[arg-type]

    def start(self, folder: RunFolder, record: RunRecord, _starter: object) -> None:
        self.started.append(folder.run_id)
        rate = record.steps[0].outputs["rate"]
        record.status, record.error = "succeeded", None
        self.play(record, rate)
        if record.status == "succeeded":
            record.steps[0].outputs.setdefault("validation", {"accuracy": rate})
        folder.write(record)


def report(root: Path, record: RunRecord, value: float) -> None:
    """Write the validations of three epochs."""
    logs = root / "runs" / record.run_id / "train" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    lines = [{"kind": "validation", "step": 9 * epoch, "epoch": epoch, "accuracy": value} for epoch in (1, 2, 3)]
    (logs / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


Execute = Callable[..., list[Ended]]


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(trials, "POLL_SECONDS", 0)

    def executed(play: Play, stop: Callable[[], bool] = lambda: False, **fields: Any) -> list[Ended]:
        machine = executed.machine = Machine(tmp_path, play)  # type: ignore[attr-defined]
        monkeypatch.setattr(starting, "rerun", machine.rerun)
        monkeypatch.setattr(starting, "resumed", machine.resume)
        monkeypatch.setattr(launch, "start", machine.start)
        config = configuration(RATE, **fields)
        tune = search.settings_of(config)
        study = executed.study = studies.open_study(config, tune)  # type: ignore[attr-defined]
        return list(Trials(study, RunFolder(tmp_path / "base"), config, tune).execute(stop))

    return executed  # type: ignore[return-value]


def test_each_trial_is_one_run_and_its_value_the_validation_metric(execute: Any) -> None:
    ended = execute(lambda _record, _rate: None, trials=5, failures=5, parallel=2)
    assert [each.number for each in ended] == [0, 1, 2, 3, 4]
    done = [each for each in ended if each.state == "COMPLETE"]
    assert [each.value for each in done] == [each.values["train.learning_rate"] for each in done]
    assert execute.machine.started == [f"trial-{number}" for number in range(len(done))]
    assert {each.error for each in ended if each.state == "FAIL"} <= {"the rate is too high"}


def test_a_run_whose_trial_has_no_value_has_failed(execute: Any) -> None:
    ended = execute(lambda record, _rate: record.steps[0].outputs.update(validation={"loss": 1}), trials=1, failures=9)
    assert ended[0].error.startswith("the training reported no accuracy of the validation split, but loss")
    assert 'slipway.training.report(step, kind="validation", accuracy=…)' in ended[0].error
    record = runs.find("trial-0").read()
    assert (record.status, record.error and record.error.message) == ("failed", ended[0].error)


def test_failed_trials_are_tried_again_with_the_same_values_after_a_fix(execute: Any) -> None:
    def fails(record: RunRecord, _rate: float) -> None:
        record.status, record.error = "failed", ErrorRecord(step="train", message="KeyError: 'width'")

    assert [each.state for each in execute(fails, trials=4, failures=1)] == ["FAIL", "FAIL"]
    rates = [trial.params["train.learning_rate"] for trial in execute.study.trials]
    assert studies.studies.repeat_failed(execute.study) == 2
    assert studies.studies.repeat_failed(execute.study) == 0
    ended = execute(lambda _record, _rate: None, trials=4, failures=1)
    assert [each.state for each in ended] == ["COMPLETE"] * 4
    assert [each.values["train.learning_rate"] for each in ended[:2]] == rates


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Begin a search whose data are those of a file; the run that prepares them is a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "data").write_text("1")
    (tmp_path / "network.py").write_text("import layers")
    (tmp_path / "layers.py").write_text("width = 1")
    said: list[str] = []

    def prepare(config: RunConfig, study: optuna.Study, _say: object) -> RunFolder:
        folder = runs.create(config)
        outputs = {"fingerprint": Path("data").read_text()}
        steps = [StepRecord(name="prepare_data", status="succeeded", outputs=outputs)]
        folder.write(
            RunRecord(
                run_id=folder.run_id, name="digits", platform="local", hardware="cpu", created=datetime.now(UTC),
                steps=steps, study=study.study_name,
            )
        )  # fmt: skip
        return folder

    monkeypatch.setattr(trials, "prepare", prepare)

    def begun(results: int = 1, continued: bool = False) -> tuple[optuna.Study, list[str]]:
        said.clear()
        config = configuration(RATE).model_copy(update={"model": ModelSettings(builder="network:build")})
        study, base = trials.begin(config, search.settings_of(config), said.append, continued=continued)
        trials.note(config, study, base or prepare(config, study, None))
        for _ in range(results):
            study.tell(study.ask(), 0.5)
        return study, said

    return begun


@pytest.mark.parametrize("file", ["network.py", "layers.py", "data"])
def test_a_change_of_code_or_data_begins_another_study(begin: Any, file: str) -> None:
    first, said = begin()
    assert (begin()[0].study_name, said) == (first.study_name, [])
    before = Path(file).read_text()
    Path(file).write_text(f"{before}\n")
    second, _ = begin()
    assert second.study_name == f"{first.study_name}-2"
    name = "the data set" if file == "data" else file
    assert said == [
        f"changed since the 2 trials of {first.study_name}: {name}. A new study begins; to add trials to that one: "
        "slipway tune --continue"
    ]
    Path(file).write_text(before)
    assert begin()[0].study_name == first.study_name


def test_the_newest_study_is_continued_when_asked_or_without_results(begin: Any) -> None:
    first, said = begin(results=0)
    Path("network.py").write_text("import layers  # corrected")
    assert begin(results=1)[0].study_name == first.study_name
    Path("network.py").write_text("import layers  # changed")
    assert begin(continued=True)[0].study_name == first.study_name
    assert said == [f"changed since the 1 trials of {first.study_name}: network.py."]
    assert (begin()[0].study_name, said) == (first.study_name, [])


def test_a_killed_run_is_resumed_a_failed_one_is_not(execute: Any) -> None:
    def play(record: RunRecord, _rate: float) -> None:
        if execute.machine.started.count(record.run_id) == 1:
            killed = record.run_id == "trial-0"
            record.status = "failed"
            record.error = ErrorRecord(step="train", message=launch.KILLED if killed else "ValueError: diverged")

    ended = execute(play, trials=2, failures=9)
    states = {each.number: each.state for each in ended}
    assert states == {0: "COMPLETE", 1: "FAIL"}
    assert execute.machine.resumed == ["trial-0"]
    assert "diverged" in ended[1].error
    assert [trial.user_attrs.get(trials.ERROR) for trial in execute.study.trials] == [None, ended[1].error]


def test_a_stopped_run_is_resumed_after_its_process_has_ended(execute: Any) -> None:
    locks: list[int] = []

    def play(record: RunRecord, _rate: float) -> None:
        if not locks:
            locks.append(lock.acquire(RunFolder(Path("runs") / record.run_id).lock_file, record.run_id))
            record.status = "cancelled"

    polls = iter(range(9))

    def stop() -> bool:
        if next(polls) == 3:
            assert execute.machine.resumed == []
            os.close(locks[0])
        return False

    (ended,) = execute(play, stop, trials=1)
    assert (ended.state, execute.machine.resumed) == ("COMPLETE", ["trial-0"])


def test_a_run_that_is_always_killed_fails_at_last(execute: Any) -> None:
    def play(record: RunRecord, _rate: float) -> None:
        record.status, record.error = "failed", ErrorRecord(step="train", message=launch.KILLED)

    (ended,) = execute(play, trials=1)
    assert ended.state == "FAIL"
    assert len(execute.machine.resumed) == trials.MAX_RESUMES


def test_the_search_stops_when_too_many_trials_fail(execute: Any) -> None:
    def play(record: RunRecord, _rate: float) -> None:
        record.status, record.error = "failed", ErrorRecord(step="train", message="out of memory")

    ended = execute(play, trials=20, failures=2)
    assert [each.state for each in ended] == ["FAIL"] * 3


def test_no_trial_starts_after_the_time(execute: Any) -> None:
    assert execute(lambda _record, _rate: None, trials=3, hours=1e-9) == []
    assert execute.study.trials == []


def test_a_trial_that_is_worse_than_the_median_is_pruned(execute: Any, tmp_path: Path) -> None:
    def play(record: RunRecord, _rate: float) -> None:
        number = int(record.run_id.removeprefix("trial-"))
        report(tmp_path, record, 0.1 if number == 5 else 0.5 + number / 100)
        if number == 5:  # its run is stopped
            record.status, record.seconds = "cancelled", 2.5

    ended = execute(play, trials=7, failures=7, pruning="median")
    runs_of = {trial.user_attrs.get("run"): trial.state.name for trial in execute.study.trials}
    assert runs_of["trial-5"] == "PRUNED"
    assert execute.machine.resumed == []
    assert len(ended) == 7
    assert next(trial.seconds for trial in ended if trial.state == "PRUNED") == 2.5
    assert [runs.find(f"trial-{number}").read().status for number in (4, 5)] == ["succeeded", "pruned"]


def test_unfinished_trials_are_continued_with_their_runs(execute: Any) -> None:
    def play(record: RunRecord, _rate: float) -> None:
        record.status = "cancelled"  # by the stopped command

    calls = iter([False, True])
    assert execute(play, stop=lambda: next(calls), trials=3, failures=9) == []
    assert [trial.state.name for trial in execute.study.trials] == ["RUNNING"]
    first = execute.study.trials[0]
    assert runs.find(first.user_attrs["run"]).run_id == "trial-0"
    ended = execute(lambda _record, _rate: None, trials=3, failures=9)
    assert sorted(each.number for each in ended) == [0, 1, 2]
    assert execute.machine.resumed == ["trial-0"]


@pytest.mark.parametrize("ends", [True, False], ids=["by SIGTERM", "by SIGKILL"])
def test_a_trial_that_hangs_is_stopped_and_has_failed(
    execute: Any, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Its run holds its lock in another process, which may ignore SIGTERM."""
    processes: list[subprocess.Popen[bytes]] = []

    def play(record: RunRecord, _rate: float) -> None:
        if record.run_id != "trial-1":
            return
        code = "import fcntl, os, signal, socket, sys, time\n"
        code += "" if ends else "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        code += "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\nfcntl.flock(fd, fcntl.LOCK_EX)\n"
        code += "os.write(fd, f'{os.getpid()} {socket.gethostname()}'.encode())\nprint(flush=True)\ntime.sleep(60)"
        file = RunFolder(Path("runs") / record.run_id).lock_file
        processes.append(subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE))
        assert processes[0].stdout is not None
        processes[0].stdout.readline()
        record.status, record.process = "running", processes[0].pid

    monkeypatch.setattr(trials, "KILL_SECONDS", 30.0 if ends else 0.5)
    ended = execute(play, trials=3, failures=9, trial_hours=0.2 / 3600)
    assert [each.state for each in ended] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "did not end within" in ended[1].error
    assert "--set tune.trial_hours=HOURS" in ended[1].error
    assert processes[0].wait() == (-signal.SIGTERM if ends else -signal.SIGKILL)
    record = runs.find("trial-1").read()
    assert (record.status, record.error and record.error.message) == ("failed", ended[1].error)
    assert execute.machine.resumed == [], "it is not continued, as a run that was stopped by the user"


def test_the_limit_of_a_trial_is_five_times_the_median_of_the_completed_ones(execute: Any) -> None:
    def play(record: RunRecord, _rate: float) -> None:
        record.steps[0].seconds = 60 * float(record.run_id.removeprefix("trial-")) + 300

    execute(play, trials=5, failures=9)
    made = execute.study
    config = configuration(RATE, trials=5)

    def limit(**fields: Any) -> float:
        tune = search.settings_of(config).model_copy(update=fields)
        return Trials(made, RunFolder(Path("base")), config, tune)._limit()

    completed = [trial.user_attrs["seconds"] for trial in made.get_trials() if trial.state.name == "COMPLETE"]
    assert limit() == 5 * statistics.median(completed)
    assert limit(trial_hours=2.0) == 7200
    assert deadline([1.0]) == 600, "at least ten minutes"
    assert deadline([]) == math.inf
