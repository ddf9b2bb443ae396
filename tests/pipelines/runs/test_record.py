"""The run folder and its record."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs import logs
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import ProcessRecord, RunFolder, RunRecord, StepRecord


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
    assert len({folder.run_id for folder in folders}) == 20
    assert runs.find("latest", tmp_path).path == folders[-1].path
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["latest", *(f.run_id for f in folders)])


def test_the_record_is_replaced_atomically(tmp_path, config):
    folder = runs.create(config, tmp_path)
    written = record(folder, process=ProcessRecord.current())
    folder.write(written)
    assert folder.read() == written
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "process", [ProcessRecord(pid=os.getpid(), created=1.0), ProcessRecord(pid=2**22 + 1, created=0)]
)
def test_a_run_without_its_process_has_failed(tmp_path, config, process):
    folder = runs.create(config, tmp_path)
    folder.write(record(folder, process=process))
    read = folder.read()
    assert read.status == "failed"
    assert read.error is not None
    assert read.error.step == "train"
    assert read.error.fix == f"slipway run --resume {folder.run_id}"


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

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        runs.create(config, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ['{"run_id": ', "[]", "null"])
def test_a_damaged_record_is_named(tmp_path, config, text):
    folder = runs.create(config, tmp_path)
    folder.record_file.write_text(text)
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
    running = record(folder, process=ProcessRecord.current())
    folder.write(running)
    log = folder.logs / "train.log"
    log.write_text("one\nhal")
    lines = logs.read(folder, "train", follow=True)
    assert next(lines) == "one"
    log.write_text("one\nhalf\nlast")
    folder.write(running.model_copy(update={"status": "succeeded", "process": None}))
    assert list(lines) == ["half", "last"]


def test_the_folder_is_absolute_whatever_the_current_one(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    assert runs.create(config, Path("runs")).path == tmp_path / "runs" / runs.find("latest", Path("runs")).run_id
