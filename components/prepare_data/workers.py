"""Worker processes that receive one task at a time from their parent.

A worker keeps state that its tasks share (an open source, cached headers), exits when its parent has died, and never
outlives `Workers`. Exceptions raised by a task are raised in the parent.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import operator
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import DefaultContext, ForkContext
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from slipway.core import events
from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.core.exit_codes import describe, status_of
from slipway.core.memory import MemoryKills

Task = TypeVar("Task")
Result = TypeVar("Result")
Tick = Callable[[int], None]
# A worker's message: "tick", "done" or "failed", and its content.
Message = tuple[str, Any]

SECONDS_BETWEEN_POLLS = 0.5
SECONDS_TO_END = 5.0
SECONDS_BETWEEN_EVENTS = 0.3
# Signals that workers handle differently from their parent.
OWN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerDied(UserError):
    """A worker process ended during a task; `code` is its exit code as reported by `multiprocessing`.

    Workers do not exit by themselves: it was killed, or user code or a library ended it. `memory` is what is known of
    the kernel's kills for lack of memory.
    """

    def __init__(self, code: int, memory: str | None = None) -> None:
        because = f": {memory}" if code == -signal.SIGKILL and memory else ""
        fix = "check the log; if the machine ran out of memory, use fewer processes: --set data.workers=1"
        if because:
            fix = "use fewer processes: --set data.workers=1"
        elif code >= 0:
            fix = "check the log, and your code for calls of os._exit"
        super().__init__(f"A process that prepares the data {describe(status_of(code))}{because}.", fix=fix)


class WorkerFailed(Exception):
    """A task raised an exception that is not a user error; the text is the worker's traceback."""


def worker_count(requested: int | None) -> int:
    """Return the number of worker processes: `requested`, or by default one per core."""
    return requested or available_cores()


@dataclass
class Progress:
    """Emits progress events, at most a few per second."""

    total: int
    unit: str
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    reported: float = 0.0

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.reported >= SECONDS_BETWEEN_EVENTS or self.done == self.total:
            self.reported = now
            rate = self.done / max(now - self.started, 1e-3)
            events.progress(self.done, self.total, self.unit, **{f"{self.unit}_per_second": rate})


class Workers(Generic[Task, Result]):
    """Up to `count` processes that call `work(task, tick)`; started on demand.

    Args:
        work: The function that processes a task. It may call `tick` with the number of examples completed.
        count: The maximum number of processes.
    """

    def __init__(self, work: Callable[[Task, Tick], Result], count: int) -> None:
        # Forked processes start in milliseconds without imports; other platforms use their default start method.
        self._context: ForkContext | DefaultContext = multiprocessing.get_context(
            "fork" if sys.platform == "linux" else None
        )
        self._work = work
        self._count = count
        self._memory = MemoryKills()
        self._processes: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> Workers[Task, Result]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, tasks: Sequence[Task], tick: Tick | None = None, meanwhile: Callable[[], object] | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Run all tasks and yield each one's index and result as it completes; `tick` is called with their progress.

        `meanwhile` is called once in this process, after the workers have received their first tasks. Of the tasks that
        fail, the first one's exception is raised, whichever process is faster.

        Raises:
            UserError, OSError: Raised by a task.
            WorkerFailed: A task raised another exception.
            WorkerDied: A process ended during a task, for example killed for lack of memory.
        """
        self._start(min(self._count, len(tasks)))
        waiting = iter(range(len(tasks)))
        busy = {
            connection: index
            for connection in self._processes
            if (index := self._hand_out(connection, tasks, waiting)) is not None
        }
        if busy and meanwhile:
            meanwhile()
        failed: tuple[int, BaseException] | None = None
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                kind, value = self._receive(ready)
                if kind == "tick":
                    if tick:
                        tick(value)
                    continue
                index = busy.pop(ready)
                if kind == "failed":
                    failed = min(failed or (index, value), (index, value), key=operator.itemgetter(0))
                else:
                    if not failed and (following := self._hand_out(ready, tasks, waiting)) is not None:
                        busy[ready] = following
                    yield index, value
            if failed and all(index > failed[0] for index in busy.values()):
                raise failed[1]

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.terminate()
        for connection, process in self._processes.items():
            process.join(SECONDS_TO_END)
            if process.is_alive():
                process.kill()
                process.join()
            connection.close()
        self._processes.clear()

    def _start(self, count: int) -> None:
        while len(self._processes) < count:
            here, there = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(there, self._work, os.getpid()), daemon=True)
            with _forking():
                process.start()
                self._processes[here] = process
            there.close()

    def _hand_out(self, connection: Connection, tasks: Sequence[Task], waiting: Iterator[int]) -> int | None:
        """Send the next task; return its index, or None if there is none."""
        index = next(waiting, None)
        if index is not None:
            try:
                connection.send(tasks[index])
            except (BrokenPipeError, ConnectionResetError):
                raise self._died(connection) from None
        return index

    def _receive(self, connection: Connection) -> Message:
        try:
            message: Message = connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._died(connection) from None
        return message

    def _died(self, connection: Connection) -> WorkerDied:
        process = self._processes[connection]
        process.join(SECONDS_TO_END)
        return WorkerDied(process.exitcode or 0, self._memory.describe())


@contextlib.contextmanager
def _forking() -> Iterator[None]:
    """Block signals, and collect no garbage, until the new process has its own handlers and `_serve` has begun.

    What the parent has dropped must not be destroyed in a fork of it: an iterator of TensorFlow, for example, aborts or
    waits forever for threads that only the parent has.
    """
    collects = gc.isenabled()
    gc.disable()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OWN_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if collects:
            gc.enable()


def _serve(connection: Connection, work: Callable[[Task, Tick], Result], parent: int) -> None:
    """Run tasks until the parent terminates the worker or has died."""
    gc.freeze()
    gc.enable()
    # The parent handles Ctrl-C, SIGTERM and SIGHUP, and terminates its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OWN_SIGNALS)

    def tick(count: int) -> None:
        _leave_with(parent)
        connection.send(("tick", count))

    try:
        while True:
            while not connection.poll(SECONDS_BETWEEN_POLLS):
                _leave_with(parent)
            task = connection.recv()
            try:
                result = work(task, tick)
            except (UserError, OSError) as error:
                connection.send(("failed", error))
            except Exception:
                connection.send(("failed", WorkerFailed(traceback.format_exc())))
            else:
                connection.send(("done", result))
    except (EOFError, ConnectionError):
        return


def _leave_with(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)
