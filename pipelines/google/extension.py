"""Google Cloud: its clients, permissions, and the images that are built for it and for containers on this machine."""

from slipway.extensions import Command, Extension, Section

EXTENSION = Extension(
    "google",
    packages=(
        "slipway.components.build_image",
        "slipway.components.cloud",
        "slipway.components.setup_access",
        "slipway.pipelines.images",
    ),
    sections=(
        Section(
            "build",
            "slipway.components.build_image.settings:ContentSettings",
            "What your project adds to the images.",
            has_default=True,
        ),
        Section(
            "containers",
            "slipway.components.build_image.settings:ContainerSettings",
            "Images for local runs with `--runner docker`.",
            has_default=True,
        ),
    ),
    commands=(
        Command(
            "", "build", "slipway.pipelines.images.command:build",
            "Build the images that a run needs, skip those already in the registry, and print their digests.",
            ("slipway config build --target vertex -c my.yaml", "slipway config build --no-push"),
            group="config",
        ),
    ),
    checks=("slipway.pipelines.images.checks:CHECKS",),
    objects="slipway.components.cloud:objects",
    folders="slipway.pipelines.google:copies",
    image_builder="slipway.pipelines.images.local",
)  # fmt: skip
