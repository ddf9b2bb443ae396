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


class ContentSettings(Settings):
    """What your project adds to the images: the files that git tracks in the folder where `slipway` runs.

    In a pattern, `*` stands for any text. A pattern without a slash matches the name of a file or folder at any depth;
    with a slash, it matches a path from the project's folder. A folder stands for everything in it.
    """

    include: tuple[str, ...] = Field(
        default=(),
        description="Patterns of files that are added although git does not track them, such as weights/*.h5.",
    )
    exclude: tuple[str, ...] = Field(
        default=(".*", "*.md", "*.ipynb", "Makefile", "schema.json", "slipway.yaml", "tests"),
        description="Patterns of tracked files that no image needs; a change of them builds no new image.",
    )
    requirements: str | None = Field(
        default=None,
        description="File with additional packages: uv.lock or pylock.toml, from which they are installed with their "
        "hashes; a requirements file, which pins each as NAME==VERSION together with what it depends on; or "
        "pyproject.toml, whose versions are those of the day of the build. auto: the first that exists of pylock.toml, "
        "uv.lock, requirements.txt and pyproject.toml. null: none.",
    )
    groups: tuple[str, ...] = Field(
        default=(), description="Dependency groups of uv.lock or pylock.toml that are installed, too."
    )
    index: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]+$",
        description="Package index, such as a mirror, from which the additional packages are installed, and from no "
        "other one; null: that of pip's configuration where the image is built, in place of the one that most packages "
        "of a lock file are from, and the lock file's others.",
    )


class BuildSettings(Settings):
    """How images are built for Vertex AI, and where they are stored."""

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

    def place(self, region: str, project: str) -> str:
        """Return the repository as host/path."""
        return self.repository if "/" in self.repository else f"{region}-docker.pkg.dev/{project}/{self.repository}"


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
