"""Desired state: the APIs, service agents, accounts, bucket, repository and role bindings that a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from slipway.components.build_image.refusals import is_legacy
from slipway.components.cloud.policies import Kind, Resource
from slipway.components.cloud.roles import MACHINE_ROLE
from slipway.components.setup_access.requirements import AGENTS, APIS, CODE_AGENT, REQUIREMENTS, Access
from slipway.components.setup_access.settings import AccessSettings

# What the machines of a TPU may do with it. Queued resources have no permissions of their own: those of nodes are asked
# (https://docs.cloud.google.com/iam/docs/roles-permissions/tpu).
MACHINE_PERMISSIONS = ("tpu.nodes.delete", "tpu.nodes.get")


@dataclass(frozen=True)
class Named:
    """Something that must exist, by its full name or e-mail address, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return self.name

    @property
    def resource(self) -> Resource:
        """The item as a resource."""
        return Resource(cast("Kind", type(self).__name__.lower()), self.name)


@dataclass(frozen=True)
class Api(Named):
    """An API to enable in the project, by its host name."""


@dataclass(frozen=True)
class Identity(Named):
    """The agent of a Google service in the project; `later`: the service creates it with its first job."""

    service: str
    later: bool = False


@dataclass(frozen=True)
class Bucket(Named):
    """A single-region bucket of the project with uniform bucket-level access."""

    region: str

    def __str__(self) -> str:
        return f"gs://{self.name}"


@dataclass(frozen=True)
class Repository(Named):
    """A Docker repository in Artifact Registry."""


@dataclass(frozen=True)
class Key(Named):
    """A key of Cloud KMS, which setup does not create: keys cannot be deleted."""

    region: str


@dataclass(frozen=True)
class Topic(Named):
    """A Pub/Sub topic."""


@dataclass(frozen=True)
class Secret(Named):
    """A secret in Secret Manager. Only its owner can create it."""


@dataclass(frozen=True)
class Account(Named):
    """A user-managed service account."""


@dataclass(frozen=True)
class Role(Named):
    """A custom role of the project."""

    permissions: tuple[str, ...]


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


Item = Named | Binding


def machine_role(project: str) -> str:
    """Return the full name of the custom role of a TPU's machines."""
    return f"projects/{project}/roles/{MACHINE_ROLE}"


def apis(settings: AccessSettings, builder: str | None = None) -> list[Api]:
    """Return the APIs that must be enabled; `builder` is the account that builds run as, None if unknown."""
    holds = Access(settings, builder=builder).conditions()
    return [Api(f"{row.service}.googleapis.com", row.reason) for row in APIS if holds[row.when]]


def desired(settings: AccessSettings, number: int, builder: str | None) -> list[Item]:
    """Return everything that a run needs, in the order in which it can be created; see `Access` for the arguments."""
    access = Access(settings, number, builder)
    items: list[Item] = [*apis(settings, builder), *identities(access)]
    if settings.account:
        what = "the TPU's machines run" if settings.target == "tpu" else "the steps and the training run"
        items.append(Account(settings.account, f"{what} as this account"))
    if settings.target == "tpu":
        why = "the TPU's machines delete the TPU, and may do nothing else with TPUs"
        items.append(Role(machine_role(settings.project), why, MACHINE_PERMISSIONS))
    if settings.builds and builder and builder != settings.account and not is_legacy(builder):
        items.append(Account(builder, "Cloud Build's builds run as this account"))
    if access.worker and access.worker not in (settings.account, builder):
        items.append(Account(access.worker, "Dataflow's workers run as this account"))
    items.append(Bucket(settings.bucket, "holds data, checkpoints and models", settings.region))
    if settings.repository:
        items.append(Repository(settings.repository, "holds the image"))
    if settings.encryption_key:
        items.append(Key(settings.encryption_key, "encrypts the pipeline, the jobs and the model", settings.region))
    if settings.topic:
        items.append(Topic(settings.topic, "receives the notifications"))
    if settings.secret:
        items.append(Secret(settings.secret, "holds the webhook's address"))
    return [*items, *bindings(settings, number, builder)]


def identities(access: Access) -> list[Identity]:
    """Return the service agents of the project."""
    holds = access.conditions()
    return [
        Identity(agent.email(access.number), agent.reason, f"{agent.service}.googleapis.com", agent.later)
        for agent in AGENTS
        if holds[agent.when]
    ]


def bindings(settings: AccessSettings, number: int, builder: str | None, principal: str | None = None) -> list[Binding]:
    """Return the role bindings that a run needs, or those of one principal."""
    access = Access(settings, number, builder)
    holds, members, resources = access.conditions(), access.members(), access.resources()
    return [
        Binding(
            resource,
            row.role.replace("PROJECT", settings.project),
            member,
            row.reason,
            later=row.principal == CODE_AGENT,
        )
        for row in REQUIREMENTS
        if holds[row.when] and principal in (None, row.principal)
        for member in members[row.principal]
        for resource in resources[row.place]
    ]
