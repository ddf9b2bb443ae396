"""Compare data with those of the champion: `slipway drift`, and runs that train only if they have drifted."""

from slipway.extensions import Command, Condition, Extension

EXTENSION = Extension(
    "drift",
    packages=("slipway.components.check_drift",),
    requires=("notify",),
    conditions={
        "drift": Condition(
            "only if the prepared data differ from those that the registered champion was evaluated on, or there is "
            "none; otherwise it ends after check_drift",
            "slipway.pipelines.drift.condition:if_drifted",
            "slipway.pipelines.drift.condition:check",
            step="slipway.pipelines.drift.condition:STEP",
            after="prepare_data",
        )
    },
    steps={"check_drift": "slipway.components.check_drift.steps:check_drift"},
    commands=(
        Command(
            "Use models", "drift", "slipway.pipelines.drift.command:drift",
            "Compare new data with those that a model was evaluated on. Exits with 4 if they have drifted.",
            ("slipway drift digits photos", "slipway drift digits new.csv --false-alarms 0.05"),
        ),
    ),
)  # fmt: skip
