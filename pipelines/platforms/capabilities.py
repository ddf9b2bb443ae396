"""What only some platforms can do: a mixin of `Platform` for each capability; extensions have more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from slipway.pipelines.checks import Context
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.images.images import Wanted
    from slipway.pipelines.platforms.base import Say
    from slipway.pipelines.platforms.steps import PlatformSteps


class WithSetup(ABC):
    """A platform that `slipway setup` prepares."""

    @abstractmethod
    def setup(self, config: RunConfig, *, apply: bool, as_json: bool) -> bool:
        """Show or create what runs need; return whether nothing is missing or wrong.

        Raises:
            UserError: The configuration has no section for the platform.
        """


class WithImages(ABC):
    """A platform for which Slipway builds images."""

    @abstractmethod
    def image_context(self, context: Context) -> str:
        """Return the names of the images that the run builds, after checking that they can be built.

        Raises:
            UserError: They cannot be built.
            NotApplicableError: None is built.
        """

    @abstractmethod
    def builder(self, config: RunConfig) -> str:
        """Return the configured builder of the images."""

    @abstractmethod
    def wanted_images(self, config: RunConfig, say: Say) -> dict[str, Wanted]:
        """Return the images of a run by role, before they are built."""

    @abstractmethod
    def build_images(self, config: RunConfig, log: TextIO, say: Say, builder: str | None) -> dict[str, str]:
        """Build and push the images that the registry does not have; return their URIs by role, with digests.

        Raises:
            UserError: The user can fix it, such as missing permissions or files that git does not track.
            WorkFailed: A build failed.
        """


class WithTrainerImage(WithImages):
    """A platform whose steps run on this machine, but for the training: its image exists before the first step."""

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
