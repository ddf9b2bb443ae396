"""Delete what is old and not needed."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "clean",
    commands=(
        Command(
            "Follow runs", "clean", "slipway.pipelines.cleaning.command:clean",
            "Delete old runs, data sets, images, schedules and TPUs that no model, search or other run refers to.",
            ("slipway clean", "slipway clean --older-than 7d --apply"),
        ),
    ),
    observers=("slipway.pipelines.cleaning.users:Noted",),
)  # fmt: skip
