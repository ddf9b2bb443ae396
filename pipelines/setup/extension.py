"""Prepare platforms for runs."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "setup",
    commands=(
        Command(
            "Prepare", "setup", "slipway.pipelines.setup.command:setup",
            "Show or create what runs need: on Vertex AI and TPUs APIs, bucket, accounts, roles; on Kubeflow a Role.",
            ("slipway setup -c my.yaml --apply", "slipway setup --target kubeflow -c my.yaml"),
        ),
    ),
)  # fmt: skip
