"""The rights that the step train needs on a cluster to train by a TrainJob: a Role and its RoleBinding."""

from __future__ import annotations

from slipway.components.train.trainjob.manifest import GROUP
from slipway.core.values import JsonObject

NAME = "slipway-train"
RBAC = "rbac.authorization.k8s.io"
RULES: tuple[JsonObject, ...] = (
    {"apiGroups": [GROUP], "resources": ["trainjobs", "trainingruntimes"], "verbs": ["create", "get", "delete"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
)


def role(namespace: str) -> JsonObject:
    """Return the Role with the rights of the step."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": NAME, "namespace": namespace},
        "rules": list(RULES),
    }


def role_binding(namespace: str, service_account: str) -> JsonObject:
    """Return the RoleBinding that gives the service account of the step's pod these rights."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": NAME, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": service_account, "namespace": namespace}],
    }
