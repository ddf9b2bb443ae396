"""What extensions do while runs are executed and when they have ended, such as to track them and to notify of them."""

# ruff: noqa: ARG002 (an observer ignores what it does not need)

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from slipway import extensions

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.runs.record import RunFolder, RunRecord

# Prints one line.
Say: TypeAlias = Callable[[str], None]


class Observer:
    """The base of observers, of which no method has to be overridden. A run does not fail with one: it says so."""

    def executing(
        self, folder: RunFolder, config: RunConfig, record: RunRecord, say: Say
    ) -> AbstractContextManager[None]:
        """Return a context in which this process executes a run on this machine; `record` changes in it."""
        return contextlib.nullcontext()

    def searching(self, config: RunConfig, study: str, say: Say) -> AbstractContextManager[None]:
        """Return a context in which this process executes the trials of a search."""
        return contextlib.nullcontext()

    def ended(self, folder: RunFolder, config: RunConfig, record: RunRecord, say: Say) -> None:
        """Receive a run that has ended on this machine, after its record was written."""

    def ended_elsewhere(self, folder: RunFolder, record: RunRecord, say: Say) -> None:
        """Receive a run that was watched until it ended on another platform."""


def observers() -> list[Observer]:
    """Return the observers of all extensions."""
    return [extensions.load(reference)() for reference in extensions.references("observers")]


@contextlib.contextmanager
def executing(folder: RunFolder, config: RunConfig, record: RunRecord, say: Say) -> Iterator[None]:
    """Return the context of all observers in which a run is executed; see `Observer.executing`."""
    with contextlib.ExitStack() as contexts:
        for observer in observers():
            contexts.enter_context(observer.executing(folder, config, record, say))
        yield


def ended(folder: RunFolder, config: RunConfig, record: RunRecord, say: Say) -> None:
    """Let all observers know that a run has ended on this machine."""
    for observer in observers():
        observer.ended(folder, config, record, say)
