"""The platforms: this machine, and those of extensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slipway import extensions
from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Platform, RemotePlatform
from slipway.pipelines.platforms.local.platform import LocalPlatform

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig

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


def with_hardware(config: RunConfig, name: str, say: Callable[[str], None]) -> RunConfig:
    """Return a configuration with hardware: if it leaves that open, with what is chosen for a platform."""
    from slipway.pipelines.config.automatic import chosen

    return chosen(config, platform_of(name), say)


def remote(name: str) -> RemotePlatform | None:
    """Return a platform on which all steps run elsewhere; None for those whose steps run on this machine."""
    platform = platform_of(name)
    return platform if isinstance(platform, RemotePlatform) else None
