"""Settings for runs on Vertex AI."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from slipway.components.build_image.settings import BuildSettings
from slipway.components.cloud.connection import SERVICES
from slipway.components.cloud.rules import KEY, NETWORK, SUBMITTER
from slipway.components.cloud.settings import AccountEmail, BucketUri, CloudSettings, PinnedImage
from slipway.core.errors import UserError
from slipway.pipelines.config.resources import VertexStepResources, check_vertex_steps
from slipway.trainer.settings import Settings

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig

REGION = r"^[a-z]+-[a-z]+\d+$"


class RegionSettings(Settings):
    """What another region has of its own."""

    bucket: BucketUri = Field(description="Bucket of runs there, gs://NAME; a single-region bucket in that region.")
    image: PinnedImage | None = Field(default=None, description="Replaces `vertex.image` there; null: the same image.")
    serving_image: PinnedImage | None = Field(
        default=None, description="Replaces `vertex.serving_image` there; null: the same image."
    )
    encryption_key: str | None = Field(
        default=None, pattern=KEY, description="Cloud KMS key there; required with `vertex.encryption_key`."
    )
    endpoints: dict[str, str] = Field(
        default_factory=dict, description="Addresses that differ there from those in `vertex.endpoints`."
    )


class VertexSettings(CloudSettings):
    """Settings for runs on Vertex AI."""

    section: ClassVar[str] = "vertex"

    region: str = Field(pattern=REGION, description="Region of the run and its training job, such as us-central1.")
    bucket: BucketUri = Field(
        description="Bucket for artifacts and prepared data, gs://NAME; a single-region bucket in `region`.",
    )
    regions: dict[str, RegionSettings] = Field(
        default_factory=dict,
        description="Other regions in which a run continues when there is no quota or capacity for it, in this order, "
        "each with its bucket: {us-central1: {bucket: gs://NAME}}. A run never uses a region that is not listed.",
    )
    order: Literal["listed", "cheapest"] = Field(
        default="listed",
        description="The order in which `hardware` and `regions` are tried: listed tries the first hardware in all "
        "regions, then the next one; cheapest goes by list prices.",
    )
    image: PinnedImage | None = Field(
        default=None,
        description="Container image of the steps and the trainer, by digest or by an immutable tag; null: images are "
        "built according to `build`.",
    )
    serving_image: PinnedImage | None = Field(
        default=None,
        description="Container image that serves the registered model, by digest or by an immutable tag; null: "
        "Slipway's own is built according to `build`.",
    )
    build: BuildSettings = Field(default=BuildSettings(), description="How images are built; not with `image`.")
    service_account: AccountEmail | None = Field(
        default=None,
        description="E-mail address of the account that the run uses; null: the project's default account. You need "
        "iam.serviceAccounts.actAs on it.",
    )
    submitters: list[Annotated[str, Field(pattern=SUBMITTER)]] = Field(
        default_factory=list,
        description="Principals that may start runs (user:, group:, serviceAccount:, or principal:// and "
        "principalSet:// of workload identity federation); `slipway setup` grants them the roles.",
    )
    access: Literal["verify", "grant"] = Field(
        default="verify",
        description="Whether the step setup_access only verifies resources and roles, or creates and grants what is "
        "missing.",
    )
    network: str | None = Field(
        default=None,
        pattern=NETWORK,
        description="VPC network to peer the jobs with, projects/NUMBER/global/networks/NAME; null: none.",
    )
    experiment: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9-]{0,127}$",
        description="Vertex AI experiment that lists the run, created if missing; null: none. Scheduled runs are not "
        "listed.",
    )
    failure_policy: Literal["fast", "slow"] = Field(
        default="fast",
        description="After a step has failed, fast starts no other step; slow finishes the steps that do not depend "
        "on it.",
    )
    steps: dict[str, VertexStepResources] = Field(
        default_factory=dict,
        description="CPUs, memory and disk by the step's name, such as prepare_data: {memory: 64G}.",
    )
    retries: int = Field(default=1, ge=0, le=10, description="Number of retries for every step except train.")
    encryption_key: str | None = Field(
        default=None,
        pattern=KEY,
        description="Full name of the Cloud KMS key that encrypts the pipeline, the training job and the "
        "model; null: Google's key.",
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of the pipeline, the training job and the model: up to 63 lower-case letters, digits, "
        "dashes and underscores.",
    )
    endpoints: dict[str, str] = Field(
        default_factory=dict,
        description="Address (host[:port]) by service name, for services that are not reached at Google's public "
        f"addresses (private access): {', '.join(SERVICES)}.",
    )

    @field_validator("steps")
    @classmethod
    def _possible_steps(cls, steps: dict[str, VertexStepResources]) -> dict[str, VertexStepResources]:
        check_vertex_steps(steps)
        return steps

    @model_validator(mode="after")
    def _other_regions(self) -> VertexSettings:
        for name in self.regions:
            if not re.search(REGION, name):
                raise ValueError(f"regions has {name!r}, which is not the name of a region such as us-central1")
        if self.region in self.regions:
            raise ValueError(f"regions has the other regions, without region, which is {self.region}")
        missing = [
            name for name, regional in self.regions.items() if self.encryption_key and not regional.encryption_key
        ]
        if missing:
            raise ValueError(
                f"regions.{missing[0]} needs an encryption_key: that of {self.region} cannot be used there"
            )
        return self

    def in_region(self, region: str) -> VertexSettings:
        """Return the settings of a run in `region`, which is one of its regions."""
        if region == self.region:
            return self
        regional = self.regions[region]
        values = {name: value for name, value in regional if value is not None}
        return self.model_copy(
            update={**values, "region": region, "endpoints": {**self.endpoints, **regional.endpoints}}
        )


def vertex_of(config: RunConfig) -> VertexSettings:
    """Return the section `vertex` of a configuration.

    Raises:
        UserError: The configuration has none.
    """
    if (settings := config.section(VertexSettings)) is not None:
        return settings
    from slipway.pipelines.config.config import no_section

    fix = "--set vertex.project=PROJECT --set vertex.region=us-central1 --set vertex.bucket=gs://BUCKET"
    raise no_section("vertex", "project, region and bucket", fix)


def check_configuration(config: RunConfig) -> None:
    """Raise UserError if an experiment has the name of the configuration, which is that of its pipelines."""
    if vertex_of(config).experiment == config.name:
        raise UserError(
            "Vertex AI uses the run's name for the pipeline, so it cannot be the name of an experiment.",
            setting="vertex.experiment",
            value=config.name,
            fix=f"--set vertex.experiment={config.name}-runs",
        )
