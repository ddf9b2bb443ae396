"""The run folder and its record."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs import lock, logs
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord


@pytest.fixture
def config() -> RunConfig:
    values = {"name": "digits", "data": {"source": "digits"}, "model": {"builder": "a:b"}, "train": {"epochs": 1}}
    return RunConfig.model_validate(values)


def record(folder: RunFolder, **fields) -> RunRecord:
    steps = [StepRecord(name="prepare_data", status="succeeded"), StepRecord(name="train", status="running")]
    known = {"run_id": folder.run_id, "name": "digits", "platform": "local", "hardware": "cpu", "steps": steps}
    return RunRecord(**{**known, "created": datetime.now(UTC), **fields})


def test_concurrent_runs_get_separate_folders_and_latest_is_the_newest(tmp_path, config):
    folders = [runs.create(config, tmp_path) for _ in range(20)]
    for folder in folders:
        folder.write(record(folder))
    assert len({folder.run_id for folder in folders}) == 20
    assert runs.find("latest", tmp_path).path == folders[-1].path
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["latest", *(f.run_id for f in folders)])


def test_a_run_with_the_number_of_another_gets_a_new_one_and_leaves_the_other_as_it_is(tmp_path, config, monkeypatch):
    numbers = iter(["aaaa", "aaaa", "aaaa", "bbbb", "cccc", "dddd"])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(numbers))
    first = runs.create(config, tmp_path)
    before = sorted(first.path.rglob("*"))
    second = runs.create(config, tmp_path)
    assert second.path != first.path
    assert sorted(first.path.rglob("*")) == before


def test_the_record_is_replaced_atomically(tmp_path, config):
    folder = runs.create(config, tmp_path)
    written = record(folder, process=os.getpid())
    folder.write(written)
    with folder.held():
        assert folder.read() == written
    assert sorted(path.name for path in folder.path.iterdir()) == [
        ".lock",
        "artifacts",
        "config.yaml",
        "logs",
        "provenance.json",
        "run.json",
    ]


def test_a_run_that_no_process_holds_has_failed(tmp_path, config):
    folder = runs.create(config, tmp_path)
    folder.write(record(folder, process=os.getpid()))
    with folder.held():
        assert folder.read().status == "running"
    read = folder.read()
    assert read.status == "failed"
    assert read.error is not None
    assert read.error.step == "train"
    assert read.error.fix == f"slipway run --resume {folder.run_id}"


def test_a_run_that_another_command_is_about_to_resume_has_failed(tmp_path, config):
    folder = runs.create(config, tmp_path)
    folder.write(record(folder, process=2**22 + 1))
    with folder.held():
        assert folder.read().status == "failed"


def test_a_step_of_the_clock_does_not_make_a_run_dead(tmp_path, config, monkeypatch):
    folder = runs.create(config, tmp_path)
    with folder.held():
        folder.write(record(folder, process=os.getpid()))
        created = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: created(process) + 3600)
        assert folder.read().status == "running"


def holding(folder: RunFolder, code: str = "") -> subprocess.Popen[bytes]:
    """Return a process that holds the run until it is killed."""
    code = f"""
import subprocess, sys, time
from pathlib import Path
from slipway.pipelines.runs.record import RunFolder
folder = RunFolder(Path({str(folder.path)!r}))
with folder.held():
    {code}
    print("held", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_run_is_executed_by_one_command_at_a_time(tmp_path, config):
    folder = runs.create(config, tmp_path)
    process = holding(folder)
    try:
        with pytest.raises(UserError) as caught, folder.held():
            pass
        assert caught.value.message == f"Run {folder.run_id} is still running, in process {process.pid}."
        assert folder.holder() == (process.pid, socket.gethostname())
    finally:
        process.kill()
        process.communicate()
    with folder.held():
        assert folder.holder() == (os.getpid(), socket.gethostname())
    assert folder.holder() is None


def test_a_process_that_ended_was_killed_also_while_its_parent_does_not_wait_for_it():
    process = subprocess.Popen(["sleep", "60"])
    here = lock.Holder(process.pid, socket.gethostname())
    assert not here.was_killed()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert here.was_killed()
    process.wait()
    assert here.was_killed()
    assert not lock.Holder(process.pid, "elsewhere").was_killed()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named(tmp_path, config, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    folder = runs.create(config, tmp_path)
    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UserError, match=r"cannot lock .*/\.lock: ") as caught, folder.held():
        pass
    assert "a file system with locks" in str(caught.value)


def test_a_resume_waits_for_the_processes_of_a_killed_command(tmp_path, config, monkeypatch):
    """The executing process, which inherits the lock, still ends a training then."""
    folder = runs.create(config, tmp_path)
    child = "subprocess.Popen(['sleep', '3'], pass_fds=[folder.lock], stdout=subprocess.DEVNULL)"
    process = holding(folder, child)
    process.kill()
    process.communicate()
    assert folder.holder() is not None
    with monkeypatch.context() as patched, pytest.raises(UserError, match="still ending"):
        patched.setattr(lock, "ENDING_SECONDS", 0.1)
        with folder.held():
            pass
    with folder.held():
        assert folder.holder() == (os.getpid(), socket.gethostname())


def test_latest_and_the_list_know_a_run_from_its_first_record_on(tmp_path, config):
    """A command killed before that leaves nothing that could not be resumed."""
    before, killed = (runs.create(config, tmp_path) for _ in range(2))
    assert not (tmp_path / "latest").exists()
    before.write(record(before))
    assert runs.find("latest", tmp_path).run_id == before.run_id
    assert [folder.run_id for folder in runs.folders(tmp_path)] == [before.run_id]
    with pytest.raises(UserError, match="no readable run record"):
        killed.read()


def test_the_configuration_is_on_the_disk_before_the_run_starts(tmp_path, config, monkeypatch):
    """And so are the entries of the folders that contain it."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_ino))
    root = tmp_path / "runs"
    folder = runs.create(config, root)
    expected = (folder.configuration_file, folder.path, root, tmp_path)
    assert [path.stat().st_ino for path in expected] == flushed


def test_a_folder_called_latest_is_not_replaced(tmp_path, config):
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    with pytest.raises(UserError, match="latest is not the link"):
        runs.create(config, tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["latest"]


def test_the_first_error_is_reported_when_the_unfinished_link_cannot_be_removed_either(tmp_path, config, monkeypatch):
    def failing(text):
        def fail(_path, *_arguments, **_named):
            raise OSError(errno.EIO, text)

        return fail

    folder = runs.create(config, tmp_path)
    monkeypatch.setattr(Path, "unlink", failing("removing failed"))
    monkeypatch.setattr(Path, "replace", failing("renaming failed"))
    with pytest.raises(OSError, match="renaming failed"):
        runs._point_latest_to(folder)


def test_an_unknown_run_names_the_nearest(tmp_path, config):
    folder = runs.create(config, tmp_path)
    folder.write(record(folder))
    with pytest.raises(UserError) as caught:
        runs.find(folder.run_id[:-1], tmp_path)
    assert caught.value.nearest == folder.run_id


@pytest.mark.parametrize("run_id", ["", "..", "a" * 300, "a/" * 3000])
def test_an_invalid_run_id_is_an_unknown_run(tmp_path, run_id):
    with pytest.raises(UserError, match="There is no run"):
        runs.find(run_id, tmp_path)


def test_a_run_that_cannot_be_created_leaves_nothing(tmp_path, config, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs, "replace_file", full)
    with pytest.raises(OSError, match="No space left"):
        runs.create(config, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new"),
    [("{", "["), ('"digits"', "null"), ('"local"', "1"), ('"succeeded"', '"suceeeded"'), ('"name"', '"mane"')],
)
def test_a_damaged_record_is_named(tmp_path, config, old, new):
    folder = runs.create(config, tmp_path)
    folder.record_file.write_text(record(folder).as_json().replace(old, new, 1))
    with pytest.raises(UserError, match=folder.run_id):
        folder.read()


def test_logs_come_in_the_order_of_the_steps(tmp_path, config):
    folder = runs.create(config, tmp_path)
    folder.write(record(folder, status="succeeded"))
    (folder.logs / "train.log").write_text("two\nthree")
    (folder.logs / "prepare_data.log").write_text("one\n")
    lines = list(logs.read(folder, None, follow=False))
    assert lines == ["==> prepare_data", "one", "==> train", "two", "three"]
    assert list(logs.read(folder, "train", follow=True)) == ["two", "three"]
    with pytest.raises(UserError) as caught:
        list(logs.read(folder, "trian", follow=False))
    assert caught.value.nearest == "train"


def test_follow_ends_with_the_run_and_loses_no_line(tmp_path, config):
    folder = runs.create(config, tmp_path)
    running = record(folder)
    folder.write(running)
    log = folder.logs / "train.log"
    log.write_text("one\nhal")
    lines = logs.read(folder, "train", follow=True)
    assert next(lines) == "one"
    log.write_text("one\nhalf\nlast")
    folder.write(replace(running, status="succeeded", process=None))
    assert list(lines) == ["half", "last"]


def test_the_folder_is_absolute_whatever_the_current_one(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    folder = runs.create(config, Path("runs"))
    folder.write(record(folder))
    assert folder.path == tmp_path / "runs" / runs.find("latest", Path("runs")).run_id


def test_results_are_stored_once_and_are_beside_the_steps_for_other_programs(tmp_path, config):
    folder = runs.create(config, tmp_path)
    evaluated = {"metrics": {"accuracy": 0.9375}, "verdict": {"decision": "promote", "reasons": ["why"]}}
    registered = {"model": "/models/digits/3"}
    outputs = {"evaluate": evaluated, "register_model": registered}
    folder.write(record(folder, steps=[StepRecord(name=name, outputs=each) for name, each in outputs.items()]))
    assert folder.record_file.read_text().count("0.9375") == 1
    read = folder.read()
    assert (read.metrics, read.verdict, read.model) == (*evaluated.values(), registered["model"])
    assert read.registered == "digits/3"
    printed = read.as_dict()
    assert {name: printed[name] for name in ("metrics", "verdict", "model")} == evaluated | registered
    assert record(folder).as_dict()["metrics"] == {}


def test_dollars_of_steps_are_added_to_four_places(tmp_path):
    run = record(RunFolder(tmp_path))
    for dollars in (0.00004, 1.00006, 0.12345):
        run.add_cost(None, 0, {"prepare_data": dollars})
    assert [step.dollars for step in run.steps] == [1.1236, None]
