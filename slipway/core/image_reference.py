"""References to container images: HOST/PATH/NAME, with a tag, a digest or both; and which of them are pinned."""

from __future__ import annotations

import re
from dataclasses import dataclass

ARTIFACT_REGISTRY = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<repository>[^/]+)")
# Container Registry's hosts, which Artifact Registry serves since 2025 from repositories of these names, and where they
# are; a project of a domain has two parts. https://cloud.google.com/artifact-registry/docs/transition/setup-gcr-repo
GCR = re.compile(r"(?P<repository>(?:(?:us|eu|asia)\.)?gcr\.io)/(?P<project>(?:[^/]*\.[^/]*/)?[^/]+)")
GCR_LOCATIONS = {"gcr.io": "us", "us.gcr.io": "us", "eu.gcr.io": "europe", "asia.gcr.io": "asia"}
# Projects of Google's public images.
PUBLIC_PROJECTS = ("cloud-aiplatform", "deeplearning-platform-release", "ml-pipeline", "vertex-ai")


def artifact_repository(repository: str) -> str | None:
    """Return the full name of the Artifact Registry repository with this host and path; None for another registry."""
    artifact = _in_artifact_registry(repository)
    if artifact is None:
        return None
    location = artifact.groupdict().get("location") or GCR_LOCATIONS[artifact["repository"]]
    project = artifact["project"].replace("/", ":")
    return f"projects/{project}/locations/{location}/repositories/{artifact['repository']}"


def _in_artifact_registry(repository: str) -> re.Match[str] | None:
    return ARTIFACT_REGISTRY.fullmatch(repository) or GCR.fullmatch(repository)


@dataclass(frozen=True)
class ImageReference:
    """An image: its repository (host and path), its name in it, and its tag, its digest ("sha256:…") or both."""

    repository: str
    name: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, image: str) -> ImageReference:
        """Return the parts of an image's URI. In Artifact Registry, names may contain slashes."""
        path, _, digest = image.partition("@")
        artifact = ARTIFACT_REGISTRY.match(path) or GCR.match(path)
        start = artifact.end() if artifact and path[artifact.end() :].startswith("/") else path.rfind("/")
        name, _, tag = path[start + 1 :].partition(":")
        return cls(path[: max(start, 0)], name, tag or None, digest or None)

    @property
    def version(self) -> str:
        """The digest if there is one, otherwise the tag; the default tag is latest."""
        return self.digest or self.tag or "latest"

    @property
    def is_pinned(self) -> bool:
        """Whether the image has a digest, or a tag that is not moved: any except latest."""
        return self.version != "latest"

    @property
    def is_googles(self) -> bool:
        """Whether it is one of Google's public images."""
        artifact = _in_artifact_registry(self.repository)
        return artifact is not None and artifact["project"] in PUBLIC_PROJECTS

    @property
    def artifact_repository(self) -> str | None:
        """The full name of its Artifact Registry repository; None for other registries and Google's images."""
        return None if self.is_googles else artifact_repository(self.repository)


def check_pinned(image: str) -> str:
    """Return `image`, after checking that it is pinned; otherwise the pipeline's cache would miss its changes.

    Raises:
        ValueError: The image is not pinned.
    """
    if not ImageReference.parse(image).is_pinned:
        raise ValueError(
            "an image must have a digest or an immutable tag, and latest is not immutable: the pipeline's cache would "
            "miss its changes; set IMAGE@sha256:… or IMAGE:TAG"
        )
    return image
