"""The checks of what a run's images are built from."""

from __future__ import annotations

from slipway.pipelines.images.local import LocalImages
from slipway.pipelines.images.platform import WithImages
from slipway.pipelines.platforms.base import Check, CheckWarning, Context, NotApplicableError


def image_context(context: Context) -> str:
    """The run's images can be built: git tracks their files, and for local containers Docker responds."""
    if context.runner == "docker":
        return LocalImages().image_context(context)
    if isinstance(context.platform, WithImages):
        return context.platform.image_context(context)
    raise NotApplicableError("no image is built")


def locked_packages(context: Context) -> str:
    """The project's packages in the images are those of a lock file."""
    from slipway.components.build_image.locks import export
    from slipway.components.build_image.locks.release import PYPROJECT
    from slipway.components.build_image.settings import ContentSettings

    settings = context.config.section(ContentSettings)
    if settings is None or settings.requirements is None:
        raise NotApplicableError("build.requirements names no packages")
    if context.runner != "docker" and not isinstance(context.platform, WithImages):
        raise NotApplicableError("no image is built")
    path = export.file_of(context.folder, settings.requirements)
    if path.name == PYPROJECT:
        raise CheckWarning(
            f"{path.name} is no lock file: an image has the versions of the day on which it is built",
            "uv lock, which writes uv.lock",
        )
    return path.name


CHECKS = (Check("image context", image_context, of_run=True), Check("locked packages", locked_packages, of_run=True))
