"""Desired state: the APIs, service agents, accounts, bucket, repository and role bindings that a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from slipway.components.build_image.refusals import is_legacy
from slipway.components.cloud.policies import Kind, Resource
from slipway.components.cloud.roles import MACHINE_ROLE
from slipway.components.setup_access.requirements import AGENTS, APIS, CODE_AGENT, REQUIREMENTS, Access
from slipway.components.setup_access.settings import AccessSettings

# What the machines of a TPU may do with it. Queued resources have no permissions of their own: those of nodes are asked
# (https://docs.cloud.google.com/iam/docs/roles-permissions/tpu).
MACHINE_PERMISSIONS = ("tpu.nodes.delete", "tpu.nodes.get")
# How long sources of builds and Dataflow's files stay in the bucket. A source that is missing is uploaded again.
TEMPORARY_DAYS = 30


@dataclass(frozen=True)
class Named:
    """Something that must exist, and why.

    Attributes:
        kind: An API, an identity (a Google service's agent), a custom role, or the kind of a resource.
        name: Its host name, e-mail address, bucket name, or else its full name.
        reason: Why the run needs it.
        region: The region of a bucket or key.
        service: The service of an identity.
        permissions: Those of a custom role.
        prefixes: Those of the objects that a bucket's lifecycle rule deletes.
        later: For an identity, whether no call creates it: the service creates it with its first job.
    """

    kind: Literal["api", "identity", "account", "role", "bucket", "lifecycle", "repository", "key", "topic", "secret"]
    name: str
    reason: str
    region: str = ""
    service: str = ""
    permissions: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    later: bool = False

    def __str__(self) -> str:
        if self.kind == "lifecycle":
            return f"gs://{self.name}: {' and '.join(self.prefixes)} for {TEMPORARY_DAYS} days"
        return f"gs://{self.name}" if self.kind == "bucket" else self.name

    @property
    def resource(self) -> Resource:
        """The item as a resource; of a lifecycle rule, its bucket."""
        return Resource("bucket" if self.kind == "lifecycle" else cast("Kind", self.kind), self.name)


@dataclass(frozen=True)
class Binding:
    """An unconditional role binding. `later`: the member is an identity with `later`."""

    resource: Resource
    role: str
    member: str
    reason: str
    later: bool = False
    kind: ClassVar[str] = "binding"

    def __str__(self) -> str:
        name = self.member if "://" in self.member else self.member.partition(":")[2]
        return f"{self.role} on {self.resource} for {name}"


Item = Named | Binding


def machine_role(project: str) -> str:
    """Return the full name of the custom role of a TPU's machines."""
    return f"projects/{project}/roles/{MACHINE_ROLE}"


def apis(settings: AccessSettings, builder: str | None = None) -> list[Named]:
    """Return the APIs that must be enabled; `builder` is the account that builds run as, None if unknown."""
    holds = Access(settings, builder=builder).conditions()
    return [Named("api", f"{row.service}.googleapis.com", row.reason) for row in APIS if holds[row.when]]


def desired(settings: AccessSettings, number: int, builder: str | None) -> list[Item]:
    """Return everything that a run needs, in the order in which it can be created; see `Access` for the arguments."""
    access = Access(settings, number, builder)
    items: list[Item] = [*apis(settings, builder), *identities(access)]
    if settings.account:
        purpose = "the TPU's machines run" if settings.tpu_machines else "the steps and the training run"
        items.append(Named("account", settings.account, f"{purpose} as this account"))
    if settings.tpu_machines:
        why = "the TPU's machines delete the TPU, and may do nothing else with TPUs"
        items.append(Named("role", machine_role(settings.project), why, permissions=MACHINE_PERMISSIONS))
    if settings.builds and builder and builder != settings.account and not is_legacy(builder):
        items.append(Named("account", builder, "Cloud Build's builds run as this account"))
    if access.worker and access.worker not in (settings.account, builder):
        items.append(Named("account", access.worker, "Dataflow's workers run as this account"))
    items.append(Named("bucket", settings.bucket, "holds data, checkpoints and models", settings.region))
    if prefixes := (("builds/",) if settings.builds else ()) + (("dataflow/",) if settings.dataflow else ()):
        items.append(
            Named("lifecycle", settings.bucket, "deletes temporary files, which nothing else does", prefixes=prefixes)
        )
    if settings.repository:
        items.append(Named("repository", settings.repository, "holds the image"))
    if settings.encryption_key:
        items.append(
            Named("key", settings.encryption_key, "encrypts the pipeline, the jobs and the model", settings.region)
        )
    if settings.topic:
        items.append(Named("topic", settings.topic, "receives the notifications"))
    if settings.secret:
        items.append(Named("secret", settings.secret, "holds the webhook's address"))
    return [*items, *bindings(settings, number, builder)]


def identities(access: Access) -> list[Named]:
    """Return the service agents of the project."""
    holds = access.conditions()
    return [
        Named(
            "identity",
            agent.email(access.number),
            agent.reason,
            service=f"{agent.service}.googleapis.com",
            later=agent.later,
        )
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
