"""Runs that execute elsewhere: what the module `commands` of every remote platform provides."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from slipway.pipelines.table import HERE

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.runs.record import RunFolder, RunRecord, Watcher

# Prints one line.
Say: TypeAlias = Callable[[str], None]


class Remote(Protocol):
    """The commands for runs on a remote platform. All of them raise UserError for what the platform refuses."""

    def check_hardware(self, config: RunConfig) -> str:
        """Raise UserError for hardware that the platform does not have; return the hardware and where it is."""

    def compile_to(self, path: Path, config: RunConfig, say: Say) -> None:
        """Write the pipeline spec of a configuration."""

    def start(self, config: RunConfig, say: Say) -> tuple[RunFolder, RunRecord]:
        """Submit a run. The record's status is failed if the platform became unreachable; a refusal leaves no run."""

    def resume(self, folder: RunFolder, say: Say) -> tuple[RunFolder, RunRecord]:
        """Resubmit a run that failed or was cancelled. A refusal leaves its record unchanged."""

    def refresh(self, folder: RunFolder) -> RunRecord:
        """Return the record of a running run, updated from the platform."""

    def watch(self, folder: RunFolder, watcher: Watcher) -> RunRecord:
        """Refresh the record until the run ends; a KeyboardInterrupt leaves the run as it is."""

    def log_lines(self, folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
        """Yield the log lines of a step, or of all; with `raw`, including the libraries' start-up messages."""

    def cancel(self, folder: RunFolder) -> RunRecord:
        """Stop a run."""


def remote(platform: str) -> Remote | None:
    """Return the commands of a platform; None for those whose steps run on this machine."""
    if platform in HERE:
        return None
    return cast("Remote", importlib.import_module(f"slipway.pipelines.platforms.{platform}.commands"))
