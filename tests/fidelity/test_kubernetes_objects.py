"""Which objects a Kubernetes API server accepts, and what it fills in: its own kinds and Kubeflow Trainer's CRDs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from slipway.components.train.trainjob import manifest
from tests.fakes.kubernetes.server import NAMESPACE
from tests.fidelity.kubernetes_client import TRAINER, Clients, labelled, pod, refused, runtime, train_job

pytestmark = pytest.mark.slow


def owned(*owners: dict[str, Any]) -> dict[str, Any]:
    references = [{"apiVersion": "v1", "kind": "Pod", "name": "a", **owner} for owner in owners]
    return {**runtime(), "metadata": {"name": "job", "ownerReferences": references}}


# Validation


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**runtime(), "metadata": {}}, "[metadata.name: Required value: name or generateName is required, <nil>: "),
        ({**runtime(), "metadata": {"name": "Job_1"}}, 'metadata.name: Invalid value: "Job_1": a lowercase RFC 1123'),
        ({**runtime(), "metadata": {"name": "a" * 254}}, "must be no more than 253 "),
        ({**runtime(), "metadata": {"name": "a..b"}}, 'metadata.name: Invalid value: "a..b": a lowercase RFC 1123'),
        (labelled(**{"a b": "c"}), 'metadata.labels: Invalid value: "a b": name part must consist of alphanumeric'),
        (labelled(run="a b"), 'metadata.labels: Invalid value: "a b": a valid label must be an empty string or'),
        (labelled(run="b" * 64), "metadata.labels: Invalid value: "),
        (labelled("annotations", **{"a b": "c"}), 'metadata.annotations: Invalid value: "a b": name part must'),
        (labelled("annotations", a="b" * 300000), "[metadata.annotations: Too long: may not be more than 262144"),
        (owned({}), 'metadata.ownerReferences.uid: Invalid value: "": must not be empty'),
        (owned({"uid": ""}), 'metadata.ownerReferences.uid: Invalid value: "": must not be empty'),
        (owned(*[{"uid": uid, "controller": True} for uid in "ab"]), "metadata.ownerReferences: Invalid value: [{"),
    ],
)
def test_metadata_that_breaks_a_rule_is_invalid(admin: Clients, body: dict[str, Any], message: str) -> None:
    """Names, labels, annotations and owners have rules of their own, which hold for every kind.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    refused(422, message, admin.create, "trainingruntimes", body)


PODS = "spec.template.spec.replicatedJobs[0].template.spec.template.spec"
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": "1"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (runtime(container={"name": None}), f"[{PODS}.containers[0].name: Required value, <nil>: Invalid value: null"),
        (runtime(containers=None), f"[{PODS}.containers: Required value, <nil>: "),
        (runtime(volumes=[{"emptyDir": {}}]), f"[{PODS}.volumes[0].name: Required value, <nil>: "),
        (runtime(container={"resources": {"limits": {"cpu": "1x"}}}), f"{PODS}.containers[0].resources.limits.cpu: "),
        (runtime(container={"resources": {"limits": {"memory": "1K"}}}), ".limits.memory: Invalid value: "),
        (runtime(container={"resources": {"limits": {"cpu": 0.5}}}), f"[{PODS}.containers[0].resources.limits.cpu: "),
        (runtime(container={"env": [{"name": "A", "value": 1}]}), f"[{PODS}.containers[0].env[0].value: Invalid value"),
        (runtime(container={"env": [{"name": "A"}] * 2}), '.containers[0].env[1]: Duplicate value: {"name":"A"}'),
        (runtime(container={"livenessProbe": PROBE}), f"[{PODS}.containers[0].livenessProbe.periodSeconds: Invalid "),
        (runtime(nodeSelector={"a": 1}), f"[{PODS}.nodeSelector.a: Invalid value: "),
        (runtime(securityContext={"runAsUser": "1"}), f"[{PODS}.securityContext.runAsUser: Invalid value: "),
        (runtime(imagePullSecrets=["a"]), f"[{PODS}.imagePullSecrets[0]: Invalid value: "),
    ],
)
def test_a_runtimes_pods_that_break_the_crds_structure_are_invalid(
    admin: Clients, body: dict[str, Any], message: str
) -> None:
    """Types, required fields, quantities and unique names are checked; after some errors, other rules are not.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    body = copy.deepcopy(body)
    inner = body["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    for holder in (inner, *(inner["containers"] or ())):
        for key in [key for key, value in holder.items() if value is None]:
            del holder[key]
    refused(422, message, admin.create, "trainingruntimes", body)


def test_a_runtimes_replicated_jobs_and_policies_are_unique(admin: Clients) -> None:
    """Two replicated jobs of one name, and policies of two frameworks, are invalid; a number of nodes is a number.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    twice = runtime()
    twice["spec"]["template"]["spec"]["replicatedJobs"] *= 2
    message = 'spec.template.spec.replicatedJobs[1]: Duplicate value: {"name":"node"}'
    refused(422, message, admin.create, "trainingruntimes", twice)
    for policy, text in (
        ({"torch": {}, "mpi": {}}, "spec.mlPolicy: Invalid value: "),
        ({"numNodes": "two"}, '[spec.mlPolicy.numNodes: Invalid value: "string": spec.mlPolicy.numNodes in body must'),
    ):
        body = runtime()
        body["spec"]["mlPolicy"] = policy
        refused(422, text, admin.create, "trainingruntimes", body)


@pytest.mark.parametrize(
    "body",
    [
        runtime(restartPolicy="Sometimes"),
        runtime(tolerations=[{"key": "a", "operator": "Maybe"}]),
        runtime(job={"completionMode": "Odd"}),
        runtime(job={"backoffLimit": -1}),
        runtime(container={"env": [{"name": "1 A"}]}),
        runtime(container={"image": None}),
        runtime(container={"resources": {"limits": {"cpu": 2}}}),
        labelled("finalizers") | {"metadata": {"name": "job", "finalizers": ["slipway/x"]}},
        {key: value for key, value in runtime().items() if key != "spec"},
    ],
)
def test_a_crd_does_not_know_the_values_that_a_pod_may_have(admin: Clients, body: dict[str, Any]) -> None:
    """The API server accepts a runtime whose Jobs or pods it will refuse.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    assert admin.create("trainingruntimes", body)["metadata"]["namespace"] == NAMESPACE


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (train_job("1job"), "metadata.name must match RFC 1035 DNS label format"),
        (train_job("j" * 64), "metadata.name must be no more than 63 characters"),
        (train_job(trainer={"args": ["x"] * 129}), "[spec.trainer.args: Too many: 129: must have at most 128 items, <"),
        (train_job(trainer={"env": [{"name": "A"}] * 2}), 'spec.trainer.env[1]: Duplicate value: {"name":"A"}'),
        (train_job(managedBy="me"), "ManagedBy must be trainer.kubeflow.org/trainjob-controller or"),
        (train_job(trainer={"numNodes": "two"}), '[spec.trainer.numNodes: Invalid value: "string": spec.trainer.num'),
        (train_job(activeDeadlineSeconds=0), "in body should be greater than or equal to 1"),
        (train_job(suspend="yes"), '[spec.suspend: Invalid value: "string": spec.suspend in body must be of type bool'),
        (train_job(runtimeRef={"kind": "TrainingRuntime"}), "[spec.runtimeRef.name: Required value, <nil>: Invalid "),
        ({**train_job(), "spec": {}}, "[spec.runtimeRef: Required value, <nil>: Invalid value: null: some validation "),
    ],
)
def test_a_trainjob_that_breaks_a_rule_of_the_crd_is_invalid(admin: Clients, job: dict[str, Any], message: str) -> None:
    """The server answers 422 with the field and the rule, as message and as a cause of the details.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", runtime())
    details = refused(422, message, admin.create, "trainjobs", job)["details"]
    assert (details["group"], details["kind"]) == (TRAINER[0], "TrainJob")
    assert details["causes"][0].keys() == {"reason", "message", "field"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            pod(serviceAccountName="none"),
            403,
            'looking up service account kubeflow/none: serviceaccount "none" not',
        ),
        (pod(priorityClassName="none"), 403, "no PriorityClass with name none was found"),
        (
            pod(container={"volumeMounts": [{"name": "x", "mountPath": "/x"}]}),
            422,
            "volumeMounts[0].name: Not found:",
        ),
        (pod(container={"image": ""}), 422, 'Pod "p" is invalid: spec.containers[0].image: Required value'),
        (pod(volumes=[{"name": "a.b", "emptyDir": {}}]), 422, 'spec.volumes[0].name: Invalid value: "a.b": '),
        (pod(volumes=[{"name": "a" * 64, "emptyDir": {}}]), 422, "spec.volumes[0].name: Invalid value: "),
        (pod(container={"resources": {"limits": {"memory": "1K"}}}), 400, "unable to parse quantity's suffix"),
        (
            {**pod(), "metadata": {"name": "p_3"}},
            422,
            'metadata.name: Invalid value: "p_3": a lowercase RFC 1123 sub',
        ),
    ],
)
def test_a_pod_that_cannot_run_is_refused(admin: Clients, body: dict[str, Any], status: int, message: str) -> None:
    """What a pod refers to must exist, and its volumes and mounts have names.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs; volumes' names are DNS labels.
    """
    refused(status, message, admin.core.create_namespaced_pod, NAMESPACE, body)


def test_the_mounts_of_a_container_have_different_paths(admin: Clients) -> None:
    """Two volumes at one path are invalid.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    names = ("a", "b")
    mounts = [{"name": name, "mountPath": "/gcs"} for name in names]
    volumes = [{"name": name, "emptyDir": {}} for name in names]
    body = pod(volumes=volumes, container={"volumeMounts": mounts})
    message = 'spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/gcs": must be unique'
    refused(422, message, admin.core.create_namespaced_pod, NAMESPACE, body)


def test_a_volume_claim_and_a_role_need_their_contents(admin: Clients) -> None:
    """A claim has a size, a rule has verbs, a service account has a valid name.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    claim = {"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    create = admin.core.create_namespaced_persistent_volume_claim
    refused(422, "spec.resources[storage]: Required value", create, NAMESPACE, claim)
    role: dict[str, Any] = {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"]}]}
    message = "rules[0].verbs: Required value: verbs must contain at least one value"
    refused(
        422,
        message,
        admin.rbac.create_namespaced_role,
        NAMESPACE,
        {**role, "rules": [{**role["rules"][0], "verbs": []}]},
    )
    refused(422, "may not contain '/'", admin.rbac.create_namespaced_role, NAMESPACE, {"metadata": {"name": "a/b"}})
    binding = manifest.role_binding(NAMESPACE, "A B")
    message = 'subjects[0].name: Invalid value: "A B": a lowercase RFC 1123 subdomain must consist of lower case alph'
    refused(422, message, admin.rbac.create_namespaced_role_binding, NAMESPACE, binding)


# Defaults


def test_the_server_fills_in_the_defaults_of_the_crds(admin: Clients) -> None:
    """A replicated job has a group, a TrainJob its manager and the kind and group of its runtime.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    made = admin.create("trainingruntimes", runtime())
    assert made["spec"]["template"]["spec"]["replicatedJobs"][0]["groupName"] == "default"
    spec = admin.create("trainjobs", train_job())["spec"]
    assert (spec["managedBy"], spec["suspend"]) == ("trainer.kubeflow.org/trainjob-controller", False)


def test_the_server_fills_in_the_defaults_of_a_pod(admin: Clients) -> None:
    """The image's tag decides the pull policy; resources are an empty object.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs; the policy:
    https://kubernetes.io/docs/concepts/containers/images/#imagepullpolicy-defaulting
    """
    images = {"a": ("image", "Always"), "b": ("host:5000/image", "Always"), "c": ("image:1", "IfNotPresent")}
    for name, (image, policy) in images.items():
        body = {**pod(container={"image": image}), "metadata": {"name": name}}
        made = admin.core.create_namespaced_pod(NAMESPACE, body)
        (container,) = made.spec.containers
        assert (container.image_pull_policy, container.resources.limits) == (policy, None)
        assert (made.spec.restart_policy, made.spec.service_account_name) == ("Always", "default")
