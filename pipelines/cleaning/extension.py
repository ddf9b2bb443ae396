"""Delete what is old and not needed."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "clean",
    commands=(
        Command(
            "", "clean", "slipway.pipelines.cleaning.command:clean",
            "Delete old runs, data sets, images, schedules and TPUs that no model, search or other run refers to.",
            ("slipway runs clean", "slipway runs clean --older-than 7d --apply"),
            group="runs",
        ),
    ),
    observers=("slipway.pipelines.cleaning.users:Noted",),
)  # fmt: skip
