"""Platforms for which Slipway builds images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.images.images import Wanted
    from slipway.pipelines.platforms.base import Context, Say


class WithImages(ABC):
    """A platform with images; see also `slipway.pipelines.images.local.LocalImages`, for containers on this machine."""

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
