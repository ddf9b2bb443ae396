"""The pods of pipeline tasks on a Kubernetes cluster: admission, scheduling, pulling the image, mounting a claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# The user of Slipway's images (containers/Dockerfile).
IMAGE_USER = 65534
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
        image = container["image"]
        if account not in self.accounts:
            return f'pods "{task}" is forbidden: error looking up service account: serviceaccount "{account}" not found'
        if self.restricted and user == 0:
            return (
                f'pods "{task}" is forbidden: violates PodSecurity "restricted:latest": runAsUser=0 (container "main" '
                "must not set runAsUser=0)"
            )
        if "accelerator" in container.get("resources", {}) and (taint := self._untolerated(pod)):
            return f"0/3 nodes are available: 3 node(s) had untolerated taint {{{taint}}}."
        secrets = [secret.get("secretName") for secret in pod.get("imagePullSecret", [])]
        if image in self.private and self.private[image] not in secrets:
            return f'ImagePullBackOff: Back-off pulling image "{image}"'
        for mount in pod.get("pvcMount", []):
            name = mount["pvcNameParameter"]["runtimeValue"]["constant"]
            if name not in self.claims:
                return f'persistentvolumeclaim "{name}" not found'
            if task in WRITERS and user not in (0, self.claims[name]):
                return f"PermissionError: [Errno 13] Permission denied: '{mount['mountPath']}/datasets'"
        return None

    def _user(self, pod: dict[str, Any]) -> int:
        given = pod.get("securityContext", {}).get("runAsUser") if self.reads_security_context else None
        return IMAGE_USER if given is None else int(given)

    def _untolerated(self, pod: dict[str, Any]) -> str | None:
        for key, value in self.taints.items():
            if not any(tolerates(toleration, key, value) for toleration in pod.get("tolerations", [])):
                return f"{key}: {value}"
        return None


def tolerates(toleration: dict[str, Any], key: str, value: str) -> bool:
    """Return whether a toleration matches a taint; the effect is NoSchedule, as cloud providers set it on GPU nodes."""
    if toleration.get("effect", "") not in ("", "NoSchedule") or toleration.get("key", key) != key:
        return False
    return bool(toleration.get("operator") == "Exists" or toleration.get("value", "") == value)
