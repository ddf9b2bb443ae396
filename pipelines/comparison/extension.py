"""Compare runs, and train them again to compare the results."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "compare",
    functions={"compare": "slipway.pipelines.comparison.api:compare"},
    commands=(
        Command(
            "", "reproduce", "slipway.pipelines.comparison.commands:reproduce",
            "Prepare and train a run again from its record, and compare data, checkpoints and weights bit for bit.",
            ("slipway runs reproduce latest", "slipway runs reproduce RUN --verify"),
            group="runs",
        ),
        Command(
            "Follow runs", "compare", "slipway.pipelines.comparison.commands:compare",
            "Write a page that compares runs: metrics, settings that differ, learning curves, data, code and time.",
            ("slipway compare RUN RUN", "slipway compare --where train.engine=jax"),
        ),
        Command(
            "", "diagnose", "slipway.pipelines.comparison.commands:diagnose",
            "Say where the time of a training on this machine went, and the setting that would save most.",
            ("slipway runs diagnose", "slipway runs diagnose RUN --try"),
            group="runs",
        ),
    ),
)  # fmt: skip
