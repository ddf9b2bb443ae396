"""An image by digest: found in its registry under its content's tag, or built and pushed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from slipway.components.build_image import local
from slipway.components.build_image.cloud_build import CloudBuild, Source
from slipway.components.build_image.context import Context
from slipway.components.build_image.registry import ARTIFACT_REGISTRY, ArtifactRegistry, HttpRegistry, Registry
from slipway.components.cloud.connection import Connection
from slipway.core.errors import UserError
from slipway.trainer.config import Settings

LABELS = "org.opencontainers.image"


class ImageRequest(Settings):
    """An image that is to be there: everything about it but its context's bytes, so that a step can take it."""

    repository: str
    name: str
    tag: str
    arguments: dict[str, str]
    labels: dict[str, str]

    @property
    def uri(self) -> str:
        """Repository, name and the tag that its content gives it."""
        return f"{self.repository}/{self.name}:{self.tag}"

    def by_digest(self, digest: str) -> str:
        """The same image by digest."""
        return f"{self.repository}/{self.name}@{digest}"


@dataclass(frozen=True)
class BuiltImage:
    """An image by digest, and whether it was there already."""

    uri: str
    reused: bool


def request_of(context: Context, repository: str) -> ImageRequest:
    """What is asked for so that `context` becomes an image in `repository`."""
    fingerprint = context.fingerprint()
    labels = {
        f"{LABELS}.title": f"slipway/{context.kind.name}",
        f"{LABELS}.version": fingerprint,
        f"{LABELS}.revision": context.revision,
    }
    return ImageRequest(
        repository=repository, name=context.kind.name, tag=context.tag, arguments=dict(context.arguments), labels=labels
    )


def registry_of(repository: str, connection: Connection | None) -> Registry:
    """The registry that a repository is in."""
    if ARTIFACT_REGISTRY.fullmatch(repository) and connection is not None:
        return ArtifactRegistry(connection)
    return HttpRegistry("containers.repository" if connection is None else "vertex.build.repository")


def find(request: ImageRequest, registry: Registry) -> str | None:
    """The image by digest where the registry has it, else None."""
    digest = registry.digest(request.repository, request.name, request.tag)
    return request.by_digest(digest) if digest else None


# Makes an image and pushes it; gives its digest where the builder says it, else None.
Build = Callable[[ImageRequest], str | None]


def ensure(request: ImageRequest, registry: Registry, build: Build) -> BuiltImage:
    """The image by digest; `build` makes it where the registry does not have it."""
    found = find(request, registry)
    if found is not None:
        return BuiltImage(found, reused=True)
    digest = build(request)
    built = request.by_digest(digest) if digest else find(request, registry)
    if built is None:
        raise UserError(
            f"{request.uri} was built, but the registry does not have it.",
            setting="repository",
            value=request.repository,
            fix="see the build's log",
        )
    return BuiltImage(built, reused=False)


def build_locally(builder: str, archive: Callable[[], bytes], log: TextIO) -> Build:
    """Building with docker, podman or buildah on this machine, as `ensure` takes it."""

    def build(request: ImageRequest) -> None:
        local.build(builder, archive(), request.uri, request.arguments, request.labels, log)
        local.push(builder, request.uri, log)

    return build


def build_in_cloud(service: CloudBuild, source: Callable[[], Source], log: TextIO) -> Build:
    """Building with Cloud Build, as `ensure` takes it; `source` gives the context in the bucket."""

    def build(request: ImageRequest) -> str:
        return service.build(source(), request.uri, request.arguments, request.labels, log)

    return build
