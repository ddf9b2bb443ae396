"""The manifests of a training on a Kubernetes cluster: a TrainingRuntime, its TrainJob, and the rights to create them.

The runtime has all that the pods are, and the TrainJob only refers to it: the fields by which a TrainJob changes the
pods of a shared runtime have another name in almost every release of the operator (podSpecOverrides,
podTemplateOverrides, runtimePatches). The operator makes a JobSet of the runtime, with one Job per worker pool.

Sources: https://github.com/kubeflow/trainer (manifests/base/crds, pkg/webhooks, pkg/runtime),
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/ and
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from slipway.components.worker_pools import WorkerPool, cluster_variables, variables_of
from slipway.core.exit_codes import LOCAL_CLUSTER_VARIABLE
from slipway.core.values import JsonObject
from slipway.trainer.distributed.cluster import pool_name, slice_hosts
from slipway.trainer.distributed.rendezvous import PEER_SECONDS_VARIABLE, VERTEX_PEER_SECONDS
from slipway.trainer.settings import Settings

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
# The operator's names for the Job that trains, and for the container in it (pkg/constants).
ANCESTOR_LABEL, ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step", "trainer"
CONTAINER = "node"
# Labels and annotations of pods, set by JobSet and the Job controller.
JOBSET_LABEL, POOL_LABEL = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
# https://kueue.sigs.k8s.io/docs/tasks/run/trainjobs/ and …/concepts/workload_priority_class/
QUEUE_LABEL, QUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
# Keeps all pods of a Job in one node pool, which is one TPU slice: https://jobset.sigs.k8s.io/docs/tasks/tpu_multislice/
EXCLUSIVE_ANNOTATION, NODE_POOL_LABEL = "alpha.jobset.sigs.k8s.io/exclusive-topology", "cloud.google.com/gke-nodepool"
# In a profile of Kubeflow, Istio adds its proxy to other pods, and replicas behind proxies cannot connect.
SIDECAR = {"sidecar.istio.io/inject": "false"}
TRY_ANNOTATION, OUTPUT_ANNOTATION = "slipway/try", "slipway/output"
# A pod's number in its Job. Kubernetes replaces it in variables that follow it, but not JOB_COMPLETION_INDEX, which the
# Job controller appends.
INDEX_VARIABLE = "SLIPWAY_REPLICA"
# The replicas listen here, as on Vertex AI.
PORT = 2222
# A step that was killed renews its lease no more: the kubelet then stops the replicas. Its pod remains for a day, so
# Kubernetes does not delete what it owns (TTL_SECONDS_AFTER_WORKFLOW_FINISH of Kubeflow Pipelines).
LEASE_FILE, LEASE_MINUTES, PROBE_SECONDS, PROBE_FAILURES = "lease", 10, 60, 3
# A pod's name is at most 63 characters: "-workerpool1-0-", an index up to 999 and a suffix of six follow this one.
LONGEST_NAME = 63 - 24
# The Role of the step train on the cluster, and its RoleBinding.
RIGHTS = "slipway-train"
RBAC = "rbac.authorization.k8s.io"
RULES: tuple[JsonObject, ...] = (
    {"apiGroups": [GROUP], "resources": ["trainjobs", "trainingruntimes"], "verbs": ["create", "get", "delete"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
)


class TrainJobSettings(Settings):
    """What the pods of a TrainJob have besides the worker pools' containers."""

    volume: str = Field(description="PersistentVolumeClaim that every pod mounts at `folder`.")
    folder: str = Field(description="Path of the volume in the pods.")
    resources: dict[str, str] = Field(default_factory=dict, description="Limits of each pod by resource.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels of the nodes.")
    tolerations: list[dict[str, str | int]] = Field(default_factory=list, description="Taints that the pods tolerate.")
    image_pull_secrets: list[str] = Field(default_factory=list, description="Secrets for the image's registry.")
    service_account: str | None = Field(default=None, description="Service account; null: the namespace's default.")
    run_as_user: int | None = Field(default=None, description="User id of the containers; null: the image's.")
    queue: str | None = Field(default=None, description="Kueue's LocalQueue; null: none.")
    priority_class: str | None = Field(
        default=None, description="WorkloadPriorityClass of Kueue with a `queue`, else the pods' PriorityClass."
    )


@dataclass(frozen=True)
class Owner:
    """The pod of the step train, with which Kubernetes deletes the objects that it owns."""

    name: str
    uid: str

    @property
    def reference(self) -> JsonObject:
        """Its entry in `ownerReferences`."""
        return {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid, "blockOwnerDeletion": False}


def name_of(output: str) -> str:
    """Return the name of the TrainJob that trains into `output`, so that no output directory ever has two."""
    run = posixpath.basename(output.rstrip("/")).lower()
    short = re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9-]+", "-", run))[: LONGEST_NAME - 9].strip("-") or "run"
    return f"{short}-{hashlib.sha256(output.encode()).hexdigest()[:8]}"


def training_runtime(
    name: str, owner: Owner, attempt: int, pools: Sequence[WorkerPool], output: str, settings: TrainJobSettings
) -> JsonObject:
    """Return the TrainingRuntime with the pods of all worker pools."""
    addresses = {
        number: [f"{host_name(name, number, index)}:{PORT}" for index in range(pool["replica_count"])]
        for number, pool in enumerate(pools)
        if pool
    }
    jobs = [
        _job(number, pool, _variables(addresses, number, pool, output), output, settings)
        for number, pool in enumerate(pools)
        if pool
    ]
    jobs[0]["template"]["metadata"] = {"labels": {ANCESTOR_LABEL: ANCESTOR}, **jobs[0]["template"].get("metadata", {})}
    policy = {"numNodes": jobs[0]["template"]["spec"]["parallelism"]}
    spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": jobs}}}
    return _object("TrainingRuntime", name, owner, attempt, output) | {"spec": spec}


def train_job(name: str, owner: Owner, attempt: int, output: str, settings: TrainJobSettings) -> JsonObject:
    """Return the TrainJob that runs the TrainingRuntime of the same name."""
    job = _object("TrainJob", name, owner, attempt, output)
    if settings.queue:
        job["metadata"]["labels"] = {QUEUE_LABEL: settings.queue}
        if settings.priority_class:
            job["metadata"]["labels"][QUEUE_PRIORITY_LABEL] = settings.priority_class
    return job | {"spec": {"runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": name}}}


def host_name(name: str, pool: int, index: int) -> str:
    """Return a pod's host name: the JobSet's headless service, which has the JobSet's name, resolves it."""
    return f"{name}-{pool_name(pool)}-0-{index}.{name}"


def _object(kind: str, name: str, owner: Owner, attempt: int, output: str) -> JsonObject:
    annotations = {TRY_ANNOTATION: str(attempt), OUTPUT_ANNOTATION: output}
    metadata = {"name": name, "annotations": annotations, "ownerReferences": [owner.reference]}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata}


def _job(
    number: int, pool: WorkerPool, variables: list[JsonObject], output: str, settings: TrainJobSettings
) -> JsonObject:
    """Return a pool as a ReplicatedJob: one pod per replica, or per host of a TPU slice."""
    hosts = slice_hosts(variables_of(pool))
    pods = pool["replica_count"] * hosts
    template: JsonObject = {
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,  # replicas restart together
            "template": {
                "metadata": {"labels": SIDECAR, "annotations": SIDECAR},
                "spec": _pod(pool, variables, output, settings),
            },
        }
    }
    if hosts > 1:
        template["metadata"] = {"annotations": {EXCLUSIVE_ANNOTATION: NODE_POOL_LABEL}}
    return {"name": pool_name(number), "replicas": 1, "template": template}


def _pod(pool: WorkerPool, variables: list[JsonObject], output: str, settings: TrainJobSettings) -> JsonObject:
    container_spec = pool["container_spec"]
    container: JsonObject = {
        "name": CONTAINER,
        "image": container_spec["image_uri"],
        "args": [_literal(argument) for argument in container_spec.get("args", ())],
        "env": variables,
        "resources": {"limits": settings.resources},
        "livenessProbe": _probe(f"{output}/{LEASE_FILE}"),
        "volumeMounts": [{"name": "slipway", "mountPath": settings.folder}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if container_spec.get("command"):
        container["command"] = [_literal(argument) for argument in container_spec["command"]]
    pod: JsonObject = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "slipway", "persistentVolumeClaim": {"claimName": settings.volume}},
            # The processes of several GPUs exchange tensors there; the container's own has 64 MiB.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "imagePullSecrets": [{"name": secret} for secret in settings.image_pull_secrets],
    }
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if settings.run_as_user is not None:
        pod["securityContext"] = {"runAsUser": settings.run_as_user}
    if settings.run_as_user:  # what the Pod Security Standard "restricted" demands of those that are not root
        pod["securityContext"] |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    if settings.priority_class and not settings.queue:
        pod["priorityClassName"] = settings.priority_class
    return pod


def _probe(lease: str) -> JsonObject:
    """Return the probe that fails once the lease is lost or old; without `find` or `grep`, only once it is lost."""
    # No $(…), which Kubernetes replaces, and nothing that BusyBox does not have.
    script = f'test -e "$1" && ! find "$1" -mmin +{LEASE_MINUTES} | grep -q .'
    return {
        "exec": {"command": ["sh", "-c", script, "sh", _literal(lease)]},
        "periodSeconds": PROBE_SECONDS,
        "failureThreshold": PROBE_FAILURES,
        "timeoutSeconds": 30,
    }


def _variables(addresses: Mapping[int, Sequence[str]], number: int, pool: WorkerPool, output: str) -> list[JsonObject]:
    """Return the environment of a pool's pods: as on Vertex AI, with the exit codes and waits of Slipway's clusters."""
    alone = len(addresses[number]) == 1
    place = f"$({INDEX_VARIABLE})"
    cluster = cluster_variables(addresses, number, 0 if alone else place)
    variables = {
        **variables_of(pool),
        "AIP_MODEL_DIR": f"{output}/model",
        "AIP_CHECKPOINT_DIR": f"{output}/checkpoints",
        "AIP_TENSORBOARD_LOG_DIR": f"{output}/logs",
        "PYTHONUNBUFFERED": "1",
        LOCAL_CLUSTER_VARIABLE: "1",
        PEER_SECONDS_VARIABLE: f"{VERTEX_PEER_SECONDS:g}",  # pods start when they have a node
    }
    index = {
        "name": INDEX_VARIABLE,
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}},
    }
    return [
        index,
        *({"name": name, "value": _literal(value)} for name, value in variables.items()),
        # The index is a number in the JSON.
        *({"name": name, "value": value.replace(f'"{place}"', place)} for name, value in cluster.items()),
    ]


def _literal(text: str) -> str:
    """Return a text in which Kubernetes replaces no $(VARIABLE)."""
    return text.replace("$", "$$")


def role(namespace: str) -> JsonObject:
    """Return the Role with the rights of the step."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": RIGHTS, "namespace": namespace},
        "rules": list(RULES),
    }


def role_binding(namespace: str, service_account: str) -> JsonObject:
    """Return the RoleBinding that gives the service account of the step's pod these rights."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": RIGHTS, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": RIGHTS},
        "subjects": [{"kind": "ServiceAccount", "name": service_account, "namespace": namespace}],
    }
