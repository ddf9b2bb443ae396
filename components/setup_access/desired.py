"""Desired state: the APIs, service agents, accounts, bucket, repository and role bindings that a run needs.

Each binding is on the narrowest resource possible: bucket, repository or account rather than project. The roles follow
Google's documentation of access control for Vertex AI, Cloud TPU and Cloud Build.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipway.components.build_image.refusals import is_legacy
from slipway.components.cloud.policies import DEFAULT_ACCOUNT_DOMAIN, Resource
from slipway.components.setup_access.settings import AccessSettings

DOMAIN = "iam.gserviceaccount.com"
COMPUTE = "compute.googleapis.com"
DATAFLOW = "dataflow-service-producer-prod"
# What the machines of a TPU may do with it. Queued resources have no permissions of their own: those of nodes are asked
# (https://docs.cloud.google.com/iam/docs/roles-permissions/tpu).
MACHINE_PERMISSIONS = ("tpu.nodes.delete", "tpu.nodes.get")


@dataclass(frozen=True)
class Api:
    """An API to enable in the project, by its host name."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Identity:
    """The service agent of a Google service in the project.

    `later`: no call creates it; the service creates it with its first job and grants its role.
    """

    service: str
    email: str
    reason: str
    later: bool = False

    def __str__(self) -> str:
        return self.email


@dataclass(frozen=True)
class Bucket:
    """A single-region bucket of the project with uniform bucket-level access."""

    name: str
    region: str
    reason: str

    def __str__(self) -> str:
        return f"gs://{self.name}"


@dataclass(frozen=True)
class Repository:
    """A Docker repository in Artifact Registry, by its full name."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Key:
    """A key of Cloud KMS, by its full name, which setup does not create: keys cannot be deleted."""

    name: str
    region: str
    reason: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Topic:
    """A Pub/Sub topic, by its full name."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Secret:
    """A secret in Secret Manager, by its full name. Only its owner can create it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Account:
    """A user-managed service account."""

    email: str
    reason: str

    def __str__(self) -> str:
        return self.email


@dataclass(frozen=True)
class Role:
    """A custom role of the project, by its full name."""

    name: str
    permissions: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Binding:
    """An unconditional role binding. `later`: the member is an Identity with `later`."""

    resource: Resource
    role: str
    member: str
    reason: str
    later: bool = False

    def __str__(self) -> str:
        return f"{self.role} on {self.resource} for {self.member.partition(':')[2]}"


Item = Api | Identity | Bucket | Repository | Key | Topic | Secret | Account | Role | Binding


def machine_role(project: str) -> str:
    """Return the full name of the custom role of a TPU's machines."""
    return f"projects/{project}/roles/slipwayTpuMachine"


def apis(settings: AccessSettings, builder: str | None = None) -> list[Api]:
    """Return the APIs that must be enabled; `builder` is the account that builds run as, None if unknown."""
    listed = [
        Api("cloudresourcemanager.googleapis.com", "reads and writes the project's policy"),
        Api("iam.googleapis.com", "manages the run-as account and who may act as it"),
        Api("storage.googleapis.com", "holds data, checkpoints and models"),
    ]
    if settings.target == "vertex":
        listed.append(Api("aiplatform.googleapis.com", "runs the pipeline and the training jobs"))
        listed.append(Api("logging.googleapis.com", "stores the logs of steps and replicas"))
    if settings.repository:
        listed.append(Api("artifactregistry.googleapis.com", "holds the image"))
    if settings.builds:
        listed.append(Api("cloudbuild.googleapis.com", "builds the image"))
    if settings.tpu:
        listed.append(Api("tpu.googleapis.com", "provides the TPUs"))
    if settings.dataflow:
        listed.append(Api("dataflow.googleapis.com", "prepares the data"))
        listed.append(Api(COMPUTE, "runs Dataflow's workers"))
    elif settings.builds and builder and builder.endswith(DEFAULT_ACCOUNT_DOMAIN):
        listed.append(Api(COMPUTE, "its default account runs the builds"))
    if settings.encryption_key and settings.encryption_key.split("/")[1] == settings.project:
        listed.append(Api("cloudkms.googleapis.com", "holds the encryption key"))
    if settings.topic:
        listed.append(Api("pubsub.googleapis.com", "receives the notifications"))
    if settings.secret:
        listed.append(Api("secretmanager.googleapis.com", "holds the webhook's address"))
    return sorted(listed, key=lambda api: api.name)


def desired(settings: AccessSettings, number: int, builder: str | None) -> list[Item]:
    """Return everything that a run needs, in the order in which it can be created.

    Args:
        settings: The project, resources and accounts.
        number: The project's number.
        builder: The e-mail of the account that Cloud Build's builds run as, None if unknown.
    """
    items: list[Item] = [*apis(settings, builder), *identities(settings, number)]
    if settings.account:
        what = "the TPU's machines run" if settings.target == "tpu" else "the steps and the training run"
        items.append(Account(settings.account, f"{what} as this account"))
    if settings.target == "tpu":
        why = "the TPU's machines delete the TPU, and may do nothing else with TPUs"
        items.append(Role(machine_role(settings.project), MACHINE_PERMISSIONS, why))
    if settings.builds and builder and builder != settings.account and not is_legacy(builder):
        items.append(Account(builder, "Cloud Build's builds run as this account"))
    worker = worker_of(settings)
    if worker and worker not in (settings.account, builder):
        items.append(Account(worker, "Dataflow's workers run as this account"))
    items.append(Bucket(settings.bucket, settings.region, "holds data, checkpoints and models"))
    if settings.repository:
        items.append(Repository(settings.repository, "holds the image"))
    if settings.encryption_key:
        items.append(Key(settings.encryption_key, settings.region, "encrypts the pipeline, the jobs and the model"))
    if settings.topic:
        items.append(Topic(settings.topic, "receives the notifications"))
    if settings.secret:
        items.append(Secret(settings.secret, "holds the webhook's address"))
    return [*items, *bindings(settings, number, builder)]


def identities(settings: AccessSettings, number: int) -> list[Identity]:
    """Return the service agents of the project."""
    listed = []
    if settings.target == "vertex":
        service, why = "aiplatform.googleapis.com", "Vertex AI pulls and starts training images as it"
        listed.append(Identity(service, _agent(number, "gcp-sa-aiplatform"), "Vertex AI acts as it"))
        listed.append(Identity(service, _agent(number, "gcp-sa-aiplatform-cc"), why, later=True))
    if settings.tpu:
        listed.append(Identity("tpu.googleapis.com", _agent(number, "cloud-tpu"), "Cloud TPU acts as it"))
    if settings.builds:
        listed.append(
            Identity("cloudbuild.googleapis.com", _agent(number, "gcp-sa-cloudbuild"), "Cloud Build acts as it")
        )
    if settings.dataflow:
        listed.append(Identity("dataflow.googleapis.com", _agent(number, DATAFLOW), "Dataflow acts as it"))
    return listed


def bindings(settings: AccessSettings, number: int, builder: str | None) -> list[Binding]:
    """Return the role bindings that a run needs."""
    return [
        *(_vertex_agents(settings, number) if settings.target == "vertex" else ()),
        *_agents(settings, number),
        *(_account(settings) if settings.target == "vertex" else _machines(settings)),
        *_notifications(settings),
        *_builder(settings, builder),
        *_dataflow(settings, number),
        *(binding for member in settings.submitters for binding in _submitter(settings, member, builder)),
    ]


def worker_of(settings: AccessSettings) -> str | None:
    """Return the account of Dataflow's workers; None if there is none."""
    return (settings.dataflow_worker or settings.account) if settings.dataflow else None


def _vertex_agents(settings: AccessSettings, number: int) -> Iterator[Binding]:
    project = Resource("project", settings.project)
    vertex, custom_code = (
        f"serviceAccount:{_agent(number, name)}" for name in ("gcp-sa-aiplatform", "gcp-sa-aiplatform-cc")
    )
    yield Binding(project, "roles/aiplatform.serviceAgent", vertex, "Vertex AI runs pipelines and jobs")
    yield Binding(
        project,
        "roles/aiplatform.customCodeServiceAgent",
        custom_code,
        "Vertex AI starts training replicas",
        later=True,
    )
    if settings.repository:
        repository = Resource("repository", settings.repository)
        reader = "roles/artifactregistry.reader"
        why = "service agents, not the run-as account, pull the image"
        yield Binding(repository, reader, vertex, f"{why} of the steps and of serving")
        yield Binding(repository, reader, custom_code, f"{why} of training", later=True)
    if settings.encryption_key:
        # https://cloud.google.com/vertex-ai/docs/general/cmek#configure-cmek: Vertex AI's service agent, and no other.
        key = Resource("key", settings.encryption_key)
        why = "Vertex AI encrypts pipelines, jobs and models with the key"
        yield Binding(key, "roles/cloudkms.cryptoKeyEncrypterDecrypter", vertex, why)


def _agents(settings: AccessSettings, number: int) -> Iterator[Binding]:
    project = Resource("project", settings.project)
    if settings.tpu:
        tpu = f"serviceAccount:{_agent(number, 'cloud-tpu')}"
        yield Binding(project, "roles/tpu.serviceAgent", tpu, "Cloud TPU creates the machines")
        if settings.target == "vertex":
            bucket = Resource("bucket", settings.bucket)
            yield Binding(bucket, "roles/storage.objectUser", tpu, "TPUs read data and write profiles themselves")
    if settings.builds:
        build = f"serviceAccount:{_agent(number, 'gcp-sa-cloudbuild')}"
        yield Binding(project, "roles/cloudbuild.serviceAgent", build, "Cloud Build starts builds")


def _machines(settings: AccessSettings) -> Iterator[Binding]:
    member = f"serviceAccount:{settings.account}"
    project, bucket = Resource("project", settings.project), Resource("bucket", settings.bucket)
    yield Binding(project, machine_role(settings.project), member, "the TPU's machines delete the TPU")
    yield Binding(bucket, "roles/storage.objectUser", member, "the TPU's machines mount the bucket and write to it")
    if settings.repository:
        repository = Resource("repository", settings.repository)
        yield Binding(repository, "roles/artifactregistry.reader", member, "the TPU's machines pull the image")


def _account(settings: AccessSettings) -> Iterator[Binding]:
    if not settings.account:
        return
    member = f"serviceAccount:{settings.account}"
    project, bucket = Resource("project", settings.project), Resource("bucket", settings.bucket)
    yield Binding(project, "roles/aiplatform.user", member, "the pipeline starts jobs and registers models")
    yield Binding(bucket, "roles/storage.objectUser", member, "the steps read data and write checkpoints and models")
    for name in settings.stores:
        yield Binding(
            Resource("bucket", name),
            "roles/storage.objectUser",
            member,
            "data.store or Dataflow's temp_location is in this bucket",
        )
    for name in settings.sources:
        yield Binding(Resource("bucket", name), "roles/storage.objectViewer", member, "data.source is in this bucket")
    if settings.repository:
        repository = Resource("repository", settings.repository)
        yield Binding(repository, "roles/artifactregistry.reader", member, "the steps find the image by its digest")
    # A service account needs actAs on itself to start jobs that run as it.
    own = Resource("account", settings.account)
    yield Binding(own, "roles/iam.serviceAccountUser", member, "the pipeline's training jobs run as the same account")


def _notifications(settings: AccessSettings) -> Iterator[Binding]:
    if not settings.account:
        return
    member = f"serviceAccount:{settings.account}"
    if settings.explains:
        project = Resource("project", settings.project)
        yield Binding(project, "roles/logging.viewer", member, "a notification explains a failure from the logs")
    if settings.topic:
        topic = Resource("topic", settings.topic)
        yield Binding(topic, "roles/pubsub.publisher", member, "the run publishes its notification")
    if settings.secret:
        secret = Resource("secret", settings.secret)
        yield Binding(secret, "roles/secretmanager.secretAccessor", member, "the run reads the webhook's address")


def _builder(settings: AccessSettings, builder: str | None) -> Iterator[Binding]:
    if not settings.builds or not builder:
        return
    member = f"serviceAccount:{builder}"
    bucket = Resource("bucket", settings.bucket)
    yield Binding(bucket, "roles/storage.objectViewer", member, "builds read their source from the bucket")
    yield Binding(Resource("project", settings.project), "roles/logging.logWriter", member, "builds write their log")
    if settings.repository:
        repository = Resource("repository", settings.repository)
        yield Binding(repository, "roles/artifactregistry.writer", member, "builds push the image")


def _dataflow(settings: AccessSettings, number: int) -> Iterator[Binding]:
    """Yield what Dataflow needs. https://cloud.google.com/dataflow/docs/concepts/security-and-permissions"""
    if not settings.dataflow:
        return
    project = Resource("project", settings.project)
    agent = f"serviceAccount:{_agent(number, DATAFLOW)}"
    yield Binding(project, "roles/dataflow.serviceAgent", agent, "Dataflow creates the workers")
    worker, account = worker_of(settings), f"serviceAccount:{settings.account}"
    if settings.account:
        yield Binding(project, "roles/dataflow.developer", account, "prepare_data starts and watches the Dataflow job")
        yield Binding(project, "roles/compute.viewer", account, "starting a Dataflow job reads the machine types")
    if not worker:
        return
    member = f"serviceAccount:{worker}"
    yield Binding(project, "roles/dataflow.worker", member, "Dataflow's workers receive work")
    if worker != settings.account:
        if settings.account:
            own = Resource("account", worker)
            yield Binding(own, "roles/iam.serviceAccountUser", account, "Dataflow's workers run as this account")
        for name in (settings.bucket, *settings.stores):
            why = "Dataflow's workers write the prepared data and their temporary files"
            yield Binding(Resource("bucket", name), "roles/storage.objectUser", member, why)
        for name in settings.sources:
            why = "Dataflow's workers read data.source"
            yield Binding(Resource("bucket", name), "roles/storage.objectViewer", member, why)


def _submitter(settings: AccessSettings, member: str, builder: str | None) -> Iterator[Binding]:
    project, bucket = Resource("project", settings.project), Resource("bucket", settings.bucket)
    yield Binding(project, "roles/aiplatform.user", member, "submits and watches runs")
    if not member.startswith("serviceAccount:"):
        consumer = "roles/serviceusage.serviceUsageConsumer"
        yield Binding(project, consumer, member, "a person's API calls count against the project's quota")
    yield Binding(project, "roles/logging.viewer", member, "reads the replicas' logs")
    yield Binding(bucket, "roles/storage.objectUser", member, "uploads the image's source, downloads results")
    if settings.account:
        own = Resource("account", settings.account)
        yield Binding(own, "roles/iam.serviceAccountUser", member, "submits runs that run as this account")
    if settings.repository:
        repository = Resource("repository", settings.repository)
        yield Binding(repository, "roles/artifactregistry.reader", member, "checks whether an image exists")
    if settings.builds:
        yield Binding(project, "roles/cloudbuild.builds.editor", member, "starts builds of the image")
    if settings.builds and builder and not is_legacy(builder):
        own = Resource("account", builder)
        yield Binding(own, "roles/iam.serviceAccountUser", member, "starts builds that run as this account")


def _agent(number: int, name: str) -> str:
    return f"service-{number}@{name}.{DOMAIN}"
