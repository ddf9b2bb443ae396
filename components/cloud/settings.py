"""What the sections of the configuration for platforms on Google Cloud have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field, field_validator

from slipway.components.build_image.settings import BuildSettings
from slipway.components.cloud.connection import Connection, check_endpoints
from slipway.components.cloud.rules import ACCOUNT, BUCKET, PROJECT, check_labels
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.image_reference import check_pinned
from slipway.trainer.settings import Settings

# The services of BigQuery.
WAREHOUSE = ("bigquery", "bigquerystorage")
PinnedImage = Annotated[str, AfterValidator(check_pinned)]
BucketUri = Annotated[str, Field(pattern=BUCKET)]
AccountEmail = Annotated[str, Field(pattern=ACCOUNT)]


class CloudSettings(Settings):
    """The base of the sections: a project, its bucket and region, images, labels and endpoints.

    Each section declares the fields, with its own descriptions and in its own order, which is that of `slipway config`.
    """

    section: ClassVar[str]
    project: str = Field(pattern=PROJECT, description="Google Cloud project id.")

    if TYPE_CHECKING:
        bucket: str
        image: str | None
        build: BuildSettings
        endpoints: dict[str, str]

        @property
        def region(self) -> str: ...

    @field_validator("endpoints", check_fields=False)
    @classmethod
    def _known_services(cls, endpoints: dict[str, str]) -> dict[str, str]:
        check_endpoints(endpoints, cls.section)
        return endpoints

    @field_validator("labels", check_fields=False)
    @classmethod
    def _labels_of_google(cls, labels: dict[str, str]) -> dict[str, str]:
        check_labels(labels, f"{cls.section}.labels")
        return labels

    @property
    def image_repository(self) -> str:
        """The repository for built images: host/path."""
        return self.build.place(self.region, self.project)

    def reading(self, data: DataSettings) -> DataSettings:
        """Return the data's settings; this project is billed for reading BigQuery, unless they name another one."""
        settings = data.bigquery
        endpoints = {name: host for name, host in self.endpoints.items() if name in WAREHOUSE}
        changes = {"project": settings.project or self.project, "endpoints": {**endpoints, **settings.endpoints}}
        return data.model_copy(update={"bigquery": settings.model_copy(update=changes)})

    @property
    def connection(self) -> Connection:
        """The connection to Google's services for this project and region."""
        return Connection(self.project, self.region, self.endpoints, self.section)
