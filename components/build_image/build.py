"""Resolve an image to its digest; build and push it if the registry does not have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from slipway.components.build_image import local
from slipway.components.build_image.context import Context
from slipway.components.build_image.registry import ArtifactRegistry, HttpRegistry, Registry
from slipway.components.cloud.connection import Connection
from slipway.core.errors import UserError
from slipway.core.image_reference import artifact_repository
from slipway.trainer.settings import Settings

LABELS = "org.opencontainers.image"


class ImageRequest(Settings):
    """A required image: everything except the bytes of its build context, serializable as a step's argument."""

    repository: str
    name: str
    tag: str
    arguments: dict[str, str]
    labels: dict[str, str]

    @property
    def uri(self) -> str:
        """Repository, name and content tag."""
        return f"{self.repository}/{self.name}:{self.tag}"

    def by_digest(self, digest: str) -> str:
        """Return the image's URI with a digest instead of the tag."""
        return f"{self.repository}/{self.name}@{digest}"


@dataclass(frozen=True)
class BuiltImage:
    """An image by digest, and whether it existed already."""

    uri: str
    reused: bool


def request_of(context: Context, repository: str) -> ImageRequest:
    """Return the request to build `context` as an image in `repository`."""
    fingerprint = context.fingerprint
    labels = {
        f"{LABELS}.title": f"slipway/{context.kind.name}",
        f"{LABELS}.version": fingerprint,
        f"{LABELS}.revision": context.revision,
    }
    return ImageRequest(
        repository=repository, name=context.kind.name, tag=context.tag, arguments=dict(context.arguments), labels=labels
    )


def registry_of(repository: str, connection: Connection | None) -> Registry:
    """Return the client for the registry of a repository."""
    if artifact_repository(repository) and connection is not None:
        return ArtifactRegistry(connection)
    return HttpRegistry("containers.repository" if connection is None else f"{connection.section}.build.repository")


def find(request: ImageRequest, registry: Registry) -> str | None:
    """Return the image by digest, or None if the registry does not have it."""
    digest = registry.digest(request.repository, request.name, request.tag)
    return request.by_digest(digest) if digest else None


def ensure(request: ImageRequest, registry: Registry, build: Callable[[], str | None]) -> BuiltImage:
    """Return the image by digest; if the registry does not have it, call `build`, which pushes it.

    `build` returns the digest, or None if the builder does not report it.
    """
    existing = find(request, registry)
    if existing is not None:
        return BuiltImage(existing, reused=True)
    digest = build()
    built = request.by_digest(digest) if digest else find(request, registry)
    if built is None:
        raise UserError(
            f"{request.uri} was built, but is missing from the registry.",
            setting="repository",
            value=request.repository,
            fix="check the build log",
        )
    return BuiltImage(built, reused=False)


def build_locally(request: ImageRequest, builder: str, archive: bytes, log: TextIO) -> None:
    """Build an image with docker, podman or buildah on this machine, and push it."""
    local.build(builder, archive, request.uri, request.arguments, request.labels, log)
    local.push(builder, request.uri, log)
