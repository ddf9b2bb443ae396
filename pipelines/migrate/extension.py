"""Convert AI Platform Training jobs."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "migrate",
    requires=("google", "vertex"),
    commands=(
        Command(
            "Prepare", "migrate", "slipway.pipelines.migrate.command:migrate",
            "Convert an AI Platform Training job into a run configuration.",
            ("slipway migrate config.yaml -o my.yaml", "slipway migrate -- my_job --scale-tier=BASIC_GPU"),
        ),
    ),
)  # fmt: skip
