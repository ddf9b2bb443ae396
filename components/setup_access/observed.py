"""Observed state: read a project's APIs, resources and policies. What cannot be read is reported per resource."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from slipway.components.build_image.cloud_build import default_account
from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection, import_clients
from slipway.components.cloud.policies import Policy, Resource
from slipway.components.cloud.refusals import is_absent, is_answer, is_disabled, refusal
from slipway.components.cloud.retries import TRIES, first, retried, status_of
from slipway.components.cloud.roles import permissions_of
from slipway.components.setup_access.desired import Binding, apis, bindings, machine_role
from slipway.components.setup_access.requirements import COMPUTE, Access
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

COMPUTE_ACCOUNT = "{number}-compute@developer.gserviceaccount.com"
# The API of each kind of resource.
HOSTS = {
    "project": "cloudresourcemanager.googleapis.com",
    "bucket": "storage.googleapis.com",
    "repository": "artifactregistry.googleapis.com",
    "account": "iam.googleapis.com",
    "role": "iam.googleapis.com",
    "key": "cloudkms.googleapis.com",
    "topic": "pubsub.googleapis.com",
    "secret": "secretmanager.googleapis.com",
}


@dataclass(frozen=True)
class State:
    """The observed state of a resource.

    `exists` is None if it could not be determined; `error` then says why. `facts` is the service's description of it,
    `policy` its IAM policy, None if it could not be read. `own` are the caller's permissions on it, of those that were
    asked for, None if it could not be asked.
    """

    exists: bool | None
    facts: JsonObject = field(default_factory=dict)
    policy: Policy | None = None
    error: UserError | None = None
    own: frozenset[str] | None = None


@dataclass(frozen=True)
class Observed:
    """The observed state of a project. `enabled` is None if the caller may not list the enabled APIs.

    `caller` is the caller as a policy member, "" for a person, whose credentials do not say it. `builder` is the
    account that Cloud Build's builds run as, "" if there is none, None if it is unknown; `unasked` then says why.
    """

    number: int
    enabled: frozenset[str] | None
    resources: Mapping[Resource, State]
    builder: str | None = None
    unasked: UserError | None = None
    caller: str = ""


def observe(settings: AccessSettings, tries: int = 1, existing: Collection[Resource] = ()) -> Observed:
    """Read the observed state.

    Args:
        settings: The project and its resources.
        tries: Maximum number of attempts while a newly enabled API still reports that it is disabled, or a resource
            in `existing` that it does not exist.
        existing: Resources that are known to exist.

    Raises:
        UserError: There are no credentials, or the project does not exist.
    """
    connection = settings.connection
    import_clients()
    number, enabled = services(connection, [*(api.name for api in apis(settings)), COMPUTE])
    builder, unasked = settings.builder, None
    if settings.builds and not builder:
        builder, unasked = _builder(settings, number)
    caller = f"serviceAccount:{connection.caller}" if connection.caller else ""
    caller_bindings = [binding for binding in bindings(settings, number, builder) if binding.member == caller]
    listed = resources_of(settings, builder)
    with ThreadPoolExecutor(max_workers=2 * len(listed)) as pool:
        ask = functools.partial(read, connection, enabled=enabled, tries=tries, existing=existing)
        states = pool.map(ask, listed)
        allowed = pool.map(functools.partial(_own, connection, caller_bindings), listed)
        seen = {
            resource: replace(state, own=permissions)
            for resource, state, permissions in zip(listed, states, allowed, strict=True)
        }
    return Observed(number, enabled, seen, builder, unasked, caller)


def resources_of(settings: AccessSettings, builder: str | None) -> list[Resource]:
    """Return the resources that are read: those on which roles are needed, and the custom role of a TPU's machines."""
    places = Access(settings, builder=builder).resources()
    listed = list(dict.fromkeys(resource for resources in places.values() for resource in resources))
    return [*listed, Resource("role", machine_role(settings.project))] if settings.tpu_machines else listed


def _own(connection: Connection, caller_bindings: list[Binding], resource: Resource) -> frozenset[str] | None:
    """Return which of the permissions on a resource that the caller needs it has; None if it cannot be asked."""
    roles = {binding.role for binding in caller_bindings if binding.resource == resource}
    asked = {permission for role in roles for permission in permissions_of(role)}
    if not asked:
        return None
    try:
        return policies.permitted(connection, resource, asked)
    except Exception as error:
        if not is_answer(error):
            raise
        return None


def services(connection: Connection, names: list[str]) -> tuple[int, frozenset[str] | None]:
    """Return the project's number, and which of the APIs are enabled (None if the caller may not see that).

    Raises:
        UserError: The project does not exist or the caller may not see it.
    """
    parent = f"projects/{connection.project}"
    # Resolved first, so that an error can name the caller.
    _ = connection.caller

    def ask() -> Any:
        api = connection.api("serviceusage", "v1").services()
        return api.batchGet(parent=parent, names=[f"{parent}/services/{name}" for name in names]).execute()

    try:
        answers = retried(ask)["services"]
    except Exception as error:
        if status_of(error) in (403, 404) and not is_disabled(error):
            # Callers that may run jobs can see the project, but not always its services.
            return _number(connection), None
        raise refusal(error, connection, f"see the project {connection.project}") from error
    number = int(answers[0]["parent"].partition("/")[2])
    return number, frozenset(answer["name"].rpartition("/")[2] for answer in answers if answer["state"] == "ENABLED")


def _number(connection: Connection) -> int:
    projects = connection.api("cloudresourcemanager", "v3").projects()
    request = projects.get(name=f"projects/{connection.project}")
    try:
        return int(retried(request.execute)["name"].partition("/")[2])
    except Exception as error:
        if status_of(error) not in (403, 404) or is_disabled(error):
            raise refusal(error, connection, f"see the project {connection.project}") from error
        raise UserError(
            f"There is no project {connection.project}, or {connection.caller or 'your account'} may not see it.",
            setting=f"{connection.section}.project",
            value=connection.project,
            allowed="the id of a project that you may use",
            fix=f"gcloud projects list shows yours: --set {connection.section}.project=PROJECT",
        ) from error


def read(
    connection: Connection,
    resource: Resource,
    enabled: frozenset[str] | None = None,
    tries: int = 1,
    existing: Collection[Resource] = (),
) -> State:
    """Return a resource's state; `tries` applies to resources in `existing` and those whose API is in `enabled`."""
    facts: JsonObject = {}
    is_on, unseen = HOSTS[resource.kind] in (enabled or ()), policies.unseen(resource)
    new = first(tries - 1, lambda error: (is_disabled(error) and is_on) or (is_absent(error) and resource in existing))

    def settles(error: BaseException) -> bool:
        return new(error) or unseen(error)

    try:
        facts = retried(lambda: _facts(connection, resource), also=settles, tries=max(tries, TRIES))
    except Exception as error:
        if is_disabled(error) or is_absent(error):
            # Nothing exists behind a disabled API; the API itself is reported as missing.
            return State(exists=resource.kind == "project", error=refusal(error, connection, f"see {resource}"))
        # Without permission to get a resource, its policy may still be readable.
        if status_of(error) != 403 or resource.kind == "role":
            return State(exists=None, error=refusal(error, connection, f"see {resource}"))
    if resource.kind == "role":
        return State(exists=True, facts=facts)
    try:
        policy = policies.read(connection, resource, settles, max(tries, TRIES))
        return State(exists=True, facts=facts, policy=policy)
    except Exception as error:
        needs = f"{policies.PREFIXES[resource.kind]}.getIamPolicy"
        problem = refusal(error, connection, f"read the policy of {resource}", needs)
        return State(exists=True if facts else None, facts=facts, error=problem)


def _builder(settings: AccessSettings, number: int) -> tuple[str | None, UserError | None]:
    """Return the e-mail of the account that builds run as by default, or why it is unknown.

    A project that has not enabled Cloud Build yet will use Compute Engine's default account.
    """
    try:
        return default_account(settings.connection, settings.build_region), None
    except Exception as error:
        if is_disabled(error):
            return COMPUTE_ACCOUNT.format(number=number), None
        problem = refusal(error, settings.connection, "get the account that builds run as", "cloudbuild.builds.get")
        return None, problem


def _facts(connection: Connection, resource: Resource) -> JsonObject:
    """Return a service's description of a resource; of a project, the folder or organization that it is in, or ""."""
    kind, name = resource.kind, resource.name
    if kind == "bucket":
        bucket = connection.storage.get_bucket(name, retry=None)
        return {
            "location": bucket.location,
            "location_type": bucket.location_type,
            "number": int(bucket.project_number or 0),
            "uniform": bool(bucket.iam_configuration.uniform_bucket_level_access_enabled),
            "lifecycle": [dict(rule) for rule in bucket.lifecycle_rules],
        }
    if kind == "project":
        projects = connection.api("cloudresourcemanager", "v3").projects()
        return {"parent": projects.get(name=f"projects/{name}").execute().get("parent", "")}
    if kind == "account":
        request = connection.api("iam", "v1").projects().serviceAccounts().get(name=policies.account_name(name))
    elif kind == "role":
        request = connection.api("iam", "v1").projects().roles().get(name=name)
    else:
        request = policies.collection(connection, kind).get(**{"topic" if kind == "topic" else "name": name})
    return dict(request.execute())
