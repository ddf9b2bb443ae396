"""Worker processes that a parent hands one task at a time.

A worker holds what its tasks share (an open source, kept headers), ends when its parent is gone, and never outlives
`Workers`. What a task raises is raised in the parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

from slipway.core.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")
Tick = Callable[[int], None]

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_END = 5.0
# What workers hear in their own way.
OWN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerDied(UserError):
    """A worker process ended in the middle of a task, with the exit code that `multiprocessing` tells of.

    None of ours does that: it was killed, or user code or a library that it uses ended it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(
            f"A process that prepares the data {how_it_ended(code)}.",
            fix="read its log; if this machine's memory ran out, use fewer processes: --set data.workers=1"
            if code < 0
            else "read its log; look for os._exit in your own code",
        )


def how_it_ended(code: int) -> str:
    """A sentence's end about a process by its exit code, which is negative where a signal ended it."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended itself with exit status {code}"


class WorkerFailed(Exception):
    """A task raised what is no mistake of the user's; the text holds the worker's traceback."""


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(wanted: int | None) -> int:
    """How many processes work: as many as there are cores, unless it is said how many are wanted."""
    return wanted or available_cores()


class Workers(Generic[Task, Result]):
    """Up to `count` processes that call `work(task, tick)`, started when there is something to do.

    Args:
        work: What a worker does with a task. It may call `tick` with the number of examples that are done.
        count: How many processes at most.
    """

    def __init__(self, work: Callable[[Task, Tick], Result], count: int) -> None:
        # A forked process starts in a few milliseconds and needs no import; elsewhere the platform's own way is taken.
        self._context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        self._work = work
        self._count = count
        self._processes: dict[Connection, Any] = {}

    def __enter__(self) -> Workers[Task, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, tasks: Sequence[Task], tick: Tick | None = None) -> Iterator[tuple[int, Result]]:
        """Do all tasks, giving each one's index and result as it is done; `tick` hears of their progress.

        Raises:
            UserError, OSError: As the task raised it.
            WorkerFailed: A task raised anything else.
            WorkerDied: A process ended in the middle of a task, as one does that is killed for its memory.
        """
        self._start(min(self._count, len(tasks)))
        waiting = iter(range(len(tasks)))
        busy = {connection for connection in self._processes if self._hand_out(connection, tasks, waiting)}
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                kind, value = self._receive(ready)
                if kind == "tick":
                    if tick:
                        tick(value)
                elif kind == "failed":
                    raise value
                else:
                    if not self._hand_out(ready, tasks, waiting):
                        busy.discard(ready)
                    yield value

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
            # A signal must not meet the new process while it has its parent's handlers still.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, OWN_SIGNALS)
            try:
                process.start()
                self._processes[here] = process
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there.close()

    def _hand_out(self, connection: Connection, tasks: Sequence[Task], waiting: Iterator[int]) -> bool:
        """Hand the next task to a worker; whether there was one."""
        index = next(waiting, None)
        if index is None:
            return False
        connection.send((index, tasks[index]))
        return True

    def _receive(self, connection: Connection) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = connection.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[connection]
            process.join(SECONDS_TO_END)
            raise WorkerDied(process.exitcode) from None
        return message


def _serve(connection: Connection, work: Callable[[Any, Tick], Any], parent: int) -> None:
    """A worker's life: tasks until the parent ends it or is gone."""
    # The parent hears Ctrl-C, SIGTERM and a terminal that closes, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OWN_SIGNALS)

    def tick(count: int) -> None:
        _leave_with(parent)
        connection.send(("tick", count))

    try:
        while True:
            while not connection.poll(SECONDS_BETWEEN_LOOKS):
                _leave_with(parent)
            index, task = connection.recv()
            try:
                result = work(task, tick)
            except (UserError, OSError) as error:
                connection.send(("failed", error))
            except Exception:
                connection.send(("failed", WorkerFailed(traceback.format_exc())))
            else:
                connection.send(("done", (index, result)))
    except (EOFError, ConnectionError):
        return


def _leave_with(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)
