"""Start, watch, stop and record runs on this machine."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Literal

import psutil

from slipway.components.page import completed
from slipway.components.register_model.registration import NONE_ASKED, champion_folder
from slipway.components.step import LOGS_VARIABLE
from slipway.core.atomic import append_line, replace_file, sync_tree
from slipway.core.errors import UserError
from slipway.core.events import EVENTS_VARIABLE
from slipway.core.forking import Streams, start_session
from slipway.core.memory import MemoryKills
from slipway.core.noise import is_noise
from slipway.core.paths import REHEARSAL_VARIABLE
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.platforms.local import session
from slipway.pipelines.platforms.local.containers import stop_containers
from slipway.pipelines.platforms.local.warm import warm_steps
from slipway.pipelines.platforms.table import DEFAULT, platform_of
from slipway.pipelines.runs import attestation, lock, observers
from slipway.pipelines.runs.budget import labels_of
from slipway.pipelines.runs.deadline import sentence
from slipway.pipelines.runs.following import EventReader, apply
from slipway.pipelines.runs.record import ErrorRecord, RunFolder, RunRecord, StepRecord, Watcher
from slipway.pipelines.table import absent_steps, steps_on
from slipway.trainer.distributed.signals import stop_signals

POLL_SECONDS = 0.1
# How long the last write of a run's record is repeated if it fails.
LAST_SAVE_SECONDS = 10.0
# A frozen process is reported if two checks, this far apart, find it stopped.
FROZEN_CHECK_SECONDS = 2.0
# With less free space than this, the disk is assumed to be full when a step ended without a result.
FULL_DISK_BYTES = 2**20
LOG_LINES = 12
# Errors of a run whose processes did not say why they ended: they were probably killed.
KILLED = "The step exited without a result; it was probably killed."
FAILED_OUTSIDE = "The pipeline failed outside its steps."
# What a launched process waits for on stdin: the record and the lock name it.
READY = b"."
# The setting with which a step needs less memory for the same result.
LESS_MEMORY = {"prepare_data": "data.workers=1", "evaluate": "evaluate.batch_size=32"}


# Starts the process that executes a run, of which it receives the folder and the lock's descriptor; returns its id.
StartProcess = Callable[[Path, int, Streams], int]


class Interrupted(Exception):
    """The run was asked to stop: Ctrl-C, SIGTERM, a closed terminal (SIGHUP) or `slipway cancel`."""


class Overdue(Exception):
    """The run did not end in time."""


def new_record(
    folder: RunFolder,
    config: RunConfig,
    *,
    rehearsal: int = 0,
    runner: Literal["process", "docker"] = "process",
    platform: str = DEFAULT,
) -> RunRecord:
    """Return the record of a run that is about to start, or of a rehearsal of `rehearsal` steps."""
    absent = {
        "register_model" if rehearsal else "",
        "build_image" if runner == "process" else "",
        "" if config.prepared else "prepare_data",
        *absent_steps(config.when),
    }
    bill = None if rehearsal else platform_of(platform).bill(config)
    return RunRecord(
        run_id=folder.run_id,
        name=config.name,
        platform=platform,
        hardware=str(config.training_hardware),
        rehearsal=rehearsal,
        runner=runner,
        created=datetime.now(UTC),
        process=os.getpid(),
        steps=[StepRecord(name=name) for name in steps_on(platform) if name not in absent],
        at_most=bill.worst_case if bill else None,
        labels=labels_of(config, platform),
        choice=config.choice,
    )


def run(
    folder: RunFolder, config: RunConfig, record: RunRecord, watcher: Watcher, limit: float = math.inf
) -> RunRecord:
    """Start or resume the run in `folder`, which is held, wait until it ends, and return its record.

    SIGINT, SIGTERM or SIGHUP ends every process of the run; the status is then cancelled. After `limit` seconds, every
    process is ended, too, and the run has failed.

    Raises:
        UserError: The run folder was deleted during the run; every process of the run has ended.
        OSError: The run's record cannot be written at the start.
    """
    if record.runner == "docker":  # containers that outlived a killed command do not hold the run's lock
        stop_containers(folder.run_id)
    follower = _Follower(folder, record, watcher)
    follower.catch_up()
    if record.champion is None or record.step("evaluate").status != "succeeded":
        record.champion = champion_to_beat(config, rehearsal=bool(record.rehearsal))
    record.status, record.error, record.ended = "running", None, None
    record.process = os.getpid()
    record.started = started_at()
    for step in record.steps:
        if step.status == "succeeded":
            step.reused = True
        else:
            step.status = "pending"
    folder.write(record)
    started, kills = time.monotonic(), MemoryKills()
    with observers.executing(folder, config, record, follower.say):
        try:
            with stop_on_signals() as stop, session.temporary_folder(folder) as temporary:
                stop.until = started + limit
                finished = _execute(folder, config, record, follower, stop, temporary)
            follower.copy_pages()
            _conclude(folder, record, finished, kills)
            _sign(folder, config, record)
        except OSError as error:  # the file system of its folder fails
            follower.fail(error)
        except Overdue:
            hanging = next((step.name for step in record.steps if step.status == "running"), None)
            record.error = ErrorRecord(
                step=hanging, message=sentence(limit), fix=f"slipway run --resume {record.run_id}"
            )
            _conclude(folder, record, finished=False, kills=kills)
        except Interrupted:
            record.cancel()
        record.ended = datetime.now(UTC)
        record.seconds = round(time.monotonic() - started, 3)
        record.process = None
        platform = platform_of(record.platform)
        if bill := platform.bill(config):
            record.add_cost(bill, platform.training_seconds(folder, record))
            follower.copy_pages()
        follower.finish()
    return record


def start(folder: RunFolder, record: RunRecord, starter: StartProcess | None = None) -> None:
    """Execute the run in `folder`, which is held, in a process of its own, which outlives this one and its terminal.

    Its session is its own, too. From now on, it holds the run: `folder` may be released.

    Args:
        folder, record: The run.
        starter: Starts the process; by default, `start_process`.
    """
    assert folder.lock is not None, "the run is held"
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stdin:
        try:
            with (folder.logs / "pipeline.log").open("a") as log:
                pid = (starter or start_process)(folder.path, folder.lock, (reading, log.fileno(), log.fileno()))
        finally:
            os.close(reading)
        record.status, record.error, record.process = "running", None, pid
        lock.hand_over(folder.lock, pid)
        folder.write(record)
        stdin.write(READY)


def command_of(folder: Path, held: int) -> list[str]:
    """Return the command that executes the run in `folder`; `held` is the descriptor of the run's lock."""
    return [sys.executable, "-m", __name__, str(folder), str(held)]


def start_process(folder: Path, held: int, streams: Streams) -> int:
    """Start the process that executes the run in `folder`; see `StartProcess`."""
    with stop_signals_blocked():
        return start_session(command_of(folder, held), os.environ, streams, [held]).pid


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Let a process that is started in this context inherit blocked stop signals; `run` unblocks them.

    One that arrives while it imports its modules is handled then.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    """Execute the run of a folder, whose lock was inherited; see `start`."""
    folder = RunFolder(Path(sys.argv[1]))
    folder.lock = int(sys.argv[2])
    if sys.stdin.buffer.read(1) != READY:
        sys.exit("The process that started this one was killed.")
    config, log = load(folder.configuration_file), _EventLog(folder.events_file)
    record = run(folder, config, folder.read(), log)
    observers.ended(folder, config, record, lambda line: log.event(record, _message(record, line)))


class _EventLog:
    """A watcher that adds what the launcher itself has to say to the run's events, for those who follow it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def event(self, record: RunRecord, event: JsonObject) -> None:  # noqa: ARG002
        if "time" not in event:  # it is not in the file
            append_line(self._path, json.dumps({"time": time.time(), **event}))


def _message(record: RunRecord, text: str) -> JsonObject:
    step = next((step for step in record.steps if step.status == "running"), record.steps[0])
    return {"event": "message", "step": step.name, "text": text}


def _execute(
    folder: RunFolder, config: RunConfig, record: RunRecord, follower: _Follower, stop: StopRequest, temporary: str
) -> bool:
    """Start the executing process and follow its events; return whether it succeeded."""
    command = [sys.executable, "-m", "slipway.pipelines.platforms.local.executor", str(folder.path)]
    command += ["--output", str(folder.path / "train"), "--champion", record.champion or ""]
    command += ["--rehearsal"] if record.rehearsal else []
    platform = platform_of(record.platform)
    pending = {step.name for step in record.steps if step.status != "succeeded"}
    last = record.part.last if record.part else None
    names = steps_on(record.platform)
    forked = [
        name
        for name in warm_steps(config, platform, os.environ)
        if name in pending and (last is None or names.index(name) <= names.index(last))
    ]
    command += ["--containers"] if record.runner == "docker" else ["--warm", *forked]
    command += ["--engine", config.train.engine]
    assert folder.lock is not None, "the run is held"
    command += ["--lock", str(folder.lock)]
    environment = {
        **os.environ,
        EVENTS_VARIABLE: str(folder.events_file),
        LOGS_VARIABLE: str(folder.logs),
        # kfp creates a folder for each step and does not remove it.
        "TMPDIR": temporary,
        # Independent of the terminal's encoding, which may lack characters.
        "PYTHONIOENCODING": "utf-8",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
    if record.rehearsal and config.train.program:
        environment[REHEARSAL_VARIABLE] = str(record.rehearsal)
    reading, writing = os.pipe()  # at whose end the process ends
    with (folder.logs / "pipeline.log").open("a") as log:
        process = start_session(command, environment, (reading, log.fileno(), log.fileno()), [folder.lock])
    os.close(reading)
    try:
        while process.poll() is None:
            if stop.requested:
                follower.cancel(platform.stopping)
                raise Interrupted
            if time.monotonic() > stop.until:
                raise Overdue
            follower.follow()
            follower.check_for_frozen(process.pid)
            time.sleep(POLL_SECONDS)
    finally:
        session.stop(process, platform.stop_seconds)
        os.close(writing)
        if record.runner == "docker":
            stop_containers(folder.run_id)
        follower.follow(last=True)
    return process.returncode == 0


def started_at() -> float:
    """Return when this process was started, in seconds since 1970.

    On Linux, psutil's time is up to a second too early, because the kernel's own start is known in whole seconds.
    """
    created = psutil.Process().create_time()
    if sys.platform != "linux":
        return created
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + created - psutil.boot_time()


def champion_to_beat(config: RunConfig, *, rehearsal: bool) -> str:
    """Return the champion's folder, "" if there is none yet, or NONE_ASKED if the run compares with none."""
    if rehearsal or config.evaluate.champion == "none":
        return NONE_ASKED
    return champion_folder(config.register_.registry, config.model_name)


@dataclass
class StopRequest:
    """Whether a stop signal was received, and the monotonic time after which a run is stopped without one.

    It is polled: an exception could be raised at an unsafe point.
    """

    requested: bool = False
    until: float = math.inf


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into a stop request; repeated signals have no effect.

    SIGINT and SIGHUP stay ignored if this process was started so, as by `&` in a script and by nohup.
    """
    stop = StopRequest()

    def request(number: int, _frame: FrameType | None) -> None:
        stop.requested = True
        if number == signal.SIGHUP:
            _discard_output_if_closed()

    interrupt = () if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else (signal.SIGINT,)
    before = {number: signal.signal(number, request) for number in (*interrupt, *stop_signals())}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _discard_output_if_closed() -> None:
    """Redirect stdout and stderr to /dev/null if their terminal was closed: every write would fail."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            discard = os.open(os.devnull, os.O_WRONLY)
            os.dup2(discard, descriptor)
            os.close(discard)


class _Follower:
    """Applies a run's events to its record, and passes them to the watcher."""

    def __init__(self, folder: RunFolder, record: RunRecord, watcher: Watcher) -> None:
        self._folder, self._record, self._watcher = folder, record, watcher
        self._events = EventReader(folder.events_file)
        self._unsaved: OSError | None = None  # why the record could not be written
        self._warned = False
        self._frozen: dict[int, int] = {}  # by process id, the number of checks that found it stopped
        self._frozen_at = 0.0
        self._unread = False  # whether the last read of the events failed

    def catch_up(self) -> None:
        """Apply the events of an earlier attempt whose watcher was killed before it read them."""
        for event in self._events.read():
            apply(self._record, event)

    def follow(self, *, last: bool = False) -> None:
        """Apply and show the events written since the last call; if they cannot be read, warn once, and retry then.

        Args:
            last: Whether this is the last call.

        Raises:
            UserError: The run folder was deleted.
            OSError: The events cannot be read by the last call.
        """
        try:
            exists, events = self._folder.record_file.exists(), self._events.read()
        except OSError as error:
            if last:
                raise
            if not self._unread:
                self._unread = True
                self.say(f"warning: cannot read {self._folder.events_file}: {error.strerror}; retrying")
            return
        self._unread = False
        if not exists:
            raise UserError(
                f"The run folder {self._folder.path} was deleted during the run; its processes were stopped.",
                fix="slipway run, to start a new one",
            )
        for event in events:
            if apply(self._record, event):
                self.save()
            self._show(event)
        if self._unsaved:
            self.save()

    def save(self) -> None:
        """Write the record; if that fails, as on a full disk, warn once and retry at the next call."""
        try:
            self._folder.write(self._record)
            self._unsaved, self._warned = None, False
        except OSError as error:
            self._unsaved = error
            if not self._warned:
                self._warned = True
                self.say(f"warning: cannot write {self._folder.record_file}: {error.strerror}; retrying")

    def copy_pages(self) -> None:
        """Copy the statistics page and the report to the run's folder."""
        self._record.statistics = self._copied("prepare_data", "statistics", self._folder.statistics_file)
        self._record.report = self._copied("evaluate", "report", self._folder.report_file)

    def _copied(self, step: str, page: str, target: Path) -> str | None:
        """Copy a step's page if there is one and return its path, the step's own if that fails twice."""
        source = self._record.outputs(step).get(page)
        for last in (False, True) if source else ():
            try:
                cost = str(self._record.cost) if self._record.cost else ""
                replace_file(target, completed(Path(str(source)).read_bytes(), self._record.registered, cost))
                return str(target)
            except OSError as error:
                if last:
                    self.say(f"warning: cannot write {target}: {error.strerror}; the {page} is {source}")
        return None if source is None else str(source)

    def finish(self) -> None:
        """Write the last record; a succeeded run's files are then on the disk. If that fails, so has the run."""
        try:
            if self._record.status == "succeeded":
                sync_tree(self._folder.path)
        except OSError as error:
            self.fail(error)
        deadline = time.monotonic() + LAST_SAVE_SECONDS
        self.save()
        while self._unsaved and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self.save()
        if self._unsaved:
            self.fail(self._unsaved)
            with contextlib.suppress(OSError):  # the last record may be in place, not flushed: it says "succeeded"
                replace_file(self._folder.record_file, self._record.as_json().encode(), durable=False)

    def fail(self, error: OSError) -> None:
        """Record that the run failed because its folder cannot be read or written."""
        status, self._record.status = self._record.status, "failed"
        problem = "was stopped" if status == "running" else f"{status}, but its folder could not be written"
        path = error.filename or self._folder.path
        self._record.error = self._record.error or ErrorRecord(
            step=None,
            message=f"The run {problem}: {error.strerror}: {path}.",
            fix=f"free disk space there, or check the disk; then slipway run --resume {self._record.run_id}",
        )

    def cancel(self, first: str) -> None:
        """Record and say that the run is stopped, before its processes have ended: who asked for it may not wait.

        IPython kills a command 0.5 s after it has interrupted it.
        """
        self._record.cancel()
        self.save()
        also = f"; {first}" if first else ""
        self.say(f"stopping{also}; to continue: slipway run --resume {self._record.run_id}")

    def check_for_frozen(self, leader: int) -> None:
        """Report the processes of the session of `leader` that were stopped by SIGSTOP."""
        if time.monotonic() - self._frozen_at < FROZEN_CHECK_SECONDS:
            return
        self._frozen_at = time.monotonic()
        frozen = [process.pid for process in session.members(leader, frozen=True)]
        self._frozen = {pid: self._frozen.get(pid, 0) + 1 for pid in frozen}
        for pid in (pid for pid, checks in self._frozen.items() if checks == 2):
            self.say(
                f"warning: process {pid} of this run is frozen (SIGSTOP).\n"
                f"  continue it: kill -CONT {pid}\n"
                f"  or stop the run: slipway cancel {self._record.run_id}"
            )

    def say(self, text: str) -> None:
        """Show one sentence for the user to read."""
        self._show(_message(self._record, text))

    def _show(self, event: JsonObject) -> None:
        # The terminal or pipe may be closed; rich turns a closed pipe into SystemExit.
        with contextlib.suppress(OSError, SystemExit):
            self._watcher.event(self._record, event)


def _conclude(folder: RunFolder, record: RunRecord, finished: bool, kills: MemoryKills) -> None:
    """Set the status and the error of a run whose executing process has exited."""
    # A step has finished only if it reported so, whatever its process or container returned.
    if finished and not any(step.status == "running" for step in record.steps):
        record.status = "succeeded"
        record.skip_pending()
        return
    record.status = "failed"
    running = next((step for step in record.steps if step.status == "running"), None)
    if running is not None:
        running.status = "failed"
    if record.error is None and shutil.disk_usage(folder.path).free < FULL_DISK_BYTES:
        record.error = ErrorRecord(
            step=running.name if running else None,
            message=f"No space is left on the disk of {folder.path}.",
            fix=f"free disk space there, then slipway run --resume {record.run_id}",
        )
    if record.error is None and running is not None and (lacking := kills.describe()):
        setting = LESS_MEMORY.get(running.name)
        resume = f"slipway run --resume {record.run_id}"
        record.error = ErrorRecord(
            step=running.name,
            message=f"The step was killed, {lacking}.",
            setting=setting.partition("=")[0] if setting else None,
            fix=f"{resume} --set {setting}" if setting else f"free memory, or raise the limit, then {resume}",
        )
    if record.error is None:
        log = folder.logs / (f"{running.name}.log" if running else "pipeline.log")
        record.error = ErrorRecord(
            step=running.name if running else None,
            message=KILLED if running else FAILED_OUTSIDE,
            fix=f"slipway run --resume {record.run_id}",
            traceback=last_lines(log),
        )


def _sign(folder: RunFolder, config: RunConfig, record: RunRecord) -> None:
    """Sign the version that a succeeded run has registered; if that fails, so has the run."""
    try:
        if record.status == "succeeded":
            attestation.sign(folder, config, record)
    except UserError as error:
        record.status = "failed"
        record.error = ErrorRecord(
            step="register_model",
            message=f"{error.message} The model is registered, but not signed.",
            setting=error.setting,
            fix=f"slipway run --resume {record.run_id}, with a key: {error.fix}",
        )


def last_lines(path: Path, count: int = LOG_LINES) -> str:
    """Return the last lines of a log without the libraries' start-up messages; "" if there is no log."""
    if not path.is_file():
        return ""
    lines = [line for line in path.read_text(errors="replace").splitlines() if not is_noise(line)]
    return "\n".join(lines[-count:])


if __name__ == "__main__":
    main()
