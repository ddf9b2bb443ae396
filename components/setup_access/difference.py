"""The difference between observed and desired state: one line per item, with what setup would do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from slipway.components.cloud import policies
from slipway.components.cloud.policies import Resource
from slipway.components.setup_access.desired import (
    Account,
    Api,
    Binding,
    Bucket,
    Identity,
    Item,
    Repository,
    Secret,
    Topic,
    desired,
)
from slipway.components.setup_access.observed import HOSTS, Observed
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError

# there: as desired. missing: setup creates it. wrong: it exists but differs, and setup does not change it. unseen: the
# caller lacks permission to see it.
Status = Literal["there", "missing", "wrong", "unseen"]

# Roles that include another role.
INCLUDED_IN = {
    "roles/aiplatform.user": ("roles/aiplatform.admin", "roles/owner", "roles/editor"),
    "roles/artifactregistry.reader": (
        "roles/artifactregistry.writer",
        "roles/artifactregistry.repoAdmin",
        "roles/artifactregistry.admin",
        "roles/owner",
        "roles/editor",
    ),
    "roles/artifactregistry.writer": (
        "roles/artifactregistry.repoAdmin",
        "roles/artifactregistry.admin",
        "roles/owner",
        "roles/editor",
    ),
    "roles/cloudbuild.builds.editor": ("roles/owner", "roles/editor"),
    "roles/iam.serviceAccountUser": ("roles/owner", "roles/editor"),
    "roles/logging.logWriter": ("roles/logging.admin", "roles/owner", "roles/editor"),
    "roles/logging.viewer": ("roles/logging.admin", "roles/owner", "roles/editor"),
    "roles/pubsub.publisher": ("roles/pubsub.editor", "roles/pubsub.admin", "roles/owner"),
    "roles/secretmanager.secretAccessor": ("roles/secretmanager.admin", "roles/owner"),
    "roles/storage.objectViewer": ("roles/storage.objectUser", "roles/storage.objectAdmin", "roles/storage.admin"),
    "roles/storage.objectUser": ("roles/storage.objectAdmin", "roles/storage.admin"),
}


@dataclass(frozen=True)
class Line:
    """One desired item and its observed state. `fix` is for what setup itself cannot do."""

    item: Item
    status: Status
    observed: str
    fix: str | None = None

    @property
    def kind(self) -> str:
        """The item's type in lower case."""
        return type(self.item).__name__.lower()

    @property
    def later(self) -> bool:
        """Whether Google creates it with the first job, because setup cannot."""
        return bool(getattr(self.item, "later", False))

    def as_dict(self) -> dict[str, object]:
        """Return the line as JSON-compatible values."""
        fields = {"kind": self.kind, "what": str(self.item), "status": self.status, "observed": self.observed}
        return {**fields, "reason": self.item.reason, "fix": self.fix}


def difference(settings: AccessSettings, observed: Observed) -> list[Line]:
    """Return a line for every desired item, in the order in which they can be created."""
    lines = [_line(item, settings, observed) for item in desired(settings, observed.number, observed.builder)]
    if observed.unasked is not None:
        lines.append(_unseen(Account("the account of Cloud Build's builds", "it pushes the image"), observed.unasked))
    return lines


def blocking(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that would make a run fail."""
    return [line for line in lines if line.status == "wrong" or (line.status == "missing" and not line.later)]


def _line(item: Item, settings: AccessSettings, observed: Observed) -> Line:
    if isinstance(item, Api) and observed.enabled is None:
        return Line(item, "unseen", "cannot list enabled APIs: serviceusage.services.get is missing")
    if isinstance(item, Api):
        enabled = item.name in (observed.enabled or ())
        return Line(item, "there", "enabled") if enabled else Line(item, "missing", "to be enabled")
    if isinstance(item, Identity):
        return _identity(item, observed)
    if isinstance(item, Account):
        return _resource(item, Resource("account", item.email), settings, observed)
    if isinstance(item, Bucket):
        return _bucket(item, observed)
    if isinstance(item, Repository):
        return _resource(item, Resource("repository", item.name), settings, observed)
    if isinstance(item, Topic):
        return _resource(item, Resource("topic", item.name), settings, observed)
    if isinstance(item, Secret):
        return _secret(item, observed)
    return _binding(item, settings, observed)


def _identity(item: Identity, observed: Observed) -> Line:
    """No API lists a project's service agents, but policies can only name existing ones."""
    member = f"serviceAccount:{item.email}"
    if any(member in _members(state.policy) for state in observed.resources.values()):
        return Line(item, "there", "named in a policy")
    unread = next((t.error for r, t in observed.resources.items() if r.kind == "project" and t.policy is None), None)
    if unread is not None and (observed.enabled is None or item.service in observed.enabled):
        return Line(item, "unseen", unread.message, unread.fix)
    return Line(item, "missing", "not named in any policy: to be created unless it exists")


def _members(policy: policies.Policy | None) -> set[str]:
    return {member for binding in (policy or {}).get("bindings", ()) for member in binding.get("members", ())}


def _bucket(item: Bucket, observed: Observed) -> Line:
    state = observed.resources[Resource("bucket", item.name)]
    if state.exists is False:
        return Line(item, "missing", f"to be created in {item.region}, with uniform access")
    if not state.facts:
        line = _unseen(item, state.error)
        return replace(line, observed=f"{line.observed} The bucket may belong to another project.")
    place, kind = str(state.facts["location"]).lower(), state.facts["location_type"]
    if state.facts["number"] != observed.number:
        return Line(item, "wrong", "it belongs to another project", "--set vertex.bucket=gs://ANOTHER_NAME")
    if kind != "region" or place != item.region:
        fix = f"--set vertex.bucket=gs://ANOTHER_NAME: buckets cannot be moved; setup creates it in {item.region}"
        return Line(item, "wrong", f"it is in the {kind} {place}, the jobs are in {item.region}", fix)
    if not state.facts["uniform"]:
        fix = f"gcloud storage buckets update {item} --uniform-bucket-level-access"
        return Line(item, "wrong", "uniform bucket-level access is off, so object ACLs may override roles", fix)
    return Line(item, "there", f"in {place}, with uniform access")


def _secret(item: Secret, observed: Observed) -> Line:
    state = observed.resources[Resource("secret", item.name)]
    if state.exists is None:
        return _unseen(item, state.error)
    if state.exists:
        return Line(item, "there", "exists")
    _, project, _, name = item.name.split("/")
    fix = f"gcloud secrets create {name} --project={project} --data-file=FILE, with the webhook's URL in FILE"
    return Line(item, "wrong", "it does not exist, and only you know its value", fix)


def _resource(
    item: Account | Repository | Topic, resource: Resource, settings: AccessSettings, observed: Observed
) -> Line:
    state = observed.resources[resource]
    if state.exists is None:
        return _unseen(item, state.error)
    if state.exists:
        kind = state.facts.get("format", "DOCKER")
        if kind != "DOCKER":
            return Line(item, "wrong", f"it holds {kind}, not images", "--set vertex.image=… in a Docker repository")
        if state.facts.get("disabled"):
            fix = f"gcloud iam service-accounts enable {item}"
            return Line(item, "wrong", "it is disabled", fix)
        return Line(item, "there", "exists")
    full = policies.account_name(resource.name) if resource.kind == "account" else resource.name
    owner = full.split("/")[1]
    if owner not in (settings.project, str(observed.number)):
        return Line(item, "wrong", f"it does not exist in {owner}, which is another project", f"create it in {owner}")
    if resource.kind == "account" and not resource.name.endswith(policies.ACCOUNT_DOMAIN):
        fix = f"--set vertex.service_account=slipway@{settings.project}{policies.ACCOUNT_DOMAIN}"
        return Line(item, "wrong", "it does not exist, and only Google can create it", fix)
    return Line(item, "missing", "to be made")


def _binding(item: Binding, settings: AccessSettings, observed: Observed) -> Line:
    project = observed.resources[Resource("project", settings.project)]
    roles = (item.role, *INCLUDED_IN.get(item.role, ()))
    state = observed.resources[item.resource]
    for where, policy in ((item.resource, state.policy), (Resource("project", settings.project), project.policy)):
        for role in roles:
            if policy is not None and policies.holds(policy, role, item.member):
                given = "granted" if (role, where) == (item.role, item.resource) else f"{role} on {where} has it"
                return Line(item, "there", given)
    if state.policy is None and state.exists is not False and not _is_off(item.resource, observed):
        return _unseen(item, state.error)
    condition = _condition(state.policy, item)
    return Line(item, "missing", f"granted only under the condition {condition!r}" if condition else "to be granted")


def _is_off(resource: Resource, observed: Observed) -> bool:
    """Return whether the API that holds a resource's policy is disabled: then nothing has been granted yet."""
    return observed.enabled is not None and HOSTS[resource.kind] not in observed.enabled


def _condition(policy: policies.Policy | None, item: Binding) -> str | None:
    """Return the title of the condition under which a member has a role, or None."""
    for binding in (policy or {}).get("bindings", ()):
        if binding["role"] == item.role and item.member in binding.get("members", ()) and binding.get("condition"):
            return str(binding["condition"].get("title") or binding["condition"].get("expression"))
    return None


def _unseen(item: Item, error: UserError | None) -> Line:
    return Line(item, "unseen", error.message if error else "it cannot be seen", error.fix if error else None)
