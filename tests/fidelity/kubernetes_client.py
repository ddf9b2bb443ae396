"""The real client of Kubernetes for one user of a cluster, and the objects that the tests create with it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Protocol

import pytest
from kubernetes import client, config

from tests.fakes.kubernetes.server import NAMESPACE

TRAINER = ("trainer.kubeflow.org", "v1alpha1")
API_VERSION = "/".join(TRAINER)
STEP = "system:serviceaccount:kubeflow:pipeline-runner"


class Cluster(Protocol):
    """A cluster with users: the fake one, or a real API server."""

    def kubeconfig(self, user: str = ...) -> Path: ...


class Clients:
    """The real client's APIs, with short names for the calls of these tests."""

    def __init__(self, cluster: Cluster, user: str = "kubernetes-admin") -> None:
        self.api = config.new_client_from_config(str(cluster.kubeconfig(user)))
        self.custom = client.CustomObjectsApi(self.api)
        self.core = client.CoreV1Api(self.api)
        self.rbac = client.RbacAuthorizationV1Api(self.api)
        self.authorization = client.AuthorizationV1Api(self.api)

    def create(self, plural: str, body: dict[str, Any], **options: Any) -> Any:
        options.setdefault("field_validation", "Strict")
        return self.custom.create_namespaced_custom_object(*TRAINER, NAMESPACE, plural, body, **options)

    def delete(self, plural: str, name: str = "job", **options: Any) -> Any:
        return self.custom.delete_namespaced_custom_object(*TRAINER, NAMESPACE, plural, name, **options)

    def get(self, plural: str, name: str = "job") -> Any:
        return self.custom.get_namespaced_custom_object(*TRAINER, NAMESPACE, plural, name)

    def send(self, method: str, path: str, body: Any = None, media: str = "application/json") -> tuple[int, Any]:
        """Send a request as it is; return the status, and the answer's JSON or text."""
        configuration = self.api.configuration
        answer = self.api.rest_client.pool_manager.request(
            method,
            configuration.host + path,
            body=body if isinstance(body, str | None) else json.dumps(body),
            headers={"Content-Type": media, "Authorization": configuration.api_key.get("authorization", "")},
        )
        text = answer.data.decode()
        return answer.status, json.loads(text) if text.startswith("{") else text


def refused(status: int, text: str, call: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Check the status and the message of a refusal; return the Status object."""
    with pytest.raises(client.ApiException) as caught:
        call(*arguments, **options)
    found: dict[str, Any] = json.loads(caught.value.body)
    assert (caught.value.status, text in found["message"]) == (status, True), found
    return found


def runtime(script: str = "true", *, pods: int = 2, job: dict[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    """Return a TrainingRuntime; `job` and `pod` have more fields of the Job's and the pod's specification."""
    container = {"name": "trainer", "image": "image", "command": ["sh", "-c", script], **pod.pop("container", {})}
    specification = {"restartPolicy": "Never", "containers": [container], **pod}
    work = {"backoffLimit": 0, "parallelism": pods, "completions": pods, "template": {"spec": specification}}
    jobs = [{"name": "node", "replicas": 1, "template": {"spec": work | (job or {})}}]
    spec = {"template": {"spec": {"replicatedJobs": jobs}}}
    return {"apiVersion": API_VERSION, "kind": "TrainingRuntime", "metadata": {"name": "job"}, "spec": spec}


def train_job(name: str = "job", metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    reference = {"apiGroup": TRAINER[0], "kind": "TrainingRuntime", "name": "job"}
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"runtimeRef": reference, **spec},
    }


def grant(admin: Clients, *rules: dict[str, list[str]], account: str = "pipeline-runner") -> None:
    """Bind a role with these rules to a service account, by default the step's."""
    role = {"metadata": {"name": "slipway"}, "rules": list(rules)}
    admin.rbac.create_namespaced_role(NAMESPACE, role)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "slipway"}
    binding = {"metadata": {"name": "slipway"}, "subjects": [subject], "roleRef": reference}
    admin.rbac.create_namespaced_role_binding(NAMESPACE, binding)


def owned_by(pod: dict[str, Any], **changes: str) -> dict[str, Any]:
    """Return metadata with an ownerReference to a pod."""
    reference = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {"ownerReferences": [reference | changes]}


def pod(**spec: Any) -> dict[str, Any]:
    """Return a pod; `container` has more fields of its container."""
    container = {"name": "main", "image": "image:1", **spec.pop("container", {})}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def labelled(kind: str = "labels", **values: Any) -> dict[str, Any]:
    """Return a TrainingRuntime with labels, or other metadata."""
    return {**runtime(), "metadata": {"name": "job", kind: values}}


def eventually(call: Any) -> Any:
    """Return the result of a call once it is true and not forbidden: a server reads its roles with some delay."""
    for attempt in range(50):
        try:
            if found := call():
                return found
        except client.ApiException as error:
            if error.status != 403 or attempt == 49:
                raise
        time.sleep(0.1)
    raise AssertionError("Not within 5 s")
