"""Settings for runs on Vertex AI."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from slipway.components.build_image.settings import BuildSettings
from slipway.components.cloud.connection import SERVICES
from slipway.components.cloud.settings import AccountEmail, BucketUri, CloudSettings, PinnedImage
from slipway.pipelines.config.resources import VertexStepResources, check_vertex_steps


class VertexSettings(CloudSettings):
    """Settings for runs on Vertex AI."""

    section: ClassVar[str] = "vertex"

    region: str = Field(
        pattern=r"^[a-z]+-[a-z]+\d+$", description="Region of the run and its training job, such as us-central1."
    )
    bucket: BucketUri = Field(
        description="Bucket for artifacts and prepared data, gs://NAME; a single-region bucket in `region`.",
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
    submitters: list[Annotated[str, Field(pattern=r"^(user|group|serviceAccount):[^@\s]+@[^@\s]+$")]] = Field(
        default_factory=list,
        description="Principals that may start runs (user:, group: or serviceAccount:); `slipway setup` grants them "
        "the roles.",
    )
    access: Literal["verify", "grant"] = Field(
        default="verify",
        description="Whether the step setup_access only verifies resources and roles, or creates and grants what is "
        "missing.",
    )
    network: str | None = Field(
        default=None,
        pattern=r"^projects/\d+/global/networks/[a-z]([-a-z0-9]*[a-z0-9])?$",
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
        pattern=r"^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$",
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
