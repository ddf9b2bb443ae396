"""Platforms on which `slipway tune` submits a search as a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.components.train.tuning import SearchSettings
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Say
    from slipway.pipelines.runs.record import RunFolder, RunRecord


class WithSearch(ABC):
    """A platform that executes searches."""

    @abstractmethod
    def tune(self, config: RunConfig, search: SearchSettings, say: Say) -> tuple[RunFolder, RunRecord]:
        """Submit a run whose training is a search; see `RemotePlatform.start`."""
