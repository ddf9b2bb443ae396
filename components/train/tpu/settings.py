"""Settings for runs that train on Cloud TPU VMs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from slipway.components.build_image.reference import check_pinned
from slipway.components.build_image.settings import BuildSettings
from slipway.components.cloud.connection import Connection, check_endpoints
from slipway.components.cloud.rules import check_labels
from slipway.trainer.settings import Settings, Untyped


class TpuSettings(Settings):
    """Settings for runs that train on Cloud TPU VMs; all other steps run on this machine."""

    project: str = Field(description="Google Cloud project id.")
    zones: tuple[Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+\d+-[a-z]$")], ...] = Field(
        min_length=1,
        description="Zones to request the TPU in, such as [us-west4-a]; the next one if one has no capacity or the "
        "request expires there.",
    )
    bucket: str = Field(
        pattern=r"^gs://[a-z0-9][a-z0-9._-]*[a-z0-9]$",
        description="Bucket for the data set, the checkpoints and the model, gs://NAME, in the region of the zones.",
    )
    image: str | None = Field(
        default=None,
        description="Container image of the trainer, by digest or by an immutable tag; null: it is built according to "
        "`build`.",
    )
    build: BuildSettings = Field(default=BuildSettings(), description="How the image is built; not with `image`.")
    service_account: str = Field(
        pattern=r"^[^@\s/:]+@[^@\s/:]+$",
        description="E-mail address of the account of the TPU's machines, which reads and writes the bucket, pulls the "
        "image and deletes the TPU. `slipway setup --target tpu --apply` creates it with these rights and no others.",
    )
    network: str | None = Field(default=None, description="VPC network of the TPU; null: the project's default.")
    subnetwork: str | None = Field(default=None, description="Subnetwork of the TPU; null: the network's default.")
    external_ips: bool = Field(
        default=True,
        description="Whether the TPU's machines have external IP addresses; without them, the subnetwork needs Private "
        "Google Access, and Cloud NAT for the installation of gcsfuse.",
    )
    runtime_version: str | None = Field(
        default=None,
        description="Software version of the TPU's machines; null: the one for the generation, as `slipway hardware` "
        "shows it.",
    )
    reservation: str | None = Field(
        default=None,
        pattern=r"^projects/[^/]+/locations/[^/]+/reservations/[^/]+$",
        description="Reservation to use, projects/PROJECT/locations/ZONE/reservations/NAME; null: none.",
    )
    guaranteed: bool = Field(
        default=False, description="Whether to request capacity of the guaranteed tier, not with Spot."
    )
    valid_for: float = Field(
        default=24.0, gt=0, description="Hours that a request may wait for capacity before it expires in its zone."
    )
    max_provisioning_minutes: float = Field(
        default=60.0,
        gt=0,
        description="Minutes that a request may stay in PROVISIONING before the next zone is tried. Spot machines that "
        "are preempted while they are created can stay there for good.",
    )
    max_hours: float = Field(
        default=24.0, gt=0, description="Hours after which the TPU's machines delete the TPU, whatever happens."
    )
    lease: float = Field(
        default=10.0,
        gt=0,
        description="Minutes without a sign of life of the command `slipway run` after which the TPU's machines delete "
        "the TPU.",
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of the TPU: up to 63 lower-case letters, digits, dashes and underscores.",
    )
    endpoints: dict[str, str] = Field(
        default_factory=dict,
        description="Address (host[:port]) by service name, for services that are not reached at Google's public "
        "addresses, as in `vertex.endpoints`.",
    )

    @field_validator("endpoints")
    @classmethod
    def _known_services(cls, endpoints: dict[str, str]) -> dict[str, str]:
        check_endpoints(endpoints, "tpu")
        return endpoints

    @field_validator("labels")
    @classmethod
    def _labels_of_google(cls, labels: dict[str, str]) -> dict[str, str]:
        check_labels(labels, "tpu.labels")
        return labels

    @field_validator("image")
    @classmethod
    def _never_moved(cls, image: str | None) -> str | None:
        return None if image is None else check_pinned(image)

    @model_validator(mode="after")
    def _one_region(self) -> TpuSettings:
        # The machines mount the bucket and pull the image, which are in one region.
        if len({zone.rpartition("-")[0] for zone in self.zones}) > 1:
            raise ValueError(f"zones must be in one region, the bucket's; got {', '.join(self.zones)}")
        if self.reservation and self.reservation.split("/")[3] not in self.zones:
            raise ValueError(f"the reservation is in {self.reservation.split('/')[3]}, which is not among zones")
        return self

    @property
    def region(self) -> str:
        """The region of the zones."""
        return self.zones[0].rpartition("-")[0]

    @property
    def image_repository(self) -> str:
        """The repository for built images: host/path."""
        return self.build.place(self.region, self.project)

    @property
    def connection(self) -> Connection:
        """The connection to Google's services for this project and region."""
        return Connection(self.project, self.region, self.endpoints, "tpu")


class TpuRequest(Settings):
    """What the train step requests: the settings, and what the hardware means in the TPU API."""

    settings: TpuSettings = Field(description="The section `tpu`.")
    accelerator: dict[str, Untyped] = Field(description="The node's acceleratorType or acceleratorConfig.")
    runtime_version: str = Field(description="The node's runtimeVersion.")
    spot: bool = Field(description="Whether Spot capacity is requested.")
