"""The pods of pipeline tasks on a Kubernetes cluster: admission, scheduling, pulling the image, mounting a claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kubernetes.nodes import pod_security, tolerates
from tests.fakes.kubernetes.rules import pod_problems
from tests.fakes.kubernetes.store import PODS

# The user of Slipway's images (containers/Dockerfile).
IMAGE_USER = 65534
# Volumes of every task's pod with their mount paths, and a volume of Argo Workflows without one in this container.
VOLUMES = {
    "kfp-launcher": "/kfp-launcher",
    "gcs-scratch": "/gcs",
    "s3-scratch": "/s3",
    "minio-scratch": "/minio",
    "dot-local-scratch": "/.local",
    "dot-cache-scratch": "/.cache",
    "dot-config-scratch": "/.config",
    "var-run-argo": "/var/run/argo",
    "tmp-dir-argo": None,
}
# The tasks that write to the volume.
WRITERS = ("prepare-data", "train", "register-model")


@dataclass
class Cluster:
    """A cluster's rules for pods.

    `claims` are the claims by name with the user id of their owner, whose folder has mode 0755. `private` holds the
    name of the pull secret that each private image needs, `taints` those of the GPU nodes by key with their value.
    With `restricted`, the namespace enforces the Pod Security Standard of that name. A server with
    `reads_security_context` False is older than that field.
    """

    claims: dict[str, int] = field(default_factory=lambda: {"slipway": 0, "claim": 0})
    accounts: set[str] = field(default_factory=lambda: {"pipeline-runner", "trainer"})
    private: dict[str, str] = field(default_factory=dict)
    taints: dict[str, str] = field(default_factory=dict)
    restricted: bool = False
    reads_security_context: bool = True

    def problem(self, task: str, account: str, container: dict[str, Any], pod: dict[str, Any]) -> str | None:
        """Return why a task's pod cannot do its work; None if it can."""
        user = self._user(pod)
        body = self._specification(pod)
        image = container["image"]
        if account not in self.accounts:
            return f'pods "{task}" is forbidden: error looking up service account: serviceaccount "{account}" not found'
        if invalid := list(pod_problems({"spec": body})):
            return str(PODS.invalid(task, invalid))
        if self.restricted and (forbidden := pod_security(task, body)):
            return forbidden
        if "accelerator" in container.get("resources", {}) and (taint := self._untolerated(pod)):
            return f"0/3 nodes are available: 3 node(s) had untolerated taint {{{taint}}}."
        secrets = [secret.get("secretName") for secret in pod.get("imagePullSecret", [])]
        if image in self.private and self.private[image] not in secrets:
            return f'ImagePullBackOff: Back-off pulling image "{image}"'
        for mount in pod.get("pvcMount", []):
            name = mount["pvcNameParameter"]["runtimeValue"]["constant"]
            if name not in self.claims:
                return f'persistentvolumeclaim "{name}" not found'
            if task in WRITERS and user != self.claims[name]:  # root has no capabilities here
                return f"PermissionError: [Errno 13] Permission denied: '{mount['mountPath']}/datasets'"
        in_memory = [one["mountPath"] for one in pod.get("emptyDirMounts", []) if one.get("medium") == "Memory"]
        devices = int(container.get("resources", {}).get("accelerator", {}).get("resourceCount", 0))
        if devices > 1 and "/dev/shm" not in in_memory:  # it has 64 MiB
            return "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-1NN3lC (size 9637888)"
        return None

    def _specification(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return the pod's specification as the compiler and the driver of the server make it."""
        security: dict[str, Any] = {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}
        if self.reads_security_context and (given := pod.get("securityContext")):
            security |= {**given, "runAsUser": self._user(pod), "capabilities": {"drop": ["ALL"]}}
        claims = {it["pvcNameParameter"]["runtimeValue"]["constant"]: it["mountPath"] for it in pod.get("pvcMount", [])}
        empty = {it["volumeName"]: it["mountPath"] for it in pod.get("emptyDirMounts", [])}
        volumes = [*VOLUMES.items(), *claims.items(), *empty.items()]
        mounts = [{"name": name, "mountPath": path} for name, path in volumes if path]
        container = {"name": "main", "image": "image", "securityContext": security, "volumeMounts": mounts}
        return {"volumes": [{"name": name} for name, _ in volumes], "containers": [container]}

    def _user(self, pod: dict[str, Any]) -> int:
        given = pod.get("securityContext", {}).get("runAsUser") if self.reads_security_context else None
        return IMAGE_USER if given is None else int(given)

    def _untolerated(self, pod: dict[str, Any]) -> str | None:
        for key, value in self.taints.items():
            if not any(tolerates(toleration, key, value) for toleration in pod.get("tolerations", [])):
                return f"{key}: {value}"
        return None
