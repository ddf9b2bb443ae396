"""The platforms: this machine, and those of extensions."""

from __future__ import annotations

from slipway import extensions
from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Platform, RemotePlatform
from slipway.pipelines.platforms.local.platform import LocalPlatform

DEFAULT = LocalPlatform.name
_ADDED = map(extensions.load, extensions.references("platforms"))
PLATFORMS: dict[str, Platform] = {kind.name: kind() for kind in (LocalPlatform, *_ADDED)}


def platform_of(name: str) -> Platform:
    """Return a platform.

    Raises:
        UserError: There is none with this name.
    """
    if name not in PLATFORMS:
        raise UserError.unknown("platform", name, PLATFORMS, setting="--target")
    return PLATFORMS[name]


def remote(name: str) -> RemotePlatform | None:
    """Return a platform on which all steps run elsewhere; None for those whose steps run on this machine."""
    platform = platform_of(name)
    return platform if isinstance(platform, RemotePlatform) else None
