"""The objects of a cluster with their versions, deletion and garbage collection."""

from __future__ import annotations

import copy
import json
import secrets
import string
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

Object = dict[str, Any]
FOREGROUND = "foregroundDeletion"
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "AlreadyExists",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    500: "",
    501: "NotImplemented",
}


class ApiError(Exception):
    """A refusal in the format of Kubernetes, a Status object."""

    def __init__(self, code: int, message: str, reason: str | None = None, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
        if reason := reason or REASONS[code]:
            self.status["reason"] = reason
        if details:
            self.status["details"] = details
        self.status["code"] = code


class Problem(NamedTuple):
    """What is wrong with one field of an object; `reason` is that of the cause in the answer's details."""

    field: str
    text: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


@dataclass(frozen=True)
class Resource:
    """A kind of objects. `installed_by` is the operator that brings it; None for Kubernetes' own."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    installed_by: str | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def full_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def details(self, name: str, kind: str = "", **more: Any) -> Object:
        """Return the details of an answer about one object."""
        found = {"name": name, "group": self.group, "kind": kind or self.plural, **more}
        return {key: value for key, value in found.items() if value}

    def invalid(self, name: str, problems: Sequence[Problem]) -> ApiError:
        """Return the refusal of an object with these problems."""
        told = ", ".join(str(one) for one in problems)
        causes = [{"reason": one.reason, "message": one.text, "field": one.field} for one in problems]
        message = f'{self.full_kind} "{name}" is invalid: {told if len(problems) == 1 else f"[{told}]"}'
        return ApiError(422, message, details=self.details(name, self.kind, causes=causes))


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = Resource("batch", "v1", "jobs", "Job")
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", installed_by="trainer")
TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", installed_by="trainer")
RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime", installed_by="trainer")
CLUSTER_RUNTIMES = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", False, "trainer"
)
RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
RESOURCES = (
    *(NAMESPACES, PODS, EVENTS, ACCOUNTS, CLAIMS, JOBS, JOBSETS, TRAINJOBS, RUNTIMES, CLUSTER_RUNTIMES),
    *(ROLES, ROLE_BINDINGS),
)
BY_KIND = {(resource.api_version, resource.kind): resource for resource in RESOURCES}


class Store:
    """All objects; every change has a version and wakes up those that wait on `changed`. `created`: each one's kind."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 100
        self.stopped = False
        self.created: list[Resource] = []
        self._objects: dict[tuple[Resource, str, str], Object] = {}

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Store a new object and return a copy of it."""
        with self.lock:
            made = copy.deepcopy(body)
            metadata = made.setdefault("metadata", {})
            if not metadata.get("name"):
                metadata["name"] = metadata["generateName"] + suffix()
            key = (resource, namespace if resource.namespaced else "", metadata["name"])
            if key in self._objects:
                ending = "object is being deleted: " if "deletionTimestamp" in self._objects[key]["metadata"] else ""
                message = f'{ending}{resource.full_name} "{metadata["name"]}" already exists'
                raise ApiError(409, message, details=resource.details(metadata["name"]))
            made |= {"apiVersion": resource.api_version, "kind": resource.kind}
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
            if resource.namespaced:
                metadata["namespace"] = namespace
            self._objects[key] = made
            self.created.append(resource)
            self._record(made)
            return copy.deepcopy(made)

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return a copy of an object, or None."""
        with self.lock:
            return copy.deepcopy(self._objects.get((resource, namespace if resource.namespaced else "", name)))

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return a copy of an object; 404 if it is missing."""
        found = self.find(resource, namespace, name)
        if found is None:
            raise ApiError(404, f'{resource.full_name} "{name}" not found', details=resource.details(name))
        return found

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """Return copies of a resource's objects, oldest first."""
        with self.lock:
            return [
                copy.deepcopy(one)
                for (kind, space, _), one in self._objects.items()
                if kind is resource and namespace in (None, space)
            ]

    def owned(self, resource: Resource, owner: Object) -> list[Object]:
        """Return the objects of a resource that an object owns."""
        uid = owner["metadata"]["uid"]
        space = owner["metadata"].get("namespace")
        return [one for one in self.all(resource, space) if uid in {ref["uid"] for ref in owners(one)}]

    def change(self, resource: Resource, given: Object, function: Callable[[Object], object]) -> Object | None:
        """Apply `function` to the stored object; None if it is deleted. An object without changes keeps its version."""
        metadata = given["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        with self.lock:
            one = self._objects.get(key)
            if one is None or one["metadata"]["uid"] != metadata["uid"]:
                return None
            before = json.dumps(one, sort_keys=True)
            specification = json.dumps(one.get("spec"), sort_keys=True)
            function(one)
            if json.dumps(one, sort_keys=True) == before:
                return copy.deepcopy(one)
            if json.dumps(one.get("spec"), sort_keys=True) != specification:
                one["metadata"]["generation"] = one["metadata"].get("generation", 1) + 1
            if "deletionTimestamp" in one["metadata"] and not one["metadata"].get("finalizers") and resource != PODS:
                self._remove(key)
            else:
                self._record(one)
            return copy.deepcopy(one)

    def delete(self, resource: Resource, one: Object, policy: str = "Background", grace: int | None = None) -> bool:
        """Delete an object; return whether it is deleted, not only marked (finalizers, a pod's grace period)."""
        metadata = one["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        with self.lock:
            stored = self._objects.get(key)
            if stored is None or stored["metadata"]["uid"] != metadata["uid"]:
                return True
            finalizers = stored["metadata"].setdefault("finalizers", [])
            if policy == "Foreground" and FOREGROUND not in finalizers:
                finalizers.append(FOREGROUND)
            graceful = resource == PODS and stored.get("status", {}).get("phase") in ("Running", "Pending")
            if graceful and stored["spec"].get("nodeName") and grace != 0:
                seconds = stored["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
                stored["metadata"]["deletionGracePeriodSeconds"] = seconds
            elif not finalizers:
                self._remove(key)
                return True
            if "deletionTimestamp" not in stored["metadata"]:
                stored["metadata"]["deletionTimestamp"] = now()
                stored["metadata"].setdefault("deletionGracePeriodSeconds", 0)
                self._record(stored)
            return False

    def remove(self, resource: Resource, one: Object) -> None:
        """Remove an object at once."""
        metadata = one["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        with self.lock:
            if key in self._objects and self._objects[key]["metadata"]["uid"] == metadata["uid"]:
                self._remove(key)

    def collect_garbage(self) -> None:
        """Delete the objects whose owners are all deleted, and finish the foreground deletions."""
        with self.lock:
            for (resource, _, _), one in list(self._objects.items()):
                references = owners(one)
                orphaned = references and not any(self._exists(reference, one) for reference in references)
                if orphaned and "deletionTimestamp" not in one["metadata"]:
                    self.delete(resource, one)
                elif FOREGROUND in one["metadata"].get("finalizers", []):
                    dependents = [(kind, it) for kind in RESOURCES for it in self.owned(kind, one)]
                    for kind, dependent in dependents:
                        if "deletionTimestamp" not in dependent["metadata"]:
                            self.delete(kind, dependent, "Foreground" if kind != PODS else "Background")
                    if not dependents:
                        self.change(resource, one, lambda it: it["metadata"]["finalizers"].remove(FOREGROUND))

    def say(self, resource: Resource, one: Object, reason: str, message: str, kind: str = "Warning") -> None:
        """Record an event about an object, once per message."""
        metadata = one["metadata"]
        about = {"kind": resource.kind, "apiVersion": resource.api_version}
        about |= {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
        space = metadata.get("namespace", "default")
        with self.lock:
            for event in self.all(EVENTS, space):
                if (event["involvedObject"]["uid"], event["message"]) == (metadata["uid"], message):
                    return
            name = f"{metadata['name']}.{secrets.token_hex(8)}"
            body = {"involvedObject": about, "reason": reason, "message": message, "type": kind, "count": 1}
            stamps = {"firstTimestamp": now(), "lastTimestamp": now()}
            self.create(EVENTS, space, {"metadata": {"name": name}, **body, **stamps})

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _exists(self, reference: Object, dependent: Object) -> bool:
        """Return whether an owner exists: with this uid, and in the dependent's namespace."""
        resource = BY_KIND.get((reference["apiVersion"], reference["kind"]))
        if resource is None:
            return False
        space = dependent["metadata"].get("namespace", "") if resource.namespaced else ""
        owner = self._objects.get((resource, space, reference["name"]))
        return owner is not None and owner["metadata"]["uid"] == reference["uid"]

    def _remove(self, key: tuple[Resource, str, str]) -> None:
        self._record(self._objects.pop(key))

    def _record(self, one: Object) -> None:
        with self.changed:
            self.version += 1
            one["metadata"]["resourceVersion"] = str(self.version)
            if not one["metadata"].get("finalizers", True):
                del one["metadata"]["finalizers"]
            self.changed.notify_all()


def owners(one: Object) -> list[Object]:
    return one["metadata"].get("ownerReferences") or []


def controlled_by(resource: Resource, owner: Object) -> list[Object]:
    """Return the ownerReferences of an object that a controller makes for its own."""
    reference = {"apiVersion": resource.api_version, "kind": resource.kind}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    return [reference | {"controller": True, "blockOwnerDeletion": True}]


def set_condition(status: Object, kind: str, value: str, reason: str, message: str) -> None:
    """Set a condition; its time changes only with its value."""
    conditions = status.setdefault("conditions", [])
    made = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now()}
    for number, one in enumerate(conditions):
        if one["type"] == kind:
            if one["status"] == value:
                made["lastTransitionTime"] = one["lastTransitionTime"]
            conditions[number] = made
            return
    conditions.append(made)


def has_condition(one: Object, kind: str, value: str = "True") -> bool:
    conditions = one.get("status", {}).get("conditions", [])
    return any(condition["type"] == kind and condition["status"] == value for condition in conditions)


def suffix() -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
