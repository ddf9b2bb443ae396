"""A local run from its watcher's view: truncated events, a full disk, a frozen process, a deleted folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway.core.atomic import append_line
from slipway.core.errors import UserError
from slipway.core.forking import start_session
from slipway.core.memory import MemoryKills
from slipway.pipelines.cli.display import summary
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.local import launch, session
from slipway.pipelines.platforms.local.platform import LocalPlatform
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.continuing import is_changeable
from slipway.pipelines.runs.record import RunFolder, RunRecord


class Shown:
    """A watcher that records all messages and event kinds."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.messages: list[str] = []

    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        assert record.step(event["step"])
        self.kinds.append(event["event"])
        if event["event"] == "message":
            self.messages.append(event["text"])


CONFIG = RunConfig.model_validate(
    {"name": "digits", "data": {"source": "digits"}, "model": {"builder": "a:b"}, "train": {"epochs": 1}}
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return runs.create(CONFIG, tmp_path / "runs")


@pytest.fixture
def record(folder: RunFolder) -> RunRecord:
    record = launch.new_record(folder, CONFIG)
    folder.write(record)
    return record


def happened(folder: RunFolder, kind: str, step: str = "train", **fields: Any) -> None:
    append_line(folder.events_file, json.dumps({"step": step, "event": kind, **fields}))


def failing(number: int) -> Callable[..., Any]:
    """Return a function that raises the operating system's error `number`."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


FINISHED = {"seconds": 1.0, "peak_memory_bytes": 1, "reused": False, "outputs": {}}


def test_events_truncated_by_a_full_disk_are_skipped(folder: RunFolder, record: RunRecord) -> None:
    happened(folder, "started")
    with folder.events_file.open("ab") as file:
        file.write(b'{"step": "train", "event": "prog')
    shown = Shown()
    follower = launch._Follower(folder, record, shown)
    follower.follow()
    happened(folder, "finished", **FINISHED)
    follower.follow()
    assert shown.kinds == ["started", "finished"]
    assert folder.read().step("train").status == "succeeded"

    resumed = launch.new_record(folder, CONFIG)
    launch._Follower(folder, resumed, Shown()).catch_up()
    assert resumed.step("train").status == "succeeded", "a run that is resumed reads the same events"


def test_a_record_that_a_full_disk_rejects_is_written_later(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shown = Shown()
    follower = launch._Follower(folder, record, shown)
    happened(folder, "started")
    with monkeypatch.context() as patched:
        patched.setattr(runs, "replace_file", full)
        follower.follow()
        follower.follow()
    assert [text.partition(": ")[2] for text in shown.messages] == [
        f"cannot write {folder.record_file}: No space left on device; retrying"
    ], "said once"
    assert folder.read().step("train").status == "pending"
    follower.follow()
    assert folder.read().step("train").status == "running"


def test_a_step_without_a_result_because_of_a_full_disk_is_explained(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.step("train").status = "running"
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(60_000_000, 60_000_000, 4096))
    launch._conclude(folder, record, False, MemoryKills())
    assert record.status == "failed"
    assert record.error is not None
    assert "No space is left" in record.error.message
    assert record.error.fix == f"free disk space there, then slipway run --resume {record.run_id}"


def test_events_that_cannot_be_read_are_read_later(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened(folder, "started")
    shown = Shown()
    follower = launch._Follower(folder, record, shown)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", failing(errno.EIO))
        follower.follow()
        follower.follow()
        with pytest.raises(OSError, match="Input/output error"):
            follower.follow(last=True)
    assert shown.messages == [f"warning: cannot read {folder.events_file}: Input/output error; retrying"]
    follower.follow()
    assert folder.read().step("train").status == "running"


def test_a_file_system_that_was_shut_down_fails_the_run_with_a_sentence(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_execute", failing(errno.EIO))
    ended = launch.run(folder, CONFIG, record, Shown())
    assert (ended.status, folder.read().status) == ("failed", "failed")
    assert ended.error is not None
    assert ended.error.message == f"The run was stopped: Input/output error: {folder.path}."
    assert f"slipway run --resume {record.run_id}" in (ended.error.fix or "")


@pytest.mark.parametrize(
    ("step", "fix"),
    [
        ("prepare_data", "slipway run --resume {} --set data.workers=1"),
        ("evaluate", "slipway run --resume {} --set evaluate.batch_size=32"),
        ("train", "free memory, or raise the limit, then slipway run --resume {}"),
    ],
)
def test_a_step_that_was_killed_for_lack_of_memory_says_so(
    folder: RunFolder, record: RunRecord, step: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = MemoryKills()
    monkeypatch.setattr(kills, "describe", lambda: "out of memory: the limit of its control group is 2.00 GB")
    record.step(step).status = "running"
    launch._conclude(folder, record, False, kills)
    assert record.error is not None
    assert record.error.message == "The step was killed, out of memory: the limit of its control group is 2.00 GB."
    assert record.error.fix == fix.format(record.run_id)
    setting = launch.LESS_MEMORY.get(step)
    assert setting is None or is_changeable(setting.partition("=")[0])


def test_a_deleted_run_folder_ends_the_run(folder: RunFolder, record: RunRecord) -> None:
    follower = launch._Follower(folder, record, Shown())
    shutil.rmtree(folder.path)
    with pytest.raises(UserError, match="was deleted during the run"):
        follower.follow()


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, os.strerror(errno.EIO)), SystemExit(1)], ids=["terminal", "pipe, as rich reports it"]
)
def test_closed_output_does_not_end_the_run(folder: RunFolder, record: RunRecord, error: BaseException) -> None:
    """`slipway run | tee log`: Ctrl-C ends tee, too."""

    class Closed(Shown):
        def event(self, record: RunRecord, event: dict[str, Any]) -> None:
            raise error

    happened(folder, "started")
    launch._Follower(folder, record, Closed()).follow()
    assert folder.read().step("train").status == "running"


def test_a_frozen_process_is_named_once_and_stopped_quickly(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "FROZEN_CHECK_SECONDS", 0.0)
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('ended'))); print('ready', flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(60)"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    shown = Shown()
    follower = launch._Follower(folder, record, shown)
    follower.check_for_frozen(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    for _ in range(4):
        follower.check_for_frozen(process.pid)
    (message,) = shown.messages
    assert f"kill -CONT {process.pid}" in message
    assert f"slipway cancel {record.run_id}" in message
    started = time.monotonic()
    session.stop(process, LocalPlatform.stop_seconds)
    assert time.monotonic() - started < LocalPlatform.stop_seconds
    assert process.stdout.read() == b"ended\n", "it was continued, so that it could end by itself"
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_run_in_the_background_keeps_ignoring_what_its_shell_ignores(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)  # as a new process inherits it from `&` in a script and from nohup
    try:
        with launch.stop_on_signals() as stop:
            os.kill(os.getpid(), number)
            assert not stop.requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.requested
    finally:
        signal.signal(number, before)


def test_the_start_of_a_process_is_known_to_a_few_hundredths_of_a_second() -> None:
    ours, theirs = os.pipe()
    before = time.time()
    pid = os.fork()
    if not pid:
        os.write(theirs, str(launch.started_at()).encode())
        os._exit(0)
    after = time.time()
    os.close(theirs)
    with os.fdopen(ours) as told:
        assert before - 0.05 < float(told.read()) < after + 0.05
    os.waitpid(pid, 0)


def refusing(*numbers: int) -> Callable[..., None]:
    """Return a replacement of `replace_file` that raises these errors, one per call, and then succeeds."""
    left = [OSError(number, os.strerror(number), "run.json") for number in numbers]

    def write(path: Path, content: bytes) -> None:
        if left:
            raise left.pop(0)
        path.write_bytes(content)

    return write


def test_the_last_record_is_written_at_the_second_attempt(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.status, record.process = "succeeded", None
    monkeypatch.setattr(runs, "replace_file", refusing(errno.ENOSPC))
    launch._Follower(folder, record, Shown()).finish()
    assert folder.read().status == "succeeded"


def test_the_report_is_copied_at_the_second_attempt_or_its_other_path_is_said(
    folder: RunFolder, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report").write_text("<html>")
    evaluation, shown = record.step("evaluate"), Shown()
    evaluation.status, evaluation.outputs = "succeeded", {"report": str(tmp_path / "report")}
    monkeypatch.setattr(launch, "replace_file", refusing(errno.EIO, errno.EIO, errno.EIO))
    launch._Follower(folder, record, shown).copy_pages()
    assert record.report == str(tmp_path / "report")
    assert shown.messages == [
        f"warning: cannot write {folder.report_file}: Input/output error; the report is {record.report}"
    ]
    launch._Follower(folder, record, shown).copy_pages()
    assert (record.report, folder.report_file.read_text()) == (str(folder.report_file), "<html>")
    assert record.statistics is None
    (tmp_path / "statistics").write_text("<table>")
    record.step("prepare_data").outputs["statistics"] = str(tmp_path / "statistics")
    launch._Follower(folder, record, shown).copy_pages()
    assert (record.statistics, folder.statistics_file.read_text()) == (str(folder.statistics_file), "<table>")
    assert f"data     {folder.statistics_file}" in summary(record)
    assert len(shown.messages) == 1


def test_a_run_whose_last_record_cannot_be_written_has_failed(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.status, record.process = "succeeded", None
    monkeypatch.setattr(launch, "LAST_SAVE_SECONDS", 0.3)
    monkeypatch.setattr(runs, "replace_file", refusing(*[errno.ENOSPC] * 100))
    launch._Follower(folder, record, Shown()).finish()
    assert record.status == "failed"
    assert record.error is not None
    assert "The run succeeded, but" in record.error.message
    assert "No space left on device: run.json" in record.error.message
    assert f"slipway run --resume {record.run_id}" in str(record.error.fix)
    assert folder.read().status == "failed", "it is as the command said"


def test_the_files_of_a_succeeded_run_are_on_the_disk_before_its_record(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, weights = folder.report_file, folder.path / "train" / "model" / "weights"
    weights.parent.mkdir(parents=True)
    report.touch()
    weights.touch()
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_ino))
    record.status, record.process = "succeeded", None
    launch._Follower(folder, record, Shown()).finish()
    position = [flushed.index(path.stat().st_ino) for path in (weights, weights.parent, report, folder.record_file)]
    assert position == sorted(position)


def test_files_that_cannot_be_flushed_are_a_failed_run(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(launch, "sync_tree", fail)
    record.status, record.process = "succeeded", None
    launch._Follower(folder, record, Shown()).finish()
    read = folder.read()
    assert read.status == "failed"
    assert read.error is not None
    assert f"Input/output error: {folder.path}" in read.error.message


def test_containers_of_a_killed_command_are_stopped_before_a_run_continues(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def stop(run_id: str) -> None:
        done.append(run_id)
        happened(folder, "finished", "prepare_data", **FINISHED)  # by a container, at its end

    def execute(_folder: RunFolder, _config: RunConfig, record: RunRecord, *_: object) -> bool:
        done.append(record.step("prepare_data").status)
        raise launch.Interrupted

    monkeypatch.setattr(launch, "stop_containers", stop)
    monkeypatch.setattr(launch, "_execute", execute)
    record.runner = "docker"
    with folder.held():
        assert launch.run(folder, CONFIG, record, Shown()).status == "cancelled"
    assert done == [folder.run_id, "succeeded"]


def test_temporary_folders_of_killed_commands_are_removed(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, deleted, live, other = (tmp_path / f"slipway-{name}" for name in ("killed", "deleted", "live", "other"))
    alive = runs.create(CONFIG, tmp_path / "runs")
    for path, run in ((killed, folder.path), (deleted, tmp_path / "runs" / "deleted"), (live, alive.path)):
        path.mkdir()
        (path / ".run").symlink_to(run)
    other.mkdir()
    with alive.held(), folder.held(), session.temporary_folder(folder) as temporary:
        assert Path(temporary).is_dir()
        assert not killed.exists()
        assert not deleted.exists()
        assert live.exists()
        assert other.exists()
    assert not Path(temporary).exists()
    assert folder.record_file.parent.exists()


def test_a_run_that_does_not_end_in_time_is_stopped_and_has_failed(
    folder: RunFolder, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the next one of --repeat or --folds: its processes have ended, also one that ignores SIGTERM."""
    processes: list[Any] = []

    def hang(_command: object, environment: Any, streams: Any, held: Any) -> Any:
        happened(folder, "started")
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
        processes.append(start_session([sys.executable, "-c", code], environment, streams, held))
        return processes[0]

    monkeypatch.setattr(launch, "start_session", hang)
    monkeypatch.setattr(LocalPlatform, "stop_seconds", 0.5)
    with folder.held():
        record = launch.run(folder, CONFIG, record, Shown(), limit=0.6)
    assert processes[0].poll() == -signal.SIGKILL
    assert (record.status, record.step("train").status) == ("failed", "failed")
    assert record.error is not None
    assert (record.error.step, record.error.message) == (
        "train",
        "The run was stopped: it did not end within 0.01 minutes.",
    )
    assert f"slipway run --resume {record.run_id}" in str(record.error.fix)
