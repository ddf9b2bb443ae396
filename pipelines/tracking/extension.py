"""Send runs to a tracking server."""

from slipway.extensions import Command, Extension, Section

EXTENSION = Extension(
    "track",
    sections=(
        Section(
            "track",
            "slipway.pipelines.tracking.settings:TrackSettings",
            "Where parameters, metrics, report and outcome of runs are sent; null: nowhere.",
            forms="slipway.pipelines.tracking.settings:FORMS",
            affects_training=False,
        ),
    ),
    commands=(
        Command(
            "", "track", "slipway.pipelines.tracking.command:track",
            "Send to the tracker (section track) what it does not have of a run or search, as after it was down.",
            ("slipway runs track latest", "slipway runs track RUN --set track.mlflow=http://localhost:5000"),
            group="runs",
        ),
    ),
    checks=("slipway.pipelines.tracking.checks:CHECKS",),
    observers=("slipway.pipelines.tracking.tracking:Tracking",),
)  # fmt: skip
