"""The state of the fakes: projects, policies, accounts and all resources, behind one lock."""

from __future__ import annotations

import copy
import functools
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from googleapiclient import discovery_cache

from tests.fakes.errors import ServiceError
from tests.fakes.roles import PERMISSIONS

# APIs that google-api-python-client has no document of.
UNDESCRIBED = {"bigquerystorage.googleapis.com": "BigQuery Storage API"}


@functools.cache
def title_of(service: str) -> str:
    """Return an API's title (Vertex AI's is "Agent Platform API") from google-api-python-client's documents."""
    if service in UNDESCRIBED:
        return UNDESCRIBED[service]
    documents = Path(discovery_cache.__file__).parent / "documents"
    document = next(iter(sorted(documents.glob(f"{service.partition('.')[0]}.v*.json"))))
    return str(json.loads(document.read_text())["title"])


@dataclass
class Project:
    """A project: its id, number, and the services that are enabled (aiplatform.googleapis.com).

    `parents` are the folders and the organization above it, the nearest first: ("folders/1", "organizations/2").
    """

    id: str
    number: int
    services: set[str] = field(default_factory=set)
    parents: tuple[str, ...] = ()


class World:
    """All state. `writes` counts changes by resource kind; whoever changes something counts it.

    The keys of policies are full resource names: projects/P, projects/P/serviceAccounts/E,
    projects/P/locations/L/repositories/R, buckets/B, with P the project's id, and folders/F and organizations/O.
    `buckets` holds the resources of Cloud Storage's buckets by name, `keys` those of Cloud KMS's keys by full name.
    `owners` may do everything. `groups` has the members' e-mails by the group's.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.projects: dict[str, Project] = {}
        self.owners: set[str] = set()
        self.groups: dict[str, set[str]] = {}
        self.accounts: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        # Custom roles by full name, with their permissions.
        self.roles: dict[str, frozenset[str]] = {}
        self.buckets: dict[str, dict[str, Any]] = {}
        self.repositories: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        # Limits by project, region and metric; what is not named is not limited.
        self.quotas: dict[tuple[str, str, str], int] = {}
        # How many calls of a service that has just been enabled are still refused.
        self.settling: Counter[str] = Counter()
        self.settling_calls = 0
        self.writes: Counter[str] = Counter()
        self._etag = 0
        self._number = 4_000_000_000

    def number(self) -> int:
        """Return the next resource number."""
        with self.lock:
            self._number += 1
            return self._number

    def project(self, id_or_number: str) -> Project:
        """A project by its id or number."""
        for project in self.projects.values():
            if id_or_number in (project.id, str(project.number)):
                return project
        raise ServiceError(403, f"Permission denied on resource project {id_or_number}.")

    def add_account(self, project: Project, email: str) -> dict[str, Any]:
        """Create a service account in a project; return its resource."""
        name = f"projects/{project.id}/serviceAccounts/{email}"
        account = {"name": name, "projectId": project.id, "email": email, "uniqueId": str(self.number())}
        return self.accounts.setdefault(email, account)

    def require_service(self, project: Project, service: str) -> None:
        """Reject calls to a service that is not enabled, or was enabled only just now."""
        with self.lock:
            if service in project.services and self.settling[service] <= 0:
                return
            self.settling[service] -= 1
        raise ServiceError(
            403,
            f"{title_of(service)} has not been used in project {project.number} before or it is disabled. Enable it by "
            f"visiting https://console.developers.google.com/apis/api/{service}/overview?project={project.number} then "
            "retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems "
            "and retry.",
        )

    def policy(self, resource: str) -> dict[str, Any]:
        """A copy of a resource's policy, with its etag."""
        with self.lock:
            return copy.deepcopy(self.policies.setdefault(resource, {"version": 1, "bindings": [], "etag": "BwA="}))

    def read_policy(self, resource: str, version: int) -> dict[str, Any]:
        """Return a resource's policy in a policy version. Before version 3, conditions are removed, and the role of a
        conditional binding has a name that cannot be granted. Without bindings it is only an etag."""
        policy = self.policy(resource)
        if not policy["bindings"]:
            return {"etag": policy["etag"]}
        if version >= 3:
            return policy
        for binding in policy["bindings"]:
            if binding.pop("condition", None):
                binding["role"] += "_withcond_5f2b1c0e9d7a"
        return {**policy, "version": 1}

    def set_policy(self, resource: str, policy: dict[str, Any]) -> dict[str, Any]:
        """Set a policy as the services do: reject an etag that is not the newest, and conditions in a policy below
        version 3."""
        with self.lock:
            current = self.policy(resource)
            if policy.get("etag") and policy["etag"] != current["etag"]:
                raise ServiceError(
                    409,
                    "There were concurrent policy changes. Please retry the whole read-modify-write with exponential "
                    "backoff.",
                    reason="ABORTED",
                )
            conditional = any(binding.get("condition") for binding in policy.get("bindings", []))
            if conditional and policy.get("version") != 3:
                raise ServiceError(400, "Policies with conditions must be written with version 3.")
            for role in {binding["role"] for binding in policy.get("bindings", [])}:
                if role.startswith("projects/") and role not in self.roles:
                    raise ServiceError(400, f"Role ({role}) does not exist in the resource's hierarchy.")
            self._etag += 1
            self.policies[resource] = {
                "version": 3 if conditional else 1,
                "bindings": copy.deepcopy(policy.get("bindings", [])),
                "etag": f"Bw{self._etag:06d}=",
            }
            self.writes["policy"] += 1
            return self.policy(resource)

    def allowed(self, caller: str, permission: str, *resources: str) -> bool:
        """Whether the policy of one of `resources` (the narrowest first) grants `caller` a permission.

        The policies above a project apply to everything in it, and a role of a group is held by its members.
        """
        if caller in self.owners:
            return True
        members = {f"user:{caller}", f"serviceAccount:{caller}", "allUsers", "allAuthenticatedUsers"}
        members |= {f"group:{group}" for group, emails in self.groups.items() if caller in emails}
        above = [parent for name in resources for parent in self._parents(name)]
        with self.lock:
            return any(
                permission in (PERMISSIONS.get(binding["role"]) or self.roles.get(binding["role"], ()))
                and members & set(binding.get("members", []))
                for resource in (*resources, *above)
                for binding in self.policy(resource)["bindings"]
            )

    def _parents(self, resource: str) -> tuple[str, ...]:
        kind, _, name = resource.partition("/")
        return self.projects[name].parents if kind == "projects" and name in self.projects else ()

    def require(self, caller: str, permission: str, *resources: str, message: str | None = None) -> None:
        """Reject a caller who lacks a permission, with the service's message."""
        if not self.allowed(caller, permission, *resources):
            raise ServiceError(
                403,
                message or f"Permission '{permission}' denied on resource '//{resources[0]}' (or it may not exist).",
            )

    def identify(self, headers: Any) -> str:
        """Return the caller's e-mail, after checking that the caller may use the quota project, if the call names one.

        The permission and the error's text: https://cloud.google.com/docs/quotas/set-quota-project. The roles for
        submitting runs, such as roles/aiplatform.user, do not have it.
        """
        caller = caller_of(headers)
        quota_project = headers.get("x-goog-user-project")
        if quota_project:
            self.require(
                caller,
                "serviceusage.services.use",
                f"projects/{quota_project}",
                message=f"Caller does not have required permission to use project {quota_project}. Grant the caller "
                "the roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use "
                "permission, by visiting https://console.developers.google.com/iam-admin/iam/project?project="
                f"{quota_project} and then retry. Propagation of the new permission may take a few minutes.",
            )
        return caller


def caller_of(headers: Any) -> str:
    """Return the caller's e-mail from the bearer token: a JWT of the client, or a token of the fake token server."""
    import base64

    token = (headers.get("authorization") or headers.get("Authorization") or "").removeprefix("Bearer ")
    if token.startswith("fake."):
        return token.removeprefix("fake.")
    try:
        claims = token.split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"])
    except (IndexError, ValueError, KeyError):
        raise ServiceError(
            401,
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
            "valid authentication credential.",
        ) from None
