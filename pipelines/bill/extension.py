"""What the extension adds: `slipway runs bill`."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "bill",
    requires=("compare",),
    commands=(
        Command(
            "", "bill", "slipway.pipelines.bill.command:bill",
            "Show what each second of a training was spent on, what it cost, and the setting that would save most.",
            ("slipway runs bill", "slipway runs bill RUN --json"),
            group="runs",
        ),
    ),
)  # fmt: skip
