"""Platforms on which `slipway runs clean` finds what is old and not needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.pipelines.cleaning.cleaner import Age, Cleaner
    from slipway.pipelines.config.config import RunConfig


class WithCleaning(ABC):
    """A platform that `slipway runs clean` cleans, besides this machine."""

    @abstractmethod
    def cleaner(self, age: Age, configured: Callable[[], RunConfig]) -> Cleaner:
        """Return what finds and deletes what is old and not needed.

        Args:
            age: The least age, and what is on this machine.
            configured: Returns the configuration, whose section for the platform names the project and the bucket.
        """
