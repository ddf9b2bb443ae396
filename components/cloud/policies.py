"""IAM policies of projects, buckets, repositories and service accounts: read them and add bindings.

A policy is Google's JSON object: bindings, etag, version. Every change is a read-modify-write with the etag, so that no
concurrent change is lost. Bindings are never removed.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import TRIES, first, is_conflict, retried, status_of
from slipway.core.values import JsonObject

Policy = JsonObject
Grant = tuple[str, str]
Kind = Literal["project", "bucket", "repository", "account", "role", "key", "topic", "secret"]
VERSION = 3
ACCOUNT_DOMAIN = ".iam.gserviceaccount.com"
DEFAULT_ACCOUNT_DOMAIN = "developer.gserviceaccount.com"
# Conflicts are normal when several writers change one policy.
CONFLICT_TRIES = 30
# IAM's servers learn of a new service account one by one: for seconds, its calls answer 404 and 200 in turn.
UNSEEN_TIMES = 2
# What the names of the permissions on a kind of resource begin with.
PREFIXES = {
    "project": "resourcemanager.projects",
    "bucket": "storage.buckets",
    "repository": "artifactregistry.repositories",
    "account": "iam.serviceAccounts",
    "key": "cloudkms.cryptoKeys",
    "topic": "pubsub.topics",
    "secret": "secretmanager.secrets",
}
# The kinds of resources with full names, whose policies are read and written by the same calls.
FULL_NAMES = ("repository", "key", "topic", "secret")


@dataclass(frozen=True, order=True)
class Resource:
    """A resource with an IAM policy, named by project id, bucket, account e-mail, or else its full name."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        if self.kind == "bucket":
            return f"gs://{self.name}"
        return self.name.rpartition("/")[2] if self.kind in FULL_NAMES else self.name


def grant_command(resource: Resource, member: str, role: str, project: str = "") -> str:
    """Return the gcloud command that grants a role on a project, bucket, repository or account.

    `project` is that of an account, which its e-mail does not always contain.
    """
    where = f"projects add-iam-policy-binding {resource}"
    if resource.kind == "bucket":
        where = f"storage buckets add-iam-policy-binding {resource}"
    elif resource.kind == "account":
        where = f"iam service-accounts add-iam-policy-binding {resource} --project={project}"
    elif resource.kind == "repository":
        _, owner, _, location, *_ = resource.name.split("/")
        where = f"artifacts repositories add-iam-policy-binding {resource} --project={owner} --location={location}"
    return f"gcloud {where} --member={shlex.quote(member)} --role={role}"


def read(
    connection: Connection,
    resource: Resource,
    also: Callable[[BaseException], bool] = lambda _: False,
    tries: int = TRIES,
) -> Policy:
    """Return a resource's policy in version 3 (with conditions). `also` selects additional errors to retry."""
    return retried(lambda: _read(connection, resource), also=also, tries=tries)


def unseen(resource: Resource) -> Callable[[BaseException], bool]:
    """Return which errors to retry because a service account may be new."""
    return first(UNSEEN_TIMES, lambda error: resource.kind == "account" and status_of(error) == 404)


def permitted(connection: Connection, resource: Resource, permissions: Iterable[str]) -> frozenset[str]:
    """Return which permissions the caller has on a resource, also inherited ones and those of the caller's groups."""
    asked = sorted(permissions)
    if resource.kind == "bucket":
        bucket = connection.storage.bucket(resource.name)
        return frozenset(retried(lambda: bucket.test_iam_permissions(asked, retry=None)))
    methods, name = _methods(connection, resource)
    request = methods.testIamPermissions(resource=name, body={"permissions": asked})
    answer = retried(request.execute, also=unseen(resource))
    return frozenset(answer.get("permissions", ()))


def add(
    connection: Connection,
    resource: Resource,
    grants: Iterable[Grant],
    also: Callable[[BaseException], bool] = lambda _: False,
) -> list[Grant]:
    """Grant roles on a resource in one write, and return the grants that were missing.

    Args:
        connection: The connection to Google Cloud.
        resource: The resource to grant roles on.
        grants: (role, member) pairs, without a condition.
        also: Selects errors to retry in addition to conflicts and transient errors.
    """
    pairs = list(grants)
    added: list[Grant] = []

    def once() -> None:
        policy = _read(connection, resource)
        missing = [grant for grant in pairs if not holds(policy, *grant)]
        if missing:
            # Recorded before the write, which may succeed even if its response is lost.
            added.extend(grant for grant in missing if grant not in added)
            _write(connection, resource, with_grants(policy, missing))

    retried(once, also=lambda error: is_conflict(error) or also(error), tries=CONFLICT_TRIES)
    return added


def holds(policy: Policy, role: str, member: str) -> bool:
    """Return whether a policy grants a member a role unconditionally."""
    return any(
        binding["role"] == role and member in binding.get("members", ()) and not binding.get("condition")
        for binding in policy.get("bindings", ())
    )


def with_grants(policy: Policy, grants: Iterable[Grant]) -> Policy:
    """Return a copy of a policy with (role, member) pairs added; everything else is kept.

    Raises:
        ValueError: It has no etag: writing it could overwrite concurrent changes.
    """
    if not policy.get("etag"):
        raise ValueError("a policy without an etag is never written")
    new = copy.deepcopy(policy)
    new["version"] = VERSION
    bindings = new.setdefault("bindings", [])
    for role, member in grants:
        if holds(new, role, member):
            continue
        binding = next((b for b in bindings if b["role"] == role and not b.get("condition")), None)
        if binding is None:
            bindings.append({"role": role, "members": [member]})
        else:
            binding["members"] = [*binding.get("members", ()), member]
    return new


def _read(connection: Connection, resource: Resource) -> Policy:
    if resource.kind == "bucket":
        bucket = connection.storage.bucket(resource.name)
        # Retried by `retried`; the client's retries would multiply the attempts.
        return dict(bucket.get_iam_policy(requested_policy_version=VERSION, retry=None).to_api_repr())
    methods, name = _methods(connection, resource)
    if resource.kind == "project":
        return dict(
            methods.getIamPolicy(resource=name, body={"options": {"requestedPolicyVersion": VERSION}}).execute()
        )
    return dict(methods.getIamPolicy(resource=name, options_requestedPolicyVersion=VERSION).execute())


def _write(connection: Connection, resource: Resource, policy: Policy) -> None:
    if resource.kind == "bucket":
        from google.api_core.iam import Policy as StoragePolicy

        bucket = connection.storage.bucket(resource.name)
        bucket.set_iam_policy(StoragePolicy.from_api_repr(policy), retry=None)
        return
    methods, name = _methods(connection, resource)
    methods.setIamPolicy(resource=name, body={"policy": policy}).execute()


def _methods(connection: Connection, resource: Resource) -> tuple[Any, str]:
    """Return the API's methods for a kind of resource, all but buckets, and the resource's full name."""
    if resource.kind == "project":
        return connection.api("cloudresourcemanager", "v3").projects(), f"projects/{resource.name}"
    if resource.kind == "account":
        return connection.api("iam", "v1").projects().serviceAccounts(), account_name(resource.name)
    return collection(connection, resource.kind), resource.name


def collection(connection: Connection, kind: str) -> Any:
    """Return the API's methods for the resources of a kind in FULL_NAMES."""
    if kind == "key":
        return connection.api("cloudkms", "v1").projects().locations().keyRings().cryptoKeys()
    if kind == "topic":
        return connection.api("pubsub", "v1").projects().topics()
    if kind == "secret":
        return connection.api("secretmanager", "v1").projects().secrets()
    return connection.api("artifactregistry", "v1").projects().locations().repositories()


def account_name(email: str) -> str:
    """Return a service account's resource name from its e-mail; also of Compute Engine's default account."""
    name, _, domain = email.partition("@")
    if domain == DEFAULT_ACCOUNT_DOMAIN:
        project = name.partition("-")[0]
    else:
        # For a domain-scoped project, example.com:p, the parts are in reverse order.
        project, _, owner = domain.removesuffix(ACCOUNT_DOMAIN).partition(".")
        project = f"{owner}:{project}" if owner else project
    return f"projects/{project}/serviceAccounts/{email}"
