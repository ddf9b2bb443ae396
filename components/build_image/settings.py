"""Settings for building and storing images."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipway.trainer.settings import Settings

# The Python version that the lock files are resolved for.
BASE = "docker.io/library/python:3.11-slim-bookworm"
IMAGE_PATTERN = r"^[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$"
ROOT_USER = "0:0"
REPOSITORY_PATTERN = r"^[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*$"


class BuildSettings(Settings):
    """Images for Vertex AI."""

    builder: Literal["cloud-build", "docker", "podman", "buildah"] = Field(
        default="cloud-build", description="Tool that builds the images: Cloud Build, or a local builder."
    )
    repository: str = Field(
        default="slipway",
        pattern=REPOSITORY_PATTERN,
        description="Name of an Artifact Registry repository in the run's project and region, or host/path in any "
        "other registry (which requires a local `builder`).",
    )
    base: str = Field(default=BASE, pattern=IMAGE_PATTERN, description="Base image; requires Python 3.11.")
    # Files on a gcsfuse mount belong to its mounter, with permissions 0644 and 0755, unless it is mounted with --uid or
    # --file-mode (gcsfuse's docs/semantics.md, "Permissions and ownership"). How Vertex AI mounts is not documented.
    run_as: str = Field(
        default=ROOT_USER,
        pattern=r"^\d+:\d+$",
        description="User of the containers, as UID:GID. Any user but root may lack write access to the bucket mounted "
        "at /gcs. TPUs need root.",
    )
    service_account: str | None = Field(
        default=None,
        pattern=r"^[^@\s/]+@[^@\s/]+$",
        description="E-mail address of the account that Cloud Build's builds run as; null: the project's default "
        "account for builds. You need iam.serviceAccounts.actAs on it.",
    )
    region: str | None = Field(
        default=None,
        pattern=r"^(global|[a-z]+-[a-z]+\d+)$",
        description="Region in which Cloud Build builds, or global; null: the run's region, and global if Google does "
        "not allow the project to build there.",
    )


class ContainerSettings(Settings):
    """Images for `--runner docker`."""

    builder: Literal["docker", "podman", "buildah"] = Field(
        default="docker", description="Local tool that builds the images."
    )
    repository: str = Field(
        default="localhost:5000/slipway",
        pattern=REPOSITORY_PATTERN,
        description="Repository for the images, as host/path in a registry.",
    )
    base: str = Field(default=BASE, pattern=IMAGE_PATTERN, description="Base image; requires Python 3.11.")
