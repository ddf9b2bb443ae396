"""Settings for runs that train on Cloud TPU VMs."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from slipway.components.build_image.settings import BuildSettings
from slipway.components.cloud.settings import AccountEmail, BucketUri, CloudSettings, PinnedImage
from slipway.components.train.backends import Backend
from slipway.trainer.settings import Untyped


class TpuSettings(CloudSettings):
    """Settings for runs that train on Cloud TPU VMs; all other steps run on this machine."""

    section: ClassVar[str] = "tpu"
    zones: tuple[Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+\d+-[a-z]$")], ...] = Field(
        min_length=1,
        description="Zones to request the TPU in, such as [us-west4-a]; the next one if one has no capacity or the "
        "request expires there.",
    )
    bucket: BucketUri = Field(
        description="Bucket for the data set, the checkpoints and the model, gs://NAME, in the region of the zones.",
    )
    image: PinnedImage | None = Field(
        default=None,
        description="Container image of the trainer, by digest or by an immutable tag; null: it is built according to "
        "`build`.",
    )
    build: BuildSettings = Field(default=BuildSettings(), description="How the image is built; not with `image`.")
    service_account: AccountEmail = Field(
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


class TpuRequest(Backend):
    """What the train step requests: the settings, and what the hardware means in the TPU API."""

    name: ClassVar[str] = "tpu"
    settings: TpuSettings = Field(description="The section `tpu`.")
    accelerator: dict[str, Untyped] = Field(description="The node's acceleratorType or acceleratorConfig.")
    runtime_version: str = Field(description="The node's runtimeVersion.")
    spot: bool = Field(description="Whether Spot capacity is requested.")
