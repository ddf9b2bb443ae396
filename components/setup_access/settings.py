"""Settings of setup_access: the resources and accounts of a run."""

from __future__ import annotations

from pydantic import Field

from slipway.components.cloud.connection import Connection
from slipway.trainer.settings import Settings


class AccessSettings(Settings):
    """The project, resources and accounts that runs use."""

    section: str = Field(description="The section of the configuration with these settings, for fixes.")
    project: str = Field(description="Project id.")
    region: str = Field(description="Region of the runs.")
    bucket: str = Field(description="Name of the bucket for artifacts, without gs://.")
    stores: tuple[str, ...] = Field(default=(), description="Names of other buckets that runs write to.")
    sources: tuple[str, ...] = Field(default=(), description="Names of other buckets that runs read from.")
    repository: str | None = Field(
        default=None, description="Full name of an Artifact Registry repository; None if the image is elsewhere."
    )
    account: str | None = Field(default=None, description="E-mail address of the run-as account; None: the default.")
    submitters: tuple[str, ...] = Field(
        default=(),
        description="Policy members that start runs: user:, group:, serviceAccount:, principal:// or principalSet://.",
    )
    tpu: bool = Field(default=False, description="Whether the hardware is a TPU.")
    vertex_jobs: bool = Field(
        default=False, description="Whether Vertex AI runs the pipeline and the training jobs, as the account."
    )
    tpu_machines: bool = Field(
        default=False,
        description="Whether submitters create TPUs whose machines run as the account and delete the TPU.",
    )
    builds: bool = Field(default=True, description="Whether Cloud Build builds images.")
    builder: str | None = Field(
        default=None, description="E-mail address of the account of builds; None: the project's default."
    )
    build_region: str | None = Field(default=None, description="Region of the builds, or global; None: `region`.")
    dataflow: bool = Field(default=False, description="Whether prepare_data starts Dataflow jobs.")
    dataflow_worker: str | None = Field(
        default=None, description="E-mail address of the account of Dataflow's workers; None: `account`."
    )
    bigquery: bool = Field(default=False, description="Whether prepare_data reads BigQuery, billed to the project.")
    bigquery_query: bool = Field(default=False, description="Whether prepare_data runs a query in the project.")
    bigquery_table: bool = Field(default=False, description="Whether the table that it reads is in the project.")
    encryption_key: str | None = Field(default=None, description="Full name of the Cloud KMS key of runs and models.")
    topic: str | None = Field(default=None, description="Full name of the Pub/Sub topic that runs publish to.")
    secret: str | None = Field(default=None, description="Full name of the secret with the webhook that runs call.")
    explains: bool = Field(default=False, description="Whether runs read their own logs, to notify of a failure.")
    endpoints: dict[str, str] = Field(default_factory=dict, description="Custom endpoints: host[:port] by service.")

    @property
    def connection(self) -> Connection:
        """The connection to Google Cloud for this project and region."""
        return Connection(self.project, self.region, self.endpoints, self.section)
