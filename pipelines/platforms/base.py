"""What a platform is: what the commands and the doctor ask of the place where a run executes; and what a check is.

A platform is a folder here, a class in its `platform.py`, and a row in `table.py`; nothing else compares its name.
These modules are imported by every command, so they import what a method needs inside of it.
"""

# ruff: noqa: ARG002 (what a platform does not need ignores its arguments)

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from slipway.components.train.tuning import SearchSettings
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.hardware.prices import Bill
    from slipway.pipelines.runs.record import RunFolder, RunRecord, Watcher
    from slipway.pipelines.runs.running import Running

Shared = TypeVar("Shared")
# Prints one line.
Say: TypeAlias = Callable[[str], None]


class CheckWarning(Exception):
    """The check cannot tell whether a run would fail; the text says what it found, `fix` what to do about it."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class NotApplicableError(Exception):
    """The check does not apply and is skipped; the text is the reason."""


class Platform(ABC):
    """A platform whose steps run on this machine, with what all platforms have; see `RemotePlatform`.

    Attributes:
        name: The value of --target, and the name of its section in the configuration.
        title: What messages call it.
        trains_here: Whether its replicas are processes or containers of this machine.
        trains_in_image: Whether the program of `train.image` runs in a container of this image.
        mounts_buckets: Whether a program finds gs://BUCKET as /gcs/BUCKET, and no file of this machine.
        extra: The optional dependencies that it needs.
        stop_seconds: Time that the processes of a stopped run have until they are killed.
        stopping: What stopping a run does first, if that takes long.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    trains_here: ClassVar[bool] = False
    trains_in_image: ClassVar[bool] = False
    mounts_buckets: ClassVar[bool] = False
    extra: ClassVar[str | None] = None
    stop_seconds: ClassVar[float] = 20.0
    stopping: ClassVar[str] = ""

    # Checks before a run

    def checks(self) -> Sequence[Check]:
        """Return the platform's own checks, which follow the general ones."""
        return ()

    @abstractmethod
    def check_hardware(self, context: Context) -> str:
        """Raise UserError for hardware that the platform does not have; return the hardware and where it is."""

    def candidates(self, config: RunConfig) -> Sequence[RunConfig]:
        """Return the configuration for each hardware and region on which the run is tried, in order."""
        return (config,)

    def candidate_title(self, config: RunConfig) -> str:
        """Return how one of several candidates is called."""
        return str(config.training_hardware)

    def bill(self, config: RunConfig) -> Bill | None:
        """Return what the training costs at most; None if it costs nothing, or no price is known there."""
        return None

    def image(self, config: RunConfig) -> str | None:
        """Return the image that the platform's section sets in place of those that Slipway builds."""
        return None

    # Runs

    @abstractmethod
    def compile_to(self, path: Path, config: RunConfig, say: Say) -> None:
        """Write the pipeline spec of a configuration; no image is built."""

    def serving(self) -> Iterator[Running]:
        """Yield the models that the project's files have deployed there.

        Raises:
            UserError: The platform cannot be asked.
        """
        yield from ()

    # Existing runs

    def refresh(self, folder: RunFolder) -> RunRecord:
        """Return the current record of a run."""
        return folder.read()

    def training_seconds(self, folder: RunFolder, record: RunRecord) -> float:
        """Return how long the machines of the training ran since the run was started or resumed on this machine."""
        return 0.0

    def watch(self, folder: RunFolder, watcher: Watcher) -> RunRecord:
        """Show a run until it ends, and return its record; a KeyboardInterrupt leaves the run as it is."""
        from slipway.pipelines.runs import following

        return following.watch(folder, watcher)

    def log_lines(self, folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
        """Yield the log lines of a step, or of all; with `raw`, including the libraries' start-up messages."""
        from slipway.pipelines.runs import logs

        return logs.read(folder, step, follow=follow, raw=raw)

    def cancel(self, folder: RunFolder) -> RunRecord:
        """Stop a run, wait until it has ended, and return its record."""
        from slipway.pipelines.runs import following

        return following.cancel(folder)


class RemotePlatform(Platform):
    """A platform on which all steps run elsewhere. Its methods raise UserError for what the platform refuses."""

    @abstractmethod
    def start(self, config: RunConfig, say: Say) -> tuple[RunFolder, RunRecord]:
        """Submit a run. The record's status is failed if the platform became unreachable; a refusal leaves no run."""

    @abstractmethod
    def resume(self, folder: RunFolder, say: Say) -> tuple[RunFolder, RunRecord]:
        """Resubmit a run that failed or was cancelled. A refusal leaves its record unchanged."""

    @abstractmethod
    def refresh(self, folder: RunFolder) -> RunRecord:
        """Return the record of a run, updated from the platform if it is running."""

    @abstractmethod
    def watch(self, folder: RunFolder, watcher: Watcher) -> RunRecord: ...

    @abstractmethod
    def log_lines(self, folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]: ...

    @abstractmethod
    def cancel(self, folder: RunFolder) -> RunRecord: ...


@dataclass(frozen=True)
class Context:
    """The run to check: its configuration, platform and working folder.

    `runner` is how local steps execute; `builds` is False if its pipeline is only compiled. `spent` is what the
    training has cost before the run is resumed, in US dollars. `search` says how to search, if the training is a search
    on the platform.
    """

    config: RunConfig
    platform: Platform
    rehearsal: bool = False
    folder: Path = field(default_factory=Path.cwd)
    runner: Literal["process", "docker"] = "process"
    builds: bool = True
    spent: float = 0.0
    search: SearchSettings | None = None
    _shared: dict[object, Any] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def shared(self, make: Callable[[RunConfig], Shared]) -> Shared:
        """Return what `make` returns for the configuration, which all checks share."""
        with self._lock:
            if make not in self._shared:
                self._shared[make] = make(self.config)
            result: Shared = self._shared[make]
            return result

    def candidates(self) -> list[Context]:
        """Return the context of each configuration with which the run may execute, the first one first."""
        configs = self.platform.candidates(self.config)
        return [replace(self, config=config, _shared={}, _lock=threading.RLock()) for config in configs]


@dataclass(frozen=True)
class Check:
    """A check: a function that describes what it found, or raises UserError, CheckWarning or NotApplicableError.

    Attributes:
        name: What it checks.
        run: The function.
        of_run: Whether `slipway run` and `config compile` make it, too, before anything starts.
        remote: Whether it calls services of its platform, a `WithRemoteChecks`; then `compile` does not make it.
        each: "hardware" or "candidate" if it depends on the hardware, or on hardware and region: it is made for each on
            which the run may execute.
        moves: Whether a run that fails it may execute on other hardware or in another region, and is not refused.
        imports: The modules that it imports, besides those that all checks of the platform do, if it is remote: such
            checks run on threads. Of a check that imports them for some configurations, a function that returns them.
    """

    name: str
    run: Callable[[Context], str]
    of_run: bool = False
    remote: bool = False
    each: Literal["hardware", "candidate"] | None = None
    moves: bool = False
    imports: tuple[str, ...] | Callable[[Context], tuple[str, ...]] = ()
