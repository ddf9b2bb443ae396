"""The platforms: one row each."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Platform, RemotePlatform
from slipway.pipelines.platforms.kubeflow.platform import KubeflowPlatform
from slipway.pipelines.platforms.local.platform import LocalPlatform
from slipway.pipelines.platforms.tpu.platform import TpuPlatform
from slipway.pipelines.platforms.vertex.platform import VertexPlatform

PLATFORMS: dict[str, Platform] = {
    platform.name: platform for platform in (LocalPlatform(), VertexPlatform(), KubeflowPlatform(), TpuPlatform())
}
DEFAULT = LocalPlatform.name


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
