"""Train on data sets of the Hugging Face Hub, and publish models there."""

from slipway.extensions import Extension

EXTENSION = Extension(
    "huggingface",
    packages=("slipway.components.prepare_data.huggingface",),
    checks=("slipway.pipelines.huggingface.checks:CHECKS",),
    sources=("slipway.components.prepare_data.huggingface.reference:SOURCE",),
)
