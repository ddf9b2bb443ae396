"""The check of what a run's images are built from."""

from __future__ import annotations

from slipway.pipelines.images.local import LocalImages
from slipway.pipelines.images.platform import WithImages
from slipway.pipelines.platforms.base import Check, Context, NotApplicableError


def image_context(context: Context) -> str:
    """The run's images can be built: git tracks their files, and for local containers Docker responds."""
    if context.runner == "docker":
        return LocalImages().image_context(context)
    if isinstance(context.platform, WithImages):
        return context.platform.image_context(context)
    raise NotApplicableError("no image is built")


CHECKS = (Check("image context", image_context, of_run=True),)
