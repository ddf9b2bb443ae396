"""Search for better settings."""

from slipway.extensions import Command, Extension, Section

EXTENSION = Extension(
    "tune",
    sections=(
        Section(
            "tune", "slipway.components.train.tuning:TuneSettings", "What `slipway tune` searches for.",
            affects_training=False,
        ),
    ),
    commands=(
        Command(
            "Train", "tune", "slipway.pipelines.tuning.command:tune",
            "Train with different settings (section tune); evaluate and register the best model.",
            ("slipway tune", "slipway tune -c my.yaml --set tune.trials=50"),
        ),
    ),
)  # fmt: skip
