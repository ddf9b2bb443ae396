"""How images are built and where they are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipway.trainer.config import Settings

# The newest slim Python that the locked packages are resolved for.
BASE = "docker.io/library/python:3.11-slim-bookworm"
IMAGE_PATTERN = r"^[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$"
REPOSITORY_PATTERN = r"^[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*$"


class BuildSettings(Settings):
    """Images for Vertex AI.

    `repository` is an Artifact Registry repository of the run's project and region, or host/path of any other registry
    (then `builder` is a local one). `base` is the image that all start from; `service_account` what Cloud Build runs
    as, where that is not the project's default.
    """

    builder: Literal["cloud-build", "docker", "podman", "buildah"] = "cloud-build"
    repository: str = Field(default="slipway", pattern=REPOSITORY_PATTERN)
    base: str = Field(default=BASE, pattern=IMAGE_PATTERN)
    service_account: str | None = Field(default=None, pattern=r"^[^@\s/]+@[^@\s/]+$")


class ContainerSettings(Settings):
    """Images for `--runner docker`: a builder on this machine, a registry, and the image that all start from."""

    builder: Literal["docker", "podman", "buildah"] = "docker"
    repository: str = Field(default="localhost:5000/slipway", pattern=REPOSITORY_PATTERN)
    base: str = Field(default=BASE, pattern=IMAGE_PATTERN)
