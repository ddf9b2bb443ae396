"""The check of whom a run notifies."""

from __future__ import annotations

from slipway.components.notify.settings import NotifySettings
from slipway.pipelines.notification.platform import WithNotification
from slipway.pipelines.platforms.base import Check, Context, NotApplicableError, RemotePlatform


def notification(context: Context) -> str:
    """The run's platform can notify all recipients in the configuration."""
    settings = context.config.section(NotifySettings)
    if settings is None:
        raise NotApplicableError("nobody is notified")
    if isinstance(context.platform, WithNotification):
        context.platform.check_notification(settings, context.config)
    used = [name for name in ("email", "webhook", "topic") if getattr(settings, name)]
    if settings.email and not isinstance(context.platform, RemotePlatform):
        used[0] = "no e-mail from this machine"
    return ", ".join(used)


CHECKS = (Check("notification", notification, of_run=True),)
