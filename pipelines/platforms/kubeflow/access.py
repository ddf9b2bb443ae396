"""`slipway setup --target kubeflow`: the rights of the step train, as a manifest, and whether the cluster has them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import yaml

from slipway.components.train.trainjob import manifest
from slipway.components.train.trainjob.cluster import (
    CALL_SECONDS,
    Cluster,
    DeniedError,
    NoClusterError,
)
from slipway.components.train.trainjob.manifest import GROUP, VERSION
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.platforms.kubeflow.server import RUN_AS_USER, Server
from slipway.pipelines.platforms.kubeflow.settings import KubeflowSettings
from slipway.pipelines.platforms.kubeflow.training import uses_train_job
from slipway.pipelines.terminal import console, print_json

# Namespace and service accounts of Kubeflow Pipelines without profiles, and the account of a profile. Source:
# DEFAULTPIPELINERUNNERSERVICEACCOUNT in manifests/kustomize of kubeflow/pipelines.
NAMESPACE, ACCOUNT, PROFILE_ACCOUNT = "kubeflow", "pipeline-runner", "default-editor"
SHARED = "ReadWriteMany"
# Kubernetes lets an account grant only what it may do itself, and the namespace's role `admin` has no TrainJobs:
# https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
_RIGHTS = "; ".join(f"{', '.join(rule['verbs'])} {', '.join(rule['resources'])}" for rule in manifest.RULES)
ADMINISTRATOR = (
    f"as an administrator of the cluster, or with an account that has the rights of the Role itself ({_RIGHTS}): "
    "slipway setup --target kubeflow | kubectl apply -f -"
)
KUEUE = "Kueue since 0.17"
# Fields of the specifications of the operator's kinds, the release that has them, and what needs them. Source of the
# last: kubernetes-sigs/kueue#11931, where TrainJobs stay suspended without it.
FIELDS = (
    ("TrainingRuntime", "mlPolicy", "2.0", "The step train"),
    ("TrainingRuntime", "template", "2.0", "The step train"),
    ("TrainJob", "runtimeRef", "2.0", "The step train"),
    ("TrainJob", "runtimePatches", "2.2", KUEUE),
)
ENFORCED = "pod-security.kubernetes.io/enforce"


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
    return [manifest.role(namespace), manifest.role_binding(namespace, account)]


def connect(settings: KubeflowSettings) -> Cluster:
    """Return the cluster of the kubeconfig.

    Raises:
        UserError: It has no such namespace, or one that forbids the configured user.
    """
    cluster = Cluster(namespace_of(settings), context=settings.context, fix=ADMINISTRATOR)
    name = cluster.namespace
    try:
        call = partial(cluster.core.read_namespace, name, _request_timeout=CALL_SECONDS)
        namespace = cluster.found(f"read the namespace {name}", call)
    except DeniedError:  # who may work in the namespace need not have the right to read it
        return cluster
    if namespace is None:
        raise UserError(
            f"The cluster has no namespace {name}.",
            setting="kubeflow.namespace",
            value=settings.namespace,
            fix=f"--set kubeflow.namespace=NAMESPACE, or kubectl create namespace {name}",
        )
    if (namespace.metadata.labels or {}).get(ENFORCED) == "restricted" and not settings.run_as_user:
        raise UserError(
            f"The namespace {name} enforces the Pod Security Standard restricted: pods need a user other than root.",
            setting="kubeflow.run_as_user",
            value=settings.run_as_user,
            fix=RUN_AS_USER,
        )
    return cluster


def missing_field(cluster: Cluster, settings: KubeflowSettings) -> str | None:
    """Return which field the cluster's release of Kubeflow Trainer lacks, and what needs it; None if it has all."""
    schemas = cluster.call("read the fields of TrainJobs", partial(_openapi, cluster))["components"]["schemas"]
    known = {
        described["kind"]: schema.get("properties", {}).get("spec", {}).get("properties", {})
        for schema in schemas.values()
        for described in schema.get("x-kubernetes-group-version-kind", ())
    }
    for kind, field, release, user in FIELDS:
        if field not in known.get(kind, {}) and (settings.queue or user != KUEUE):
            has = f"which Kubeflow Trainer has since {release} and this cluster's has not"
            return f"{user} needs the field spec.{field} of a {kind}, {has}"
    return None


def missing(cluster: Cluster, desired: list[JsonObject]) -> list[JsonObject]:
    """Return the objects that the cluster does not have, or has with other rules or without the account."""
    return [body for body in desired if not _holds(_found(cluster, body), body)]


def apply(cluster: Cluster, body: JsonObject) -> str:
    """Create an object, or change it; return what was done."""
    existing = _found(cluster, body)
    name, title = body["metadata"]["name"], f"{body['kind']} {body['metadata']['name']}"
    if existing is None:
        cluster.call(f"create the {title}", partial(_rbac(cluster, "create", body), body=body))
        return "created"
    if _holds(existing, body):
        return "unchanged"
    if existing.get("roleRef") != body.get("roleRef"):  # cannot be changed
        cluster.call(f"delete the {title}", partial(_rbac(cluster, "delete", body), name))
        apply(cluster, body)
        return f"replaced: it was of the {existing['roleRef']['kind']} {existing['roleRef']['name']}"
    if body["kind"] == "RoleBinding":  # keep the other accounts
        body = {**body, "subjects": [*existing.get("subjects", ()), *body["subjects"]]}
    cluster.call(f"change the {title}", partial(_rbac(cluster, "patch", body), name, body=body))
    return "changed"


def check_before_run(settings: KubeflowSettings, hardware: Hardware, *, searches: bool = False) -> None:
    """Raise UserError if the cluster of the configured context cannot run a TrainJob, or lacks the volume."""
    if settings.context is None:
        return
    if uses_train_job(settings, hardware, searches=searches):
        connect(settings).check_operator()
    with contextlib.suppress(DeniedError, NoClusterError):  # the steps' account may have the right
        check_volume(settings, hardware, searches=searches)


def check_volume(settings: KubeflowSettings, hardware: Hardware, *, searches: bool = False) -> str:
    """Return the volume with its access modes.

    Raises:
        UserError: It does not exist, or pods on several nodes cannot mount it.
    """
    cluster, name = connect(settings), settings.volume
    claims = cluster.core.read_namespaced_persistent_volume_claim
    call = partial(claims, name, cluster.namespace, _request_timeout=CALL_SECONDS)
    claim = cluster.found(f"read the PersistentVolumeClaim {name}", call)
    if claim is None:
        raise UserError(
            f"The namespace {cluster.namespace} has no PersistentVolumeClaim {name}.",
            setting="kubeflow.volume",
            value=name,
            fix=f"kubectl -n {cluster.namespace} get pvc; then --set kubeflow.volume=CLAIM",
        )
    modes = list(claim.spec.access_modes or ())
    if uses_train_job(settings, hardware, searches=searches) and SHARED not in modes:
        raise UserError(
            f"The PersistentVolumeClaim {name} has the access modes {', '.join(modes)}; {hardware.hosts + 1} pods on "
            "several nodes mount it at once: the step's and the TrainJob's.",
            setting="kubeflow.volume",
            value=name,
            allowed=f"a claim with the access mode {SHARED}, such as of Filestore, EFS or NFS",
            fix="--set kubeflow.volume=CLAIM",
        )
    return f"{name} ({', '.join(modes)})"


def _rbac(cluster: Cluster, verb: str, body: JsonObject) -> Callable[..., Any]:
    """Return the call of the Kubernetes API that does something with an object of the body's kind."""
    from kubernetes.client import RbacAuthorizationV1Api

    kinds = {"Role": "role", "RoleBinding": "role_binding"}
    call = getattr(RbacAuthorizationV1Api(cluster.api), f"{verb}_namespaced_{kinds[body['kind']]}")
    return partial(call, namespace=cluster.namespace, _request_timeout=CALL_SECONDS)


def _openapi(cluster: Cluster) -> JsonObject:
    """Return the OpenAPI document of TrainJobs, which every account with access to the API may read."""
    document: JsonObject = cluster.api.call_api(
        f"/openapi/v3/apis/{GROUP}/{VERSION}",
        "GET",
        header_params={"Accept": "application/json"},
        auth_settings=["BearerToken"],
        response_type="object",
        _return_http_data_only=True,
        _request_timeout=CALL_SECONDS,
    )
    return document


def _found(cluster: Cluster, body: JsonObject) -> JsonObject | None:
    """Return the cluster's object of the same kind and name as plain values."""
    name = body["metadata"]["name"]
    call = partial(_rbac(cluster, "read", body), name)
    existing = cluster.found(f"read the {body['kind']} {name}", call)
    plain: JsonObject | None = cluster.api.sanitize_for_serialization(existing)
    return plain


def _holds(existing: JsonObject | None, body: JsonObject) -> bool:
    """Return whether an existing object grants what the wanted one does."""
    if existing is None or existing.get("roleRef") != body.get("roleRef"):
        return False
    for key in ("rules", "subjects"):
        have = existing.get(key) or ()
        if any(not any(entry.items() <= other.items() for other in have) for entry in body.get(key, ())):
            return False
    return True


def setup(settings: KubeflowSettings, *, create: bool, as_json: bool) -> None:
    """Print the manifest of the rights that training by a TrainJob needs, or apply it with the kubeconfig."""
    bodies = manifests(settings)
    if not create:
        sys.stdout.write(json.dumps(bodies, indent=2) + "\n" if as_json else yaml.safe_dump_all(bodies))
        return
    cluster = connect(settings)
    rows = [{"kind": body["kind"], "name": body["metadata"]["name"], "result": apply(cluster, body)} for body in bodies]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            console.print(f"{row['kind']} {row['name']} in {cluster.namespace}: {row['result']}")
    cluster.check_operator()
