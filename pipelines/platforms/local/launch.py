"""A run on this machine as the command line sees it: started, watched step by step, stopped, recorded."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import psutil

from components.register_model.registration import NONE_ASKED, champion_folder
from components.step import LOGS_VARIABLE
from pipelines.config import RunConfig
from pipelines.platforms.local.containers import stop_containers
from pipelines.runs import ErrorRecord, ProcessRecord, RunFolder, RunRecord, StepRecord
from trainer.errors import UserError
from trainer.events import EVENTS_VARIABLE

STEPS = ("prepare_data", "plan_training", "train", "evaluate", "register_model")
BUILD_IMAGE = "build_image"
POLL_SECONDS = 0.1
STOP_SECONDS = 20.0
LOG_LINES = 12


class Interrupted(Exception):
    """The run was asked to stop: Ctrl-C, SIGTERM or `slipway cancel`."""


class Watcher(Protocol):
    """Who is told of a run's progress."""

    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        """Something happened: see trainer.events."""


def new_record(
    folder: RunFolder, config: RunConfig, *, rehearsal: bool, runner: Literal["process", "docker"] = "process"
) -> RunRecord:
    """The record of a run that is about to start."""
    names = [name for name in STEPS if not (rehearsal and name == "register_model")]
    if runner == "docker":
        names.insert(0, BUILD_IMAGE)
    return RunRecord(
        run_id=folder.run_id,
        name=config.name,
        platform="local",
        hardware=config.hardware,
        rehearsal=rehearsal,
        runner=runner,
        created=datetime.now(UTC),
        steps=[StepRecord(name=name) for name in names],
    )


def run(folder: RunFolder, config: RunConfig, record: RunRecord, watcher: Watcher) -> RunRecord:
    """Run (or go on with) the run in `folder` to its end, and give its record.

    A stop by SIGINT or SIGTERM ends every process of the run and gives a record with the status cancelled.
    """
    # What happened after the last look of a watcher that was killed is still in the events.
    seen = _follow(folder, record, None, 0)
    if record.champion is None or record.step("evaluate").status != "succeeded":
        record.champion = champion_to_beat(config, rehearsal=record.rehearsal)
    record.status, record.error, record.ended = "running", None, None
    record.process = ProcessRecord.current()
    for step in record.steps:
        if step.status == "succeeded":
            step.reused = True
        else:
            step.status = "pending"
    folder.write(record)
    started = time.monotonic()
    try:
        with _stop_signals() as stop, tempfile.TemporaryDirectory(prefix="slipway-") as temporary:
            finished = _execute(folder, record, watcher, seen, stop, temporary)
        _conclude(folder, record, finished)
    except Interrupted:
        record.status = "cancelled"
        for step in record.steps:
            if step.status == "running":
                step.status = "cancelled"
    record.ended = datetime.now(UTC)
    record.seconds = round(time.monotonic() - started, 3)
    record.process = None
    folder.write(record)
    return record


def _execute(
    folder: RunFolder, record: RunRecord, watcher: Watcher, seen: int, stop: StopRequest, temporary: str
) -> bool:
    """Start the executing process and follow its events until it ends; whether it ended well."""
    command = [sys.executable, "-m", "pipelines.platforms.local.execute", str(folder.path)]
    command += ["--output", str(folder.path / "train"), "--champion", record.champion or ""]
    command += ["--rehearsal"] if record.rehearsal else []
    command += ["--containers"] if record.runner == "docker" else []
    environment = {
        **os.environ,
        EVENTS_VARIABLE: str(folder.events_file),
        LOGS_VARIABLE: str(folder.logs),
        # kfp leaves a folder there for each step.
        "TMPDIR": temporary,
        # The folder that the command is given in may well have a package `trainer` of the user's own.
        "PYTHONSAFEPATH": "1",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
    with (folder.logs / "pipeline.log").open("a") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while process.poll() is None:
            if stop.requested:
                raise Interrupted
            seen = _follow(folder, record, watcher, seen)
            time.sleep(POLL_SECONDS)
    finally:
        stop_session(process)
        if record.runner == "docker":
            stop_containers(folder.run_id)
        _follow(folder, record, watcher, seen)
    return process.returncode == 0


def champion_to_beat(config: RunConfig, *, rehearsal: bool) -> str:
    """The champion's folder, or NONE_ASKED where the run is not to be measured against one."""
    if rehearsal or config.evaluate.champion == "none":
        return NONE_ASKED
    return champion_folder(config.register_.registry, config.model_name)


@dataclass
class StopRequest:
    """Whether SIGINT or SIGTERM has come. It is looked at, not raised: an exception could come at a bad moment."""

    requested: bool = False


@contextlib.contextmanager
def _stop_signals() -> Iterator[StopRequest]:
    """Let SIGINT and SIGTERM ask for a stop; while one is under way, further ones do nothing more."""
    stop = StopRequest()

    def request(_number: int, _frame: FrameType | None) -> None:
        stop.requested = True

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_session(process: subprocess.Popen[bytes]) -> None:
    """End the executing process and all that runs in its session: asked first, killed after a while."""
    members = _session(process.pid)
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    _, alive = psutil.wait_procs(members, timeout=STOP_SECONDS)
    for member in alive + _session(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    if process.stdin:
        process.stdin.close()


def _session(leader: int) -> list[psutil.Process]:
    """The living processes of the session that `leader` leads."""
    members = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader and process.info["status"] != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def _follow(folder: RunFolder, record: RunRecord, watcher: Watcher | None, seen: int) -> int:
    """Take in the events after byte `seen`; gives the byte to go on from."""
    if not folder.events_file.exists():
        return seen
    with folder.events_file.open("rb") as file:
        file.seek(seen)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.splitlines():
        event = json.loads(line)
        if _apply(record, event) and watcher:
            folder.write(record)
        if watcher:
            watcher.event(record, event)
    return seen + len(whole)


def _apply(record: RunRecord, event: dict[str, Any]) -> bool:
    """Put one event into the record; whether it changed."""
    step = record.step(event["step"])
    kind = event["event"]
    if kind == "started":
        step.status, step.reused = "running", False
    elif kind == "finished":
        step.status, step.seconds = "succeeded", event["seconds"]
        step.peak_memory_bytes = event["peak_memory_bytes"]
        step.reused, step.outputs = event["reused"], event["outputs"]
        _take_results(record, step)
    elif kind == "failed":
        step.status = "failed"
        error = event["error"]
        mend = error.get("mend") or f"slipway logs {record.run_id} --step {step.name}"
        record.error = ErrorRecord(
            step=step.name,
            message=_sentence(error),
            setting=error.get("setting"),
            mend=mend,
            traceback=error.get("traceback") or None,
        )
    elif kind == "cancelled":
        step.status = "cancelled"
    return kind in ("started", "finished", "failed", "cancelled")


def _sentence(error: dict[str, Any]) -> str:
    """A failed step's error as one screen without its mend, which has a place of its own."""
    if "setting" not in error:  # no user's mistake: a sentence and a traceback
        return str(error["message"])
    return str(UserError.from_dict({**error, "mend": None}))


def _take_results(record: RunRecord, step: StepRecord) -> None:
    """What of a step's outputs stands in the record's own fields."""
    if step.name == "evaluate":
        record.metrics = step.outputs["metrics"]
        record.verdict = step.outputs["verdict"]
    elif step.name == "register_model":
        record.model = step.outputs["model"]


def _conclude(folder: RunFolder, record: RunRecord, finished: bool) -> None:
    """The status of a run whose executing process has ended by itself."""
    evaluation = record.step("evaluate")
    if evaluation.status == "succeeded":
        shutil.copyfile(evaluation.outputs["report"], folder.report_file)
        record.report = str(folder.report_file)
    # A step that has not said that it finished has not, whatever became of its process or container.
    if finished and not any(step.status == "running" for step in record.steps):
        record.status = "succeeded"
        for step in record.steps:
            if step.status == "pending":
                step.status = "skipped"
        return
    record.status = "failed"
    running = next((step for step in record.steps if step.status == "running"), None)
    if running is not None:
        running.status = "failed"
    if record.error is None:
        log = folder.logs / (f"{running.name}.log" if running else "pipeline.log")
        record.error = ErrorRecord(
            step=running.name if running else None,
            message="The step ended without a word: it was killed."
            if running
            else "The pipeline failed outside its steps.",
            mend=f"slipway run --resume {record.run_id}",
            traceback=last_lines(log),
        )


def last_lines(path: Path, count: int = LOG_LINES) -> str:
    """The last lines of a log, "" where there is none."""
    if not path.is_file():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])
