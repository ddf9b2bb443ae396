"""Notify of the outcome of runs."""

from slipway.extensions import Extension, Section

EXTENSION = Extension(
    "notify",
    packages=("slipway.components.notify",),
    requires=("google",),
    sections=(
        Section(
            "notify",
            "slipway.components.notify.settings:NotifySettings",
            "Whom to notify when a run has ended; null: nobody.",
            secrets=("webhook",),
            affects_training=False,
        ),
    ),
    checks=("slipway.pipelines.notification.checks:CHECKS",),
    observers=("slipway.pipelines.notification.notification:Notification",),
)
