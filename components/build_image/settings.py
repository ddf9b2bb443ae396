"""Settings for building and storing images."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipway.trainer.config import Settings

# The Python version that the lock files are resolved for.
BASE = "docker.io/library/python:3.11-slim-bookworm"
IMAGE_PATTERN = r"^[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$"
REPOSITORY_PATTERN = r"^[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*$"


class BuildSettings(Settings):
    """Images for Vertex AI.

    `repository` is an Artifact Registry repository in the run's project and region, or host/path in any other registry
    (which requires a local `builder`). `base` is the base image. `service_account` is the account that Cloud Build runs
    as; by default the project's.
    """

    builder: Literal["cloud-build", "docker", "podman", "buildah"] = "cloud-build"
    repository: str = Field(default="slipway", pattern=REPOSITORY_PATTERN)
    base: str = Field(default=BASE, pattern=IMAGE_PATTERN)
    service_account: str | None = Field(default=None, pattern=r"^[^@\s/]+@[^@\s/]+$")


class ContainerSettings(Settings):
    """Images for `--runner docker`: a local builder, a registry and the base image."""

    builder: Literal["docker", "podman", "buildah"] = "docker"
    repository: str = Field(default="localhost:5000/slipway", pattern=REPOSITORY_PATTERN)
    base: str = Field(default=BASE, pattern=IMAGE_PATTERN)
