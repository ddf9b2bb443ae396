"""Observed state: read a project's APIs, resources and policies. What cannot be read is reported per resource."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.policies import Policy, Resource
from slipway.components.cloud.refusals import is_absent, is_disabled, refusal
from slipway.components.cloud.retries import TRIES, retried, status_of
from slipway.components.setup_access.desired import apis
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

# The API of each kind of resource.
HOSTS = {
    "project": "cloudresourcemanager.googleapis.com",
    "bucket": "storage.googleapis.com",
    "repository": "artifactregistry.googleapis.com",
    "account": "iam.googleapis.com",
    "topic": "pubsub.googleapis.com",
    "secret": "secretmanager.googleapis.com",
}


@dataclass(frozen=True)
class State:
    """The observed state of a resource.

    `exists` is None if it could not be determined; `error` then says why. `facts` is the service's description of it,
    `policy` its IAM policy, None if it could not be read.
    """

    exists: bool | None
    facts: JsonObject = field(default_factory=dict)
    policy: Policy | None = None
    error: UserError | None = None


@dataclass(frozen=True)
class Observed:
    """The observed state of a project. `enabled` is None if the caller may not list the enabled APIs.

    `builder` is the account that Cloud Build's builds run as, None if it is unknown; `unasked` then says why, unless
    the API is merely disabled.
    """

    number: int
    enabled: frozenset[str] | None
    resources: Mapping[Resource, State]
    builder: str | None = None
    unasked: UserError | None = None


def observe(settings: AccessSettings, tries: int = 1) -> Observed:
    """Read the observed state.

    Args:
        settings: The project and its resources.
        tries: Maximum number of attempts while a newly enabled API still reports that it is disabled.

    Raises:
        UserError: There are no credentials, or the project does not exist.
    """
    connection = settings.connection
    number, enabled = services(connection, [api.name for api in apis(settings)])
    listed = resources_of(settings)
    with ThreadPoolExecutor(max_workers=len(listed) + 1) as pool:
        builder = pool.submit(_builder, connection) if settings.builds and not settings.builder else None
        ask = functools.partial(read, connection, enabled=enabled, tries=tries)
        states = dict(zip(listed, pool.map(ask, listed), strict=True))
    email, unasked = builder.result() if builder else (settings.builder, None)
    return Observed(number, enabled, states, email, unasked)


def resources_of(settings: AccessSettings) -> list[Resource]:
    """Return the resources whose policies are read."""
    buckets = dict.fromkeys((settings.bucket, *settings.stores, *settings.sources))
    listed = [Resource("project", settings.project), *(Resource("bucket", name) for name in buckets)]
    if settings.repository:
        listed.append(Resource("repository", settings.repository))
    if settings.topic:
        listed.append(Resource("topic", settings.topic))
    if settings.secret:
        listed.append(Resource("secret", settings.secret))
    accounts = {settings.account, settings.builder if settings.builds else None} - {None}
    return [*listed, *(Resource("account", str(account)) for account in sorted(map(str, accounts)))]


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
            setting="vertex.project",
            value=connection.project,
            allowed="the id of a project that you may use",
            fix="gcloud projects list shows yours: --set vertex.project=PROJECT",
        ) from error


def read(connection: Connection, resource: Resource, enabled: frozenset[str] | None = None, tries: int = 1) -> State:
    """Return a resource's state; `tries` applies to resources whose API is in `enabled`."""
    facts: JsonObject = {}
    seen = 0

    def settles(error: BaseException) -> bool:
        nonlocal seen
        seen += 1
        return is_disabled(error) and HOSTS[resource.kind] in (enabled or ()) and seen < tries

    try:
        facts = retried(lambda: FACTS[resource.kind](connection, resource), also=settles, tries=max(tries, TRIES))
    except Exception as error:
        if is_disabled(error) or is_absent(error):
            # Nothing exists behind a disabled API; the API itself is reported as missing.
            return State(exists=resource.kind == "project", error=refusal(error, connection, f"see {resource}"))
        # Without permission to get a resource, its policy may still be readable.
        if status_of(error) != 403:
            return State(exists=None, error=refusal(error, connection, f"see {resource}"))
    try:
        return State(exists=True, facts=facts, policy=policies.read(connection, resource, settles, max(tries, TRIES)))
    except Exception as error:
        problem = refusal(error, connection, f"read the policy of {resource}")
        return State(exists=True if facts else None, facts=facts, error=problem)


def _builder(connection: Connection) -> tuple[str | None, UserError | None]:
    """Return the e-mail of the account that builds run as by default, or why it is unknown."""
    name = f"projects/{connection.project}/locations/{connection.region}/defaultServiceAccount"

    def ask() -> Any:
        return connection.api("cloudbuild", "v1").projects().locations().getDefaultServiceAccount(name=name).execute()

    try:
        return str(retried(ask).get("serviceAccountEmail", "")).rpartition("/")[2] or None, None
    except Exception as error:
        if is_disabled(error):
            return None, None
        return None, refusal(error, connection, "get the account that builds run as")


def _bucket(connection: Connection, resource: Resource) -> JsonObject:
    bucket = connection.storage.get_bucket(resource.name, retry=None)
    return {
        "location": bucket.location,
        "location_type": bucket.location_type,
        "number": int(bucket.project_number or 0),
        "uniform": bool(bucket.iam_configuration.uniform_bucket_level_access_enabled),
    }


def _repository(connection: Connection, resource: Resource) -> JsonObject:
    return dict(policies.collection(connection, "repository").get(name=resource.name).execute())


def _account(connection: Connection, resource: Resource) -> JsonObject:
    accounts = connection.api("iam", "v1").projects().serviceAccounts()
    return dict(accounts.get(name=policies.account_name(resource.name)).execute())


def _topic(connection: Connection, resource: Resource) -> JsonObject:
    return dict(policies.collection(connection, "topic").get(topic=resource.name).execute())


def _secret(connection: Connection, resource: Resource) -> JsonObject:
    return dict(policies.collection(connection, "secret").get(name=resource.name).execute())


def _project(_: Connection, resource: Resource) -> JsonObject:
    """Return only the name; `services` has already verified that the project exists."""
    return {"project": resource.name}


FACTS: Mapping[str, Callable[[Connection, Resource], JsonObject]] = {
    "project": _project,
    "bucket": _bucket,
    "repository": _repository,
    "account": _account,
    "topic": _topic,
    "secret": _secret,
}
