"""What a Kubeflow Pipelines server and its cluster do with a run's pods, driven through the real kfp client.

The configuration is Slipway's, so that each rule is met by the spec that `slipway run --target kubeflow` submits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.platforms.kubeflow import launch
from slipway.pipelines.runs.record import RunRecord
from tests.fakes.kubeflow import FakeKubeflow
from tests.fakes.kubeflow_pods import Cluster
from tests.fakes.webhook import FakeWebhook
from tests.pipelines.platforms.kubeflow.conftest import IMAGE, configuration


class Nobody:
    """A watcher that ignores the events."""

    def event(self, record: RunRecord, event: dict[str, Any]) -> None: ...


@pytest.fixture
def kubeflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeKubeflow]:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.01")
    monkeypatch.setattr("slipway.pipelines.platforms.kubeflow.launch.POLL_SECONDS", 0)
    monkeypatch.setattr("kfp.client.client.time", SimpleNamespace(sleep=lambda _seconds: None))
    monkeypatch.chdir(tmp_path)
    with FakeKubeflow() as server:
        yield server


@pytest.fixture
def webhook() -> Iterator[FakeWebhook]:
    with FakeWebhook() as server:
        yield server


def outcome(server: FakeKubeflow, hardware: str = "cpu", **settings: Any) -> tuple[str, str | None, str]:
    """Run to the end; return the status, the failed step and the error's message."""
    folder, _ = launch.submit(configuration(hardware, host=server.host, **settings))
    record = launch.watch(folder, Nobody())
    error = record.error
    return record.status, error and error.step, error.message if error else ""


def test_a_new_claim_is_writable_only_for_root(kubeflow: FakeKubeflow) -> None:
    """A container of another user cannot write to a claim's folder, root:root 0755, without fsGroup.

    Source (reported): https://kubernetes.io/docs/tasks/configure-pod-container/security-context/ (fsGroup: "If unset,
    the Kubelet will not modify the ownership and permissions of any volume"); reported in kubernetes/kubernetes#2630
    and kubeflow/pipelines#3866.
    """
    status, step, message = outcome(kubeflow, run_as_user=None)
    assert (status, step) == ("failed", "prepare_data")
    assert "Permission denied: '/mnt/slipway/datasets'" in message
    assert outcome(kubeflow)[0] == "succeeded"


def test_a_claim_that_belongs_to_the_images_user_needs_no_root(kubeflow: FakeKubeflow) -> None:
    """A folder that was given to uid 65534 once is writable for containers of the image's own user.

    Source (read): https://kubernetes.io/docs/tasks/configure-pod-container/security-context/ (discretionary access
    control).
    """
    kubeflow.cluster.claims["slipway"] = 65534
    assert outcome(kubeflow, run_as_user=None)[0] == "succeeded"


def test_an_old_server_ignores_the_security_context(kubeflow: FakeKubeflow) -> None:
    """The driver parses a task's platform settings with AllowUnknownFields, so an older server drops a newer field.

    Source (read): UnmarshalString and parseExecConfigJSON in backend/src of kubeflow/pipelines; the field
    securityContext was added by kubeflow/pipelines#12832 in 2026.
    """
    kubeflow.cluster.reads_security_context = False
    status, step, message = outcome(kubeflow)
    assert (status, step, "Permission denied" in message) == ("failed", "prepare_data", True)


def test_a_restricted_namespace_refuses_root(kubeflow: FakeKubeflow) -> None:
    """The Pod Security Standard "restricted" demands runAsNonRoot, and no runAsUser 0; the rest, the server sets.

    Source (recorded): the server's pod sent to kube-apiserver 1.36.2 in a namespace with the label
    pod-security.kubernetes.io/enforce=restricted: 201 only with runAsNonRoot.
    """
    kubeflow.cluster.restricted = True
    status, _, message = outcome(kubeflow)
    assert status == "failed"
    assert 'violates PodSecurity "restricted:latest"' in message
    kubeflow.cluster.claims["slipway"] = 65534
    assert "must set securityContext.runAsNonRoot=true" in outcome(kubeflow, run_as_user=None)[2]
    assert outcome(kubeflow, run_as_user=65534)[0] == "succeeded"


def test_root_has_no_capabilities_in_a_task(kubeflow: FakeKubeflow) -> None:
    """The driver drops all capabilities with a security context, so root cannot write to another user's folder.

    Source (read): extendPodSpecPatch in backend/src/v2/driver/k8s.go of kubeflow/pipelines.
    """
    kubeflow.cluster.claims["slipway"] = 65534
    assert "Permission denied: '/mnt/slipway/datasets'" in outcome(kubeflow)[2]


@pytest.mark.parametrize(
    ("claim", "folder", "reason"),
    [
        ("team.data", "/data", 'spec.volumes[9].name: Invalid value: "team.data"'),
        ("a" * 64, "/data", 'aaa": must be no more than 63 bytes'),
        ("gcs-scratch", "/data", 'spec.volumes[9].name: Duplicate value: "gcs-scratch"'),
        ("tmp-dir-argo", "/data", 'spec.volumes[9].name: Duplicate value: "tmp-dir-argo"'),
        ("claim", "/gcs", 'mountPath: Invalid value: "/gcs": must be unique'),
        ("claim", "/kfp-launcher", 'mountPath: Invalid value: "/kfp-launcher": must be unique'),
    ],
)
def test_the_volume_of_a_pod_has_the_name_of_the_claim(claim: str, folder: str, reason: str) -> None:
    """The driver names the volume after the claim, beside the volumes that every pod has; Slipway refuses first.

    Source (recorded): such pods sent to kube-apiserver 1.36.2. Source (read): makeVolumeMountPatch in
    backend/src/v2/driver/k8s.go and addContainerExecutorTemplate in backend/src/v2/compiler/argocompiler/container.go.
    """
    mount = {"pvcNameParameter": {"runtimeValue": {"constant": claim}}, "mountPath": folder}
    found = Cluster({claim: 0}).problem("train", "trainer", {"image": IMAGE}, {"pvcMount": [mount]})
    assert found is not None
    assert found.startswith('Pod "train" is invalid: ')
    assert reason in found
    with pytest.raises(UserError, match=r"volume of this name|must be at most 63|volume at this path"):
        configuration(volume=claim, folder=folder)


def test_the_processes_of_several_gpus_need_shared_memory(kubeflow: FakeKubeflow) -> None:
    """A container's /dev/shm has 64 MiB, which NCCL exceeds; a volume in memory at this path has no such limit.

    Source (reported): NVIDIA/nccl#525 and kubeflow/pipelines#9893. Source (read): EmptyDirMount in
    kubernetes_executor_config.proto of kubeflow/pipelines, since #10913.
    """
    bare = {"image": IMAGE, "resources": {"accelerator": {"resourceCount": "2"}}}
    assert "shared memory segment" in str(kubeflow.cluster.problem("train", "trainer", bare, {}))
    assert outcome(kubeflow, "gpux2")[0] == "succeeded"


def test_a_security_context_has_no_fs_group(kubeflow: FakeKubeflow) -> None:
    """SecurityContext has runAsUser, runAsGroup and runAsNonRoot; the fake refuses other fields.

    The real server would drop them. Source (read): message SecurityContext in
    kubernetes_platform/proto/kubernetes_executor_config.proto of kubeflow/pipelines.
    """
    folder, _ = launch.submit(configuration(host=kubeflow.host))
    text = folder.specification_file.read_text().replace("runAsUser", "fsGroup")
    folder.specification_file.write_text(text)
    from kfp import Client

    client = Client(host=kubeflow.host)
    with pytest.raises(Exception, match=r"platform spec of .* cannot be read"):
        client.create_run_from_pipeline_package(
            str(folder.specification_file), arguments={"run_id": "r", "output": "/mnt/slipway/runs/r"}
        )


def test_a_private_image_needs_its_pull_secret(kubeflow: FakeKubeflow) -> None:
    """A pod without the registry's credentials waits with ImagePullBackOff.

    Source (read): https://kubernetes.io/docs/concepts/containers/images/#using-a-private-registry; the field is
    imagePullSecret in kubernetes_executor_config.proto of kubeflow/pipelines.
    """
    kubeflow.cluster.private[IMAGE] = "registry"
    status, _, message = outcome(kubeflow)
    assert (status, "ImagePullBackOff" in message) == ("failed", True)
    assert outcome(kubeflow, image_pull_secrets=["registry"])[0] == "succeeded"


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "value": "absent"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        (None, False),
    ],
    ids=json.dumps,
)
def test_a_tainted_node_needs_a_toleration(
    kubeflow: FakeKubeflow, toleration: dict[str, str] | None, tolerated: bool
) -> None:
    """A pod is scheduled on a tainted node only if it tolerates the taint: by key, value and effect.

    Source (read): https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/; GKE taints GPU nodes
    with nvidia.com/gpu=present:NoSchedule (https://cloud.google.com/kubernetes-engine/docs/how-to/gpus).
    """
    kubeflow.cluster.taints["nvidia.com/gpu"] = "present"
    status, step, message = outcome(kubeflow, "gpux1", tolerations=[toleration] if toleration else [])
    assert status == ("succeeded" if tolerated else "failed")
    if not tolerated:
        assert (step, "had untolerated taint {nvidia.com/gpu: present}" in message) == ("train", True)


def test_an_exit_task_runs_after_a_failure_and_does_not_change_the_outcome(
    kubeflow: FakeKubeflow, webhook: FakeWebhook
) -> None:
    """An exit task is a lifecycle hook of the workflow: it runs after a failure, and its own does not fail the run.

    Source (reported): kubeflow/pipelines#11470 ("so that the overall pipeline status is not impacted"); before it,
    servers reported a failed run as succeeded (#11405).
    """
    kubeflow.failures["train"] = "OOMKilled"
    assert outcome(kubeflow, notify={"webhook": webhook.url})[:2] == ("failed", "train")
    assert webhook.received[0]["status"] == "failed"
    kubeflow.failures = {"notify": "the pod was evicted"}
    assert outcome(kubeflow, notify={"webhook": webhook.url})[0] == "succeeded"


def test_a_server_before_2_14_refuses_a_final_status(kubeflow: FakeKubeflow, webhook: FakeWebhook) -> None:
    """The input PipelineTaskFinalStatus is supported since 2.14.0; older servers refuse the run.

    Source (reported): CHANGELOG.md of kubeflow/pipelines (#11953); the text is in argocompiler/dag.go before that, and
    reported in kubeflow/pipelines#11641.
    """
    kubeflow.knows_final_status = False
    with pytest.raises(UserError, match="task final status not supported yet") as refused:
        outcome(kubeflow, notify={"webhook": webhook.url})
    assert "2.14" in str(refused.value.fix)


def test_a_server_since_august_2026_refuses_root(kubeflow: FakeKubeflow) -> None:
    """A security context with runAsUser 0 is refused at submission, unless the administrator set a default user.

    Source (read): validateKubernetesSecurityContext in backend/src/v2/compiler/argocompiler of kubeflow/pipelines,
    since #13885.
    """
    kubeflow.refuses_root = True
    with pytest.raises(UserError, match=r"runAsUser=0 \(root\) is not allowed") as refused:
        outcome(kubeflow)
    assert "--set kubeflow.run_as_user=65534" in str(refused.value.fix)
    kubeflow.cluster.claims["slipway"] = 65534
    assert outcome(kubeflow, run_as_user=65534)[0] == "succeeded"


def test_an_unknown_service_account_starts_no_pod(kubeflow: FakeKubeflow) -> None:
    """A pod of a service account that does not exist is forbidden.

    Source (read): admission plugin ServiceAccount,
    https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
    """
    status, _, message = outcome(kubeflow, service_account="nobody")
    assert (status, 'serviceaccount "nobody" not found' in message) == ("failed", True)
    assert outcome(kubeflow, service_account="trainer")[0] == "succeeded"
