"""`slipway setup --target kubeflow`: the rights of the step train, as a manifest, and whether the cluster has them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from slipway.components.train.trainjob import rights
from slipway.components.train.trainjob.cluster import (
    CALL_SECONDS,
    NOT_FOUND,
    Cluster,
    DeniedError,
    ExpectedError,
    NoClusterError,
)
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.config.kubeflow import KubeflowSettings
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.platforms.kubeflow.server import Server
from slipway.pipelines.platforms.kubeflow.training import uses_train_job

# Namespace and service accounts of Kubeflow Pipelines without profiles, and the account of a profile. Source:
# DEFAULTPIPELINERUNNERSERVICEACCOUNT in manifests/kustomize of kubeflow/pipelines.
NAMESPACE, ACCOUNT, PROFILE_ACCOUNT = "kubeflow", "pipeline-runner", "default-editor"
SHARED = "ReadWriteMany"
ADMINISTRATOR = "as an administrator of the namespace: slipway setup --target kubeflow | kubectl apply -f -"


@dataclass(frozen=True)
class Calls:
    """The calls of the Kubernetes API for one kind of object."""

    read: Callable[..., Any]
    create: Callable[..., Any]
    patch: Callable[..., Any]


def namespace_of(settings: KubeflowSettings) -> str:
    """Return the namespace of the pods."""
    return settings.namespace or NAMESPACE


def manifests(settings: KubeflowSettings) -> list[JsonObject]:
    """Return the Role and the RoleBinding for the service account of the pods.

    Raises:
        UserError: The account is not configured, and the server, whose default it is, cannot be reached.
    """
    account = settings.service_account or (PROFILE_ACCOUNT if Server(settings).namespace else ACCOUNT)
    namespace = namespace_of(settings)
    return [rights.role(namespace), rights.role_binding(namespace, account)]


def connect(settings: KubeflowSettings) -> Cluster:
    """Return the cluster of the kubeconfig."""
    return Cluster(namespace_of(settings), context=settings.context, fix=ADMINISTRATOR)


def missing(cluster: Cluster, wanted: list[JsonObject]) -> list[JsonObject]:
    """Return the objects that the cluster does not have, or has with other rules or without the account."""
    return [body for body in wanted if not _holds(_found(cluster, body), body)]


def apply(cluster: Cluster, body: JsonObject) -> str:
    """Create an object, or change it; return what was done."""
    found, calls = _found(cluster, body), _calls(cluster)[body["kind"]]
    name, what = body["metadata"]["name"], f"{body['kind']} {body['metadata']['name']}"
    if found is None:
        call = partial(calls.create, cluster.namespace, body, _request_timeout=CALL_SECONDS)
        cluster.call(f"create the {what}", call)
        return "created"
    if _holds(found, body):
        return "unchanged"
    if body["kind"] == "RoleBinding":  # keep the other accounts
        body = {**body, "subjects": [*found.get("subjects", ()), *body["subjects"]]}
    cluster.call(
        f"change the {what}", partial(calls.patch, name, cluster.namespace, body, _request_timeout=CALL_SECONDS)
    )
    return "changed"


def check_before_run(settings: KubeflowSettings, hardware: Hardware) -> None:
    """Raise UserError if the cluster of the configured context cannot run a TrainJob, or lacks the volume."""
    if settings.context is None:
        return
    if uses_train_job(settings, hardware):
        connect(settings).check_operator()
    with contextlib.suppress(DeniedError, NoClusterError):  # the steps' account may have the right
        check_volume(settings, hardware)


def check_volume(settings: KubeflowSettings, hardware: Hardware) -> str:
    """Return the volume with its access modes.

    Raises:
        UserError: It does not exist, or pods on several nodes cannot mount it.
    """
    cluster, name = connect(settings), settings.volume
    claims = cluster.core.read_namespaced_persistent_volume_claim
    call = partial(claims, name, cluster.namespace, _request_timeout=CALL_SECONDS)
    try:
        found = cluster.call(f"read the PersistentVolumeClaim {name}", call, but=NOT_FOUND)
    except ExpectedError:
        raise UserError(
            f"The namespace {cluster.namespace} has no PersistentVolumeClaim {name}.",
            setting="kubeflow.volume",
            value=name,
            fix=f"kubectl -n {cluster.namespace} get pvc; then --set kubeflow.volume=CLAIM",
        ) from None
    modes = list(found.spec.access_modes or ())
    if uses_train_job(settings, hardware) and SHARED not in modes:
        raise UserError(
            f"The PersistentVolumeClaim {name} has the access modes {', '.join(modes)}; {hardware.hosts + 1} pods on "
            "several nodes mount it at once: the step's and the TrainJob's.",
            setting="kubeflow.volume",
            value=name,
            allowed=f"a claim with the access mode {SHARED}, such as of Filestore, EFS or NFS",
            fix="--set kubeflow.volume=CLAIM",
        )
    return f"{name} ({', '.join(modes)})"


def _calls(cluster: Cluster) -> dict[str, Calls]:
    from kubernetes.client import RbacAuthorizationV1Api

    api = RbacAuthorizationV1Api(cluster.api)
    return {
        "Role": Calls(api.read_namespaced_role, api.create_namespaced_role, api.patch_namespaced_role),
        "RoleBinding": Calls(
            api.read_namespaced_role_binding,
            api.create_namespaced_role_binding,
            api.patch_namespaced_role_binding,
        ),
    }


def _found(cluster: Cluster, body: JsonObject) -> JsonObject | None:
    """Return the cluster's object of the same kind and name as plain values."""
    name = body["metadata"]["name"]
    call = partial(_calls(cluster)[body["kind"]].read, name, cluster.namespace, _request_timeout=CALL_SECONDS)
    try:
        found = cluster.call(f"read the {body['kind']} {name}", call, but=NOT_FOUND)
    except ExpectedError:
        return None
    plain: JsonObject = cluster.api.sanitize_for_serialization(found)
    return plain


def _holds(found: JsonObject | None, body: JsonObject) -> bool:
    """Return whether an existing object grants what the wanted one does."""
    if found is None:
        return False
    for key in ("rules", "subjects"):
        have = found.get(key) or ()
        if any(not any(one.items() <= other.items() for other in have) for one in body.get(key, ())):
            return False
    return True
