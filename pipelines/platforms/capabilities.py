"""What only some platforms can do: a mixin of `Platform` for each capability; extensions have more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from slipway.core.errors import UserError
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Context, Say
    from slipway.pipelines.platforms.steps import PlatformSteps


class WithSetup(ABC):
    """A platform that `slipway setup` prepares."""

    @abstractmethod
    def setup(self, config: RunConfig, *, apply: bool, as_json: bool) -> bool:
        """Show or create what runs need; return whether nothing is missing or wrong.

        Raises:
            UserError: The configuration has no section for the platform.
        """


class WithRemoteChecks(ABC):
    """A platform with checks that call its services."""

    @abstractmethod
    def import_modules(self, *names: str) -> None:
        """Import what the checks use, and the modules `names`, before threads do."""

    @abstractmethod
    def problem_of(self, error: Exception, context: Context, action: str) -> UserError | None:
        """Return what an answer of a service means that refuses to do `action`; None if it is no such answer."""

    @abstractmethod
    def late(self, seconds: float, failure: str) -> UserError:
        """Return the error for a check that took longer; `failure` is the newest one of its calls, "" for none."""


class WithTrainerImage(ABC):
    """A platform whose steps run on this machine, but for the training: its image exists before the first step."""

    @abstractmethod
    def build_trainer(self, config: RunConfig, log: TextIO, say: Say) -> str:
        """Return the image that trains by digest, built if the registry does not have it.

        Raises:
            UserError: The user can fix it, such as missing permissions or files that git does not track.
            WorkFailed: The build failed.
        """

    @abstractmethod
    def steps(self, trainer: str) -> PlatformSteps:
        """Return how steps are added to a pipeline that trains in the image `trainer`."""


@dataclass(frozen=True)
class BatchJob:
    """What `slipway batch` was asked for: see its options."""

    config: RunConfig
    model: str
    inputs: Sequence[str]
    output: str
    hardware: str | None
    batch_size: int | None
    key: str | None


class WithBatches(ABC):
    """A platform where `slipway batch` submits a job."""

    @abstractmethod
    def batch(self, job: BatchJob, *, dry_run: bool, no_wait: bool, cancel: bool, strict: bool, as_json: bool) -> None:
        """Submit, watch or cancel a job, and show its results; exit with the code for these."""
