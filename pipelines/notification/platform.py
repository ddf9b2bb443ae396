"""Platforms that notify of the outcome of runs themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.components.notify.settings import NotifySettings
    from slipway.pipelines.config.config import RunConfig


class WithNotification(ABC):
    """A platform whose pipelines have exit tasks that notify."""

    @abstractmethod
    def check_notification(self, settings: NotifySettings, config: RunConfig) -> None:
        """Raise UserError if the platform cannot notify those whom the configuration names."""
