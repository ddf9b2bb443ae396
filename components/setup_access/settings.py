"""Settings of setup_access: the resources and accounts of a run."""

from __future__ import annotations

from pydantic import Field

from slipway.components.cloud.connection import Connection
from slipway.trainer.config import Settings


class AccessSettings(Settings):
    """The project, resources and accounts that runs use.

    `bucket` is a name without gs://; `stores` and `sources` are other buckets that runs write to and read from.
    `repository` is the full name of an Artifact Registry repository, None if the image is elsewhere. `account` is the
    run-as account's e-mail; `submitters` are the policy members (user:, group:, serviceAccount:) who start runs.
    `tpu`: whether the hardware is a TPU. `builds`: whether Cloud Build builds images; `builder` is its account, None
    for the project's default.
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
        """The connection to Google Cloud for this project and region."""
        return Connection(self.project, self.region, self.endpoints)
