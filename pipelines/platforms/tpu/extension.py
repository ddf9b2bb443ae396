"""Cloud TPU VMs: runs on this machine that train there."""

from slipway.extensions import Command, Extension, Section

EXTENSION = Extension(
    "tpu",
    packages=("slipway.components.train.tpu",),
    requires=("google", "vertex", "clean"),
    sections=(
        Section(
            "tpu",
            "slipway.components.train.tpu.settings:TpuSettings",
            "Cloud TPU VMs; required for `--target tpu`.",
            forms="slipway.components.cloud.rules:FORMS",
        ),
    ),
    backends={"tpu": "slipway.components.train.tpu.backend:train"},
    tasks={"tpu": "slipway.pipelines.platforms.tpu.table:TASKS"},
    platforms=("slipway.pipelines.platforms.tpu.platform:TpuPlatform",),
    commands=(
        Command(
            "", "tpu", "slipway.pipelines.platforms.tpu.commands:app",
            "List and delete the Cloud TPUs that runs with --target tpu have requested.",
            ("slipway runs tpu list -c my.yaml", "slipway runs tpu delete slipway-digits-1-1"),
            group="runs",
        ),
    ),
)  # fmt: skip
