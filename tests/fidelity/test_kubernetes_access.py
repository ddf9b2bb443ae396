"""Who may do what on a Kubernetes API server: tokens, roles and bindings, and what Slipway's Role allows."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.components.train.trainjob import manifest
from slipway.components.train.trainjob.cluster import Cluster as TrainJobCluster
from slipway.pipelines.platforms.kubeflow import access
from tests.fakes.kubernetes.server import NAMESPACE
from tests.fidelity.kubernetes_client import (
    STEP,
    TRAINER,
    Clients,
    Cluster,
    eventually,
    grant,
    pod,
    refused,
    runtime,
    train_job,
)
from tests.pipelines.platforms.kubeflow.conftest import configuration

pytestmark = pytest.mark.slow
DEFAULT = f"system:serviceaccount:{NAMESPACE}:default"


def test_a_caller_without_a_token_is_anonymous(cluster: Cluster, admin: Clients) -> None:
    """Without a token the server answers 403, with an unknown one 401.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.api.configuration.refresh_api_key_hook = None
    admin.api.configuration.api_key.clear()
    text = 'User "system:anonymous" cannot list resource "trainjobs" in API group "trainer.kubeflow.org"'
    listing = admin.custom.list_namespaced_custom_object
    found = refused(403, text, listing, *TRAINER, NAMESPACE, "trainjobs")
    assert found["details"] == {"group": TRAINER[0], "kind": "trainjobs"}
    admin.api.configuration.api_key["authorization"] = "Bearer expired"
    refused(401, "Unauthorized", listing, *TRAINER, NAMESPACE, "trainjobs")


def test_a_service_account_without_a_role_may_not_create_trainjobs(cluster: Cluster, admin: Clients) -> None:
    """RBAC denies what no rule of a bound role allows.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    step = Clients(cluster, STEP)
    refused(403, "is forbidden: User", step.create, "trainjobs", train_job())
    grant(admin, {"apiGroups": [TRAINER[0]], "resources": ["trainjobs"], "verbs": ["create"]})
    admin.create("trainingruntimes", runtime())
    eventually(lambda: step.create("trainjobs", train_job()))
    refused(403, "cannot get resource", step.get, "trainjobs")


def test_the_role_of_a_binding_cannot_change(admin: Clients) -> None:
    """A RoleBinding's roleRef is immutable.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    grant(admin)
    other = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "other"}
    patch = admin.rbac.patch_namespaced_role_binding
    refused(422, "cannot change roleRef", patch, "slipway", NAMESPACE, {"roleRef": other})


def test_nobody_grants_more_rights_than_they_have(cluster: Cluster, admin: Clients) -> None:
    """A Role with rights that its author lacks is 403, as is a binding to it; one to a missing Role is 404.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs; the verb bind:
    https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
    """
    author = Clients(cluster, DEFAULT)
    kinds = {"apiGroups": [manifest.RBAC], "resources": ["roles", "rolebindings"], "verbs": ["create", "get"]}
    grant(admin, kinds, account="default")
    role, binding = manifest.role(NAMESPACE), manifest.role_binding(NAMESPACE, "pipeline-runner")
    eventually(lambda: author.rbac.create_namespaced_role(NAMESPACE, {"metadata": {"name": "empty"}}))
    text = f'"slipway-train" is forbidden: user "{DEFAULT}" (groups=["system:serviceaccounts"'
    message = refused(403, text, author.rbac.create_namespaced_role, NAMESPACE, role)["message"]
    assert 'is attempting to grant RBAC permissions not currently held:\n{APIGroups:[""], Resources:["' in message
    bind = author.rbac.create_namespaced_role_binding
    refused(404, "not found", bind, NAMESPACE, binding)
    admin.rbac.create_namespaced_role(NAMESPACE, role)
    refused(403, "not currently held", bind, NAMESPACE, binding)
    more = {"apiGroups": [manifest.RBAC], "resources": ["roles"], "verbs": ["bind"]}
    admin.rbac.patch_namespaced_role("slipway", NAMESPACE, {"rules": [kinds, more]})
    eventually(lambda: bind(NAMESPACE, binding))


# Slipway itself


def test_setup_grants_what_a_training_needs(cluster: Cluster, admin: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step creates its objects with Strict validation, reads and deletes them, and lists pods and events.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs; all nine rights are needed and enough.
    """
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig()))
    settings = configuration("cpu*2", service_account="pipeline-runner").kubeflow
    connected, wanted = access.connect(settings), access.manifests(settings)
    for done in ("created", "unchanged"):
        assert [access.apply(connected, body) for body in wanted] == [done] * 2
    assert (access.missing(connected, wanted), access.missing_field(connected, settings)) == ([], None)
    made = admin.core.create_namespaced_pod(NAMESPACE, pod(container={"name": manifest.CONTAINER}))
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(STEP)))
    step, raw = TrainJobCluster(), Clients(cluster, STEP)
    eventually(lambda: raw.core.list_namespaced_pod(NAMESPACE))
    step.check_operator()
    bodies = training(manifest.Owner("p", made.metadata.uid))
    for new in (True, False):
        assert [step.create(body) for body in bodies] == [new] * 2
    for body in reversed(bodies):
        found = step.get(body["kind"], "job")
        assert found is not None
        assert found["metadata"]["ownerReferences"][0]["uid"] == made.metadata.uid
        step.delete(body["kind"], "job")
    assert (step.pods("other"), step.event("other", "type=Warning")) == ([], None)
    assert list(step.log_lines("p", "", follow=False)) == []
    refused(403, "cannot create resource", raw.core.create_namespaced_pod, NAMESPACE, pod())


def training(owner: manifest.Owner) -> list[Any]:
    """Return the objects of a training on two pools with GPUs."""
    container = {"image_uri": "slipway:1", "command": ["python"], "args": ["-c", "$(HOME)"]}
    pool: Any = {"machine_spec": {}, "container_spec": container, "replica_count": 2}
    resources = {"cpu": "0.5", "memory": "1Gi", "nvidia.com/gpu": "1"}
    settings = manifest.TrainJobSettings(volume="slipway", folder="/mnt/slipway", run_as_user=1000, resources=resources)
    return [
        manifest.training_runtime("job", owner, 1, [pool, pool], "/mnt/slipway/x", settings),
        manifest.train_job("job", owner, 1, "/mnt/slipway/x", settings),
    ]
