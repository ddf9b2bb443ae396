"""What the rights depend on."""

from __future__ import annotations

import re

from pydantic import Field

from slipway.components.cloud.connection import Connection
from slipway.trainer.config import Settings

IMAGE = re.compile(
    r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<repository>[^/]+)/(?P<image>[^@:]+)"
    r"(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# Google's own images, which everyone may read.
PUBLIC_PROJECT = "vertex-ai"


class AccessSettings(Settings):
    """A project as runs need it.

    `bucket` is a name without gs://, `stores` and `sources` other buckets that runs write to and read from.
    `repository` is the full name of an Artifact Registry repository, None where the image is elsewhere. `account` is
    the run-as account's e-mail, `submitters` the members of policies (user:, group:, serviceAccount:) who start runs.
    `tpu`: whether the hardware is a TPU; `builds`: whether Cloud Build makes images, as the account `builder` where
    that is not the project's default.
    """

    project: str
    region: str
    bucket: str
    stores: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    repository: str | None = None
    account: str | None = None
    submitters: tuple[str, ...] = ()
    tpu: bool = False
    builds: bool = True
    builder: str | None = None
    endpoints: dict[str, str] = Field(default_factory=dict)

    @property
    def connection(self) -> Connection:
        """The way to Google's services for this project and region."""
        return Connection(self.project, self.region, self.endpoints)


def repository_of(image: str) -> str | None:
    """The full name of the Artifact Registry repository that an image is in; None for those elsewhere and Google's."""
    found = IMAGE.fullmatch(image)
    if found is None or found["project"] == PUBLIC_PROJECT:
        return None
    return f"projects/{found['project']}/locations/{found['location']}/repositories/{found['repository']}"
