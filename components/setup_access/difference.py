"""The difference between observed and desired state: one line per item, with what setup would do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from slipway.components.cloud import policies
from slipway.components.cloud.policies import Resource
from slipway.components.cloud.roles import permissions_of, roles_with
from slipway.components.cloud.rules import is_bucket_near
from slipway.components.setup_access.desired import Binding, Item, Named, desired
from slipway.components.setup_access.observed import HOSTS, Observed, State
from slipway.components.setup_access.requirements import COMPUTE
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError

# there: as desired. missing: setup creates it. wrong: it exists but differs, and setup does not change it. unseen: the
# caller lacks permission to see it.
Status = Literal["there", "missing", "wrong", "unseen"]

# Members that stand for several accounts, each of which has the member's roles.
COLLECTIVE = ("group:", "domain:", "principalSet:")


@dataclass(frozen=True)
class Line:
    """One desired item and its observed state. `fix` is for what setup itself cannot do.

    `doubtful`: a missing role that the member may hold all the same, through a folder, an organization or a group.
    """

    item: Item
    status: Status
    observed: str
    fix: str | None = None
    doubtful: bool = False

    @property
    def kind(self) -> str:
        """The item's kind."""
        return self.item.kind

    @property
    def optional(self) -> bool:
        """Whether a run does without it."""
        return self.kind == "lifecycle"

    @property
    def later(self) -> bool:
        """Whether Google creates it with the first job, because setup cannot."""
        return self.item.later

    def as_dict(self) -> dict[str, object]:
        """Return the line as JSON-compatible values."""
        fields = {"kind": self.kind, "what": str(self.item), "status": self.status, "observed": self.observed}
        return {**fields, "reason": self.item.reason, "fix": self.fix, "doubtful": self.doubtful}


def difference(settings: AccessSettings, observed: Observed) -> list[Line]:
    """Return a line for every desired item, in the order in which they can be created."""
    items = desired(settings, observed.number, observed.builder)
    lines = [_line(item, settings, observed) for item in items if not _is_unseen_rule(item, observed)]
    builder = Named("account", "the account of Cloud Build's builds", "it pushes the image")
    if observed.unasked is not None:
        lines.append(_unseen(builder, observed.unasked))
    if observed.builder == "":
        account = f"slipway-builder@{settings.project}{policies.ACCOUNT_DOMAIN}"
        fix = f"--set {settings.section}.build.service_account={account}"
        lines.append(Line(builder, "wrong", "the project has no default account for builds", fix))
    return lines


def blocking(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that would make a run fail."""
    return [
        line
        for line in lines
        if line.status == "wrong"
        or (line.status == "missing" and not line.later and not line.doubtful and not line.optional)
    ]


def _line(item: Item, settings: AccessSettings, observed: Observed) -> Line:
    if isinstance(item, Binding):
        return _binding(item, settings, observed)
    if item.kind == "api" and observed.enabled is None:
        return Line(item, "unseen", "cannot list enabled APIs: serviceusage.services.get is missing")
    if item.kind == "api":
        enabled = item.name in (observed.enabled or ())
        return Line(item, "there", "enabled") if enabled else Line(item, "missing", "to be enabled")
    lines = {"identity": _identity, "role": _role, "key": _key, "secret": _secret, "lifecycle": _lifecycle}
    if item.kind in lines:
        return lines[item.kind](item, observed)
    return _bucket(item, settings, observed) if item.kind == "bucket" else _resource(item, settings, observed)


def _identity(item: Named, observed: Observed) -> Line:
    """No API lists a project's service agents, but policies can only name existing ones."""
    member = f"serviceAccount:{item.name}"
    policies_read = [state.policy for state in observed.resources.values() if state.policy]
    if any(member in binding.get("members", ()) for policy in policies_read for binding in policy.get("bindings", ())):
        return Line(item, "there", "named in a policy")
    unread = next((t.error for r, t in observed.resources.items() if r.kind == "project" and t.policy is None), None)
    if unread is not None and (observed.enabled is None or item.service in observed.enabled):
        return Line(item, "unseen", unread.message, unread.fix)
    if item.later:
        return Line(item, "missing", "not named in any policy: Google creates it with the first job")
    return Line(item, "missing", "not named in any policy: to be created unless it exists")


def _bucket(item: Named, settings: AccessSettings, observed: Observed) -> Line:
    state = observed.resources[item.resource]
    if state.exists is False:
        return Line(item, "missing", f"to be created in {item.region}, with uniform access")
    if not state.facts:
        line = _unseen(item, state.error)
        return replace(line, observed=f"{line.observed} The bucket may belong to another project.")
    place, kind = str(state.facts["location"]).lower(), state.facts["location_type"]
    fix = f"--set {settings.section}.bucket=gs://ANOTHER_NAME"
    if state.facts["number"] != observed.number:
        return Line(item, "wrong", "it belongs to another project", fix)
    if not is_bucket_near(place, item.region):
        fix += f": buckets cannot be moved; setup creates it in {item.region}"
        return Line(item, "wrong", f"it is in the {kind} {place}, the jobs are in {item.region}", fix)
    if not state.facts["uniform"]:
        fix = f"gcloud storage buckets update {item} --uniform-bucket-level-access"
        return Line(item, "wrong", "uniform bucket-level access is off, so object ACLs may override roles", fix)
    return Line(item, "there", f"in {place}, with uniform access")


def _is_unseen_rule(item: Item, observed: Observed) -> bool:
    """Return whether an item is a rule of a bucket that cannot be seen, which the bucket's own line says."""
    if not isinstance(item, Named) or item.kind != "lifecycle":
        return False
    state = observed.resources[item.resource]
    return state.exists is not False and not state.facts


def _lifecycle(item: Named, observed: Observed) -> Line:
    """A rule deletes what is old below each prefix; it may be the user's, with another age or with other prefixes."""
    rules = observed.resources[item.resource].facts.get("lifecycle", ())
    conditions = [
        rule["condition"] for rule in rules if rule["action"]["type"] == "Delete" and rule["condition"].get("age")
    ]
    deleted = [
        condition.get("matchesPrefix", [""]) for condition in conditions if set(condition) <= {"age", "matchesPrefix"}
    ]
    if all(any(prefix.startswith(tuple(begins)) for begins in deleted) for prefix in item.prefixes):
        return Line(item, "there", "deleted by a lifecycle rule")
    return Line(item, "missing", "to be made")


def _secret(item: Named, observed: Observed) -> Line:
    state = observed.resources[item.resource]
    if state.exists is None:
        return _unseen(item, state.error)
    if state.exists:
        return Line(item, "there", "exists")
    _, project, _, name = item.name.split("/")
    fix = f"gcloud secrets create {name} --project={project} --data-file=FILE, with the webhook's URL in FILE"
    return Line(item, "wrong", "it does not exist, and only you know its value", fix)


def _resource(item: Named, settings: AccessSettings, observed: Observed) -> Line:
    """Return the line of an account, a repository or a topic."""
    resource = item.resource
    state = observed.resources[resource]
    if state.exists is None:
        return _unseen(item, state.error)
    if state.exists:
        kind = state.facts.get("format", "DOCKER")
        if kind != "DOCKER":
            fix = f"--set {settings.section}.image=… in a Docker repository"
            return Line(item, "wrong", f"it holds {kind}, not images", fix)
        if state.facts.get("disabled"):
            fix = f"gcloud iam service-accounts enable {item}"
            return Line(item, "wrong", "it is disabled", fix)
        return Line(item, "there", "exists")
    full = policies.account_name(resource.name) if resource.kind == "account" else resource.name
    owner = full.split("/")[1]
    if owner not in (settings.project, str(observed.number)):
        return Line(item, "wrong", f"it does not exist in {owner}, which is another project", f"create it in {owner}")
    if resource.kind == "account" and not resource.name.endswith(policies.ACCOUNT_DOMAIN):
        if observed.enabled is not None and COMPUTE not in observed.enabled:
            return Line(item, "missing", f"Google creates it with the API {COMPUTE}")
        name = f"{settings.section}.build.service_account=slipway-builder"
        if resource.name == settings.account:
            name = f"{settings.section}.service_account=slipway"
        fix = f"--set {name}@{settings.project}{policies.ACCOUNT_DOMAIN}"
        return Line(item, "wrong", "it does not exist, and only Google can create it", fix)
    return Line(item, "missing", "to be made")


def _role(item: Named, observed: Observed) -> Line:
    state = observed.resources[item.resource]
    if state.exists is None:
        return _unseen(item, state.error)
    if not state.exists:
        return Line(item, "missing", "to be made")
    _, project, _, name = item.name.split("/")
    if state.facts.get("deleted"):
        return Line(item, "wrong", "it is deleted", f"gcloud iam roles undelete {name} --project={project}")
    if lacks := sorted(set(item.permissions) - set(state.facts.get("includedPermissions", ()))):
        fix = f"gcloud iam roles update {name} --project={project} --add-permissions={','.join(lacks)}"
        return Line(item, "wrong", f"it lacks {', '.join(lacks)}", fix)
    return Line(item, "there", "exists")


def _key(item: Named, observed: Observed) -> Line:
    """The key must be in the region of the jobs: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/EncryptionSpec."""
    state = observed.resources[item.resource]
    _, project, _, region, _, ring, _, key = item.name.split("/")
    place = f"--keyring={ring} --location={region} --project={project}"
    if region != item.region:
        fix = "--set vertex.encryption_key=… with a key in that region"
        return Line(item, "wrong", f"it is in {region}, the jobs are in {item.region}", fix)
    if state.exists is None:
        return _unseen(item, state.error)
    if not state.exists and state.error is not None and "is not enabled" in state.error.message:
        return Line(item, "unseen", "it can be seen once the API is enabled")
    if not state.exists:
        fix = f"gcloud kms keys create {key} {place} --purpose=encryption"
        return Line(item, "wrong", "it does not exist, and setup creates no keys: they cannot be deleted", fix)
    version = state.facts.get("primary", {})
    if state.facts and version.get("state") != "ENABLED":
        number = str(version.get("name", "VERSION")).rpartition("/")[2]
        fix = f"gcloud kms keys versions enable {number} --key={key} {place}"
        return Line(item, "wrong", "its primary version is not enabled", fix)
    return Line(item, "there", f"in {region}")


def _binding(item: Binding, settings: AccessSettings, observed: Observed) -> Line:
    project = observed.resources[Resource("project", settings.project)]
    roles = roles_with(item.role)
    state = observed.resources[item.resource]
    for where, policy in ((item.resource, state.policy), (Resource("project", settings.project), project.policy)):
        for role in roles:
            if policy is not None and policies.holds(policy, role, item.member):
                grant = "granted" if (role, where) == (item.role, item.resource) else f"{role} on {where} has it"
                return Line(item, "there", grant)
    if item.member == observed.caller and state.own is not None and permissions_of(item.role):
        lacks = sorted(set(permissions_of(item.role)) - state.own)
        return Line(item, "missing", f"it lacks {', '.join(lacks)}") if lacks else Line(item, "there", "it may do this")
    is_new = item.resource.kind == "project" and _policies_are_off(observed)
    if state.policy is None and state.exists is not False and not is_new:
        return _unseen(item, state.error)
    condition = _condition(state.policy, item)
    if condition:
        return Line(item, "missing", f"granted only under the condition {condition!r}")
    if state.exists is not False and _may_be_inherited(item, roles, project, observed):
        return Line(item, "missing", f"not visible on {item.resource}: grant or ignore", doubtful=True)
    return Line(item, "missing", "to be granted")


def _may_be_inherited(item: Binding, roles: tuple[str, ...], project: State, observed: Observed) -> bool:
    """Return whether a member may have a role without a binding that can be seen.

    The policy of a resource does not contain those of the folders and the organization above it, nor the members of
    groups. Google's service agents belong to one project and to no group.
    https://cloud.google.com/iam/docs/resource-hierarchy-access-control
    """
    if item.member.startswith(f"serviceAccount:service-{observed.number}@"):
        return False
    state = observed.resources[item.resource]
    elsewhere = state.facts.get("number", observed.number) != observed.number
    if _policies_are_off(observed):
        return False
    if elsewhere or project.facts.get("parent") != "":
        return True
    return any(
        binding["role"] in roles and member.startswith(COLLECTIVE)
        for policy in (state.policy, project.policy)
        for binding in (policy or {}).get("bindings", ())
        for member in binding.get("members", ())
    )


def _policies_are_off(observed: Observed) -> bool:
    """Return whether the API that holds the project's policy is disabled: then nothing has been granted yet."""
    return observed.enabled is not None and HOSTS["project"] not in observed.enabled


def _condition(policy: policies.Policy | None, item: Binding) -> str | None:
    """Return the title of the condition under which a member has a role, or None."""
    for binding in (policy or {}).get("bindings", ()):
        if binding["role"] == item.role and item.member in binding.get("members", ()) and binding.get("condition"):
            return str(binding["condition"].get("title") or binding["condition"].get("expression"))
    return None


def _unseen(item: Item, error: UserError | None) -> Line:
    return Line(item, "unseen", error.message if error else "it cannot be seen", error.fix if error else None)
