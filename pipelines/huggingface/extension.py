"""Train on data sets of the Hugging Face Hub, and publish models there."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "huggingface",
    packages=("slipway.components.prepare_data.huggingface",),
    commands=(
        Command(
            "Use models", "publish", "slipway.pipelines.huggingface.command:publish",
            "Upload a registered model with a model card to the Hugging Face Hub, unless it is there.",
            ("slipway publish hf:ORG/NAME", "slipway publish hf:ORG/NAME digits@3 --dry-run"),
            extra="huggingface",
        ),
    ),
    checks=("slipway.pipelines.huggingface.checks:CHECKS",),
    sources=("slipway.components.prepare_data.huggingface.reference:SOURCE",),
)  # fmt: skip
