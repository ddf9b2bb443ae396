"""What runs require of a project: APIs, Google's service agents, and who needs which role on which resource.

Setup, the step setup_access and the doctor read these tables; `docs/vertex-reference.md` shows them. Every role is on
the narrowest resource possible. The roles follow Google's documentation of access control for Vertex AI, Cloud TPU,
Cloud Build and Dataflow (https://cloud.google.com/dataflow/docs/concepts/security-and-permissions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from slipway.components.build_image.refusals import is_legacy
from slipway.components.cloud.policies import DEFAULT_ACCOUNT_DOMAIN, Kind, Resource
from slipway.components.cloud.roles import MACHINE_ROLE
from slipway.components.setup_access.settings import AccessSettings


class ApiRow(NamedTuple):
    """An API, by the first part of its host name, and when it must be enabled."""

    service: str
    reason: str
    when: str = ""


class Agent(NamedTuple):
    """A Google service's agent in the project, with the domain of its e-mail address.

    `later`: no call creates it; the service creates it with its first job and grants its role.
    """

    name: str
    service: str
    domain: str
    reason: str
    when: str
    later: bool = False

    def email(self, number: int) -> str:
        """Return its e-mail address in the project with this number."""
        return f"service-{number}@{self.domain}.iam.gserviceaccount.com"


class Requirement(NamedTuple):
    """A role that a principal needs on a resource, if the run has both and the condition `when` holds."""

    principal: str
    role: str
    place: str
    reason: str
    when: str = ""


COMPUTE = "compute.googleapis.com"
VERTEX, TPU, BUILDS, DATAFLOW = "on Vertex AI", "with `--target tpu`", "with Cloud Build", "with Dataflow"
BIGQUERY, QUERY = "with `bigquery:`", "with a query in BigQuery"
TABLE = "with a table of the project in BigQuery"
VERTEX_AGENT, CODE_AGENT, TPU_AGENT = "Vertex AI's service agent", "Vertex AI's custom code agent", "Cloud TPU's agent"
BUILD_AGENT, DATAFLOW_AGENT = "Cloud Build's agent", "Dataflow's agent"
ACCOUNT, MACHINES, BUILDER = "the run-as account", "the account of the TPU's machines", "the account of builds"
WORKER, OWN_WORKER = "the account of Dataflow's workers", "the account of Dataflow's workers, if it is another one"
SUBMITTER, PERSON = "a submitter", "a submitter who is not a service account"
PROJECT, BUCKET, REPOSITORY, KEY = "the project", "the bucket", "the repository", "the key"
STORES, SOURCES = "other buckets that the run writes to", "other buckets that the run reads"
TOPIC, SECRET = "the topic", "the secret"

APIS = (
    ApiRow("aiplatform", "runs the pipeline and the training jobs", VERTEX),
    ApiRow("artifactregistry", "holds the image", "with a repository"),
    ApiRow("bigquery", "describes tables and runs queries", BIGQUERY),
    ApiRow("bigquerystorage", "reads the rows of tables", BIGQUERY),
    ApiRow("cloudbuild", "builds the image", BUILDS),
    ApiRow("cloudkms", "holds the encryption key", "with a key of the project"),
    ApiRow("cloudresourcemanager", "reads and writes the project's policy"),
    ApiRow("compute", "runs Dataflow's workers", DATAFLOW),
    ApiRow("compute", "its default account runs the builds", "with builds by the default account"),
    ApiRow("dataflow", "prepares the data", DATAFLOW),
    ApiRow("iam", "manages the run-as account and who may act as it"),
    ApiRow("logging", "stores the logs of steps and replicas", VERTEX),
    ApiRow("pubsub", "receives the notifications", "with a topic"),
    ApiRow("secretmanager", "holds the webhook's address", "with a secret"),
    ApiRow("storage", "holds data, checkpoints and models"),
    ApiRow("tpu", "provides the TPUs", "with a TPU"),
)
AGENTS = (
    Agent(VERTEX_AGENT, "aiplatform", "gcp-sa-aiplatform", "Vertex AI acts as it", VERTEX),
    Agent(
        CODE_AGENT,
        "aiplatform",
        "gcp-sa-aiplatform-cc",
        "Vertex AI pulls and starts training images as it",
        VERTEX,
        later=True,
    ),
    Agent(TPU_AGENT, "tpu", "cloud-tpu", "Cloud TPU acts as it", "with a TPU"),
    Agent(BUILD_AGENT, "cloudbuild", "gcp-sa-cloudbuild", "Cloud Build acts as it", BUILDS),
    Agent(DATAFLOW_AGENT, "dataflow", "dataflow-service-producer-prod", "Dataflow acts as it", DATAFLOW),
)

VERTEX_USER, ACT_AS = "roles/aiplatform.user", "roles/iam.serviceAccountUser"
OBJECTS, READ_OBJECTS = "roles/storage.objectUser", "roles/storage.objectViewer"
PULL, PUSH = "roles/artifactregistry.reader", "roles/artifactregistry.writer"
_PULLS = "service agents, not the run-as account, pull the image"
_WRITES = "Dataflow's workers write the prepared data and their temporary files"
REQUIREMENTS = tuple(
    Requirement(*row)
    for row in (
        (VERTEX_AGENT, "roles/aiplatform.serviceAgent", PROJECT, "Vertex AI runs pipelines and jobs"),
        (CODE_AGENT, "roles/aiplatform.customCodeServiceAgent", PROJECT, "Vertex AI starts training replicas"),
        (VERTEX_AGENT, PULL, REPOSITORY, f"{_PULLS} of the steps and of serving"),
        (CODE_AGENT, PULL, REPOSITORY, f"{_PULLS} of training"),
        # https://cloud.google.com/vertex-ai/docs/general/cmek#configure-cmek: Vertex AI's service agent, and no other.
        (
            VERTEX_AGENT,
            "roles/cloudkms.cryptoKeyEncrypterDecrypter",
            KEY,
            "Vertex AI encrypts pipelines, jobs and models with the key",
        ),
        (TPU_AGENT, "roles/tpu.serviceAgent", PROJECT, "Cloud TPU creates the machines"),
        (TPU_AGENT, OBJECTS, BUCKET, "TPUs read data and write profiles themselves", VERTEX),
        (BUILD_AGENT, "roles/cloudbuild.serviceAgent", PROJECT, "Cloud Build starts builds"),
        (ACCOUNT, VERTEX_USER, PROJECT, "the pipeline starts jobs and registers models"),
        (ACCOUNT, OBJECTS, BUCKET, "the steps read data and write checkpoints and models"),
        (ACCOUNT, OBJECTS, STORES, "data.store or Dataflow's temp_location is in this bucket"),
        (ACCOUNT, READ_OBJECTS, SOURCES, "data.source is in this bucket"),
        # https://cloud.google.com/bigquery/docs/reference/storage#permissions
        (
            ACCOUNT,
            "roles/bigquery.readSessionUser",
            PROJECT,
            "prepare_data reads rows, billed to the project",
            BIGQUERY,
        ),
        (ACCOUNT, "roles/bigquery.dataViewer", PROJECT, "prepare_data reads the table of data.source", TABLE),
        (ACCOUNT, "roles/bigquery.jobUser", PROJECT, "prepare_data runs the query of data.source", QUERY),
        (ACCOUNT, PULL, REPOSITORY, "the steps find the image by its digest"),
        # A service account needs actAs on itself to start jobs that run as it.
        (ACCOUNT, ACT_AS, ACCOUNT, "the pipeline's training jobs run as the same account"),
        (MACHINES, f"projects/PROJECT/roles/{MACHINE_ROLE}", PROJECT, "the TPU's machines delete the TPU"),
        (MACHINES, OBJECTS, BUCKET, "the TPU's machines mount the bucket and write to it"),
        (MACHINES, PULL, REPOSITORY, "the TPU's machines pull the image"),
        (ACCOUNT, "roles/logging.viewer", PROJECT, "a notification explains a failure from the logs", "with `notify`"),
        (ACCOUNT, "roles/pubsub.publisher", TOPIC, "the run publishes its notification"),
        (ACCOUNT, "roles/secretmanager.secretAccessor", SECRET, "the run reads the webhook's address"),
        (BUILDER, READ_OBJECTS, BUCKET, "builds read their source from the bucket"),
        (BUILDER, PUSH, REPOSITORY, "builds push the image"),
        (BUILDER, "roles/logging.logWriter", PROJECT, "builds write their log"),
        (DATAFLOW_AGENT, "roles/dataflow.serviceAgent", PROJECT, "Dataflow creates the workers"),
        (ACCOUNT, "roles/dataflow.developer", PROJECT, "prepare_data starts and watches the Dataflow job", DATAFLOW),
        (ACCOUNT, "roles/compute.viewer", PROJECT, "starting a Dataflow job reads the machine types", DATAFLOW),
        (WORKER, "roles/dataflow.worker", PROJECT, "Dataflow's workers receive work"),
        (ACCOUNT, ACT_AS, OWN_WORKER, "Dataflow's workers run as this account"),
        (OWN_WORKER, PULL, REPOSITORY, "Dataflow's workers pull their image"),
        (OWN_WORKER, OBJECTS, BUCKET, _WRITES),
        (OWN_WORKER, OBJECTS, STORES, _WRITES),
        (OWN_WORKER, READ_OBJECTS, SOURCES, "Dataflow's workers read data.source"),
        (SUBMITTER, VERTEX_USER, PROJECT, "submits and watches runs", VERTEX),
        (
            PERSON,
            "roles/serviceusage.serviceUsageConsumer",
            PROJECT,
            "a person's API calls count against the project's quota",
        ),
        (SUBMITTER, "roles/logging.viewer", PROJECT, "reads the replicas' logs", VERTEX),
        (
            SUBMITTER,
            "roles/dataflow.developer",
            PROJECT,
            "cancels the Dataflow job of a step that was killed",
            DATAFLOW,
        ),
        (SUBMITTER, "roles/tpu.admin", PROJECT, "creates and deletes TPUs", TPU),
        (SUBMITTER, OBJECTS, BUCKET, "uploads the image's source, downloads results"),
        (SUBMITTER, ACT_AS, ACCOUNT, "submits runs that run as this account"),
        (SUBMITTER, ACT_AS, MACHINES, "starts machines that run as this account"),
        (SUBMITTER, PULL, REPOSITORY, "checks whether an image exists"),
        (SUBMITTER, "roles/cloudbuild.builds.editor", PROJECT, "starts builds of the image", BUILDS),
        (SUBMITTER, ACT_AS, BUILDER, "starts builds that run as this account"),
    )
)


@dataclass(frozen=True)
class Access:
    """A run's principals, resources and conditions, by the names in the tables.

    Attributes:
        settings: The project, resources and accounts.
        number: The project's number.
        builder: The e-mail of the account that Cloud Build's builds run as, None if unknown.
    """

    settings: AccessSettings
    number: int = 0
    builder: str | None = None

    @property
    def worker(self) -> str | None:
        """The account of Dataflow's workers; None if there is none."""
        return (self.settings.dataflow_worker or self.settings.account) if self.settings.dataflow else None

    def conditions(self) -> dict[str, bool]:
        """Return whether each condition holds."""
        settings = self.settings
        default = bool(self.builder and self.builder.endswith(DEFAULT_ACCOUNT_DOMAIN))
        key = settings.encryption_key or ""
        return {
            "": True,
            VERTEX: settings.vertex_jobs,
            TPU: settings.tpu_machines,
            BUILDS: settings.builds,
            DATAFLOW: settings.dataflow,
            BIGQUERY: settings.bigquery,
            QUERY: settings.bigquery_query,
            TABLE: settings.bigquery_table,
            "with a TPU": settings.tpu,
            "with a repository": bool(settings.repository),
            "with builds by the default account": settings.builds and default and not settings.dataflow,
            "with a key of the project": key.startswith(f"projects/{settings.project}/"),
            "with a topic": bool(settings.topic),
            "with a secret": bool(settings.secret),
            "with `notify`": settings.explains,
        }

    def accounts(self) -> dict[str, list[str]]:
        """Return the e-mail of each account, none for those that the run does not have."""
        settings, worker = self.settings, self.worker
        emails = {
            ACCOUNT: None if settings.tpu_machines else settings.account,
            MACHINES: settings.account if settings.tpu_machines else None,
            BUILDER: self.builder if settings.builds else None,
            WORKER: worker,
            OWN_WORKER: None if worker == settings.account else worker,
        }
        return {name: [email] if email else [] for name, email in emails.items()}

    def members(self) -> dict[str, list[str]]:
        """Return the policy members of each principal."""
        holds, submitters = self.conditions(), list(self.settings.submitters)
        accounts = {agent.name: [agent.email(self.number)] if holds[agent.when] else [] for agent in AGENTS}
        accounts |= self.accounts()
        return {
            **{name: [f"serviceAccount:{email}" for email in emails] for name, emails in accounts.items()},
            SUBMITTER: submitters,
            PERSON: [member for member in submitters if not member.startswith("serviceAccount:")],
        }

    def resources(self) -> dict[str, list[Resource]]:
        """Return the resources by place. Anyone who may start builds may use the legacy account of builds."""
        settings = self.settings

        def named(kind: Kind, names: Iterable[str | None]) -> list[Resource]:
            return [Resource(kind, name) for name in names if name]

        accounts = self.accounts()
        accounts[BUILDER] = [email for email in accounts[BUILDER] if not is_legacy(email)]
        return {
            PROJECT: named("project", [settings.project]),
            BUCKET: named("bucket", [settings.bucket]),
            STORES: named("bucket", settings.stores),
            SOURCES: named("bucket", settings.sources),
            REPOSITORY: named("repository", [settings.repository]),
            KEY: named("key", [settings.encryption_key]),
            TOPIC: named("topic", [settings.topic]),
            SECRET: named("secret", [settings.secret]),
            **{name: named("account", emails) for name, emails in accounts.items()},
        }


def roles_for(principal: str, place: str, when: str = "") -> list[str]:
    """Return the roles that a principal needs on a resource under a condition."""
    return [row.role for row in REQUIREMENTS if (row.principal, row.place, row.when) == (principal, place, when)]
