"""What a Kubernetes cluster with Kubeflow Trainer does with a TrainJob, driven through the real kubernetes client.

The rules of the API server itself are in test_kubernetes.py. TRAINER, JOBSET and KUEUE stand for the repositories
kubeflow/trainer, kubernetes-sigs/jobset and kubernetes-sigs/kueue.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.fakes.kubernetes.access import ADMIN
from tests.fakes.kubernetes.nodes import Node
from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes
from tests.fidelity import kubernetes_client
from tests.fidelity.kubernetes_client import API_VERSION, STEP, TRAINER, grant, owned_by, runtime, train_job

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(tmp_path) as fake:
        yield fake


class Clients(kubernetes_client.Clients):
    """The clients of one user, with what the tests wait for."""

    def __init__(self, cluster: FakeKubernetes, user: str = ADMIN) -> None:
        super().__init__(cluster, user)
        self.cluster = cluster

    def job(self) -> Any:
        return self.get("trainjobs")

    def submit(self, script: str = "true", *, metadata: dict[str, Any] | None = None, **pod: Any) -> None:
        """Create a runtime, whose two pods run a shell script, and a TrainJob."""
        self.create("trainingruntimes", runtime(script, **pod))
        self.create("trainjobs", train_job(metadata=metadata))

    def condition(self, kind: str) -> Any:
        """Wait for a condition of the TrainJob to be true, and return it."""

        def found() -> Any:
            conditions = self.job().get("status", {}).get("conditions", [])
            return next((one for one in conditions if (one["type"], one["status"]) == (kind, "True")), None)

        return self.cluster.wait(found)

    def pods(self) -> list[Any]:
        return self.core.list_namespaced_pod(NAMESPACE, label_selector="jobset.sigs.k8s.io/jobset-name=job").items

    def wait_for_phase(self, phase: str, count: int = 2) -> list[Any]:
        self.cluster.wait(lambda: [pod.status.phase for pod in self.pods()] == [phase] * count)
        return self.pods()

    def log(self, pod: Any) -> str:
        return str(self.core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE))

    def events(self, reason: str) -> list[str]:
        """Wait for events of a reason; return their messages."""
        return self.cluster.wait(
            lambda: [one.message for one in self.core.list_namespaced_event(NAMESPACE).items if one.reason == reason]
        )


@pytest.fixture
def admin(cluster: FakeKubernetes) -> Clients:
    return Clients(cluster)


# What is refused


def test_a_trainjobs_runtime_must_exist_first(admin: Clients) -> None:
    """Trainer's webhook refuses a TrainJob without its runtime with 403, as all webhooks do by default.

    Source (read): ValidateObjects in TRAINER/pkg/runtime/core/trainingruntime.go; the code of a denial:
    https://pkg.go.dev/sigs.k8s.io/controller-runtime/pkg/webhook/admission#Denied
    """
    with pytest.raises(client.ApiException) as caught:
        admin.create("trainjobs", train_job())
    assert caught.value.status == 403
    assert "specified trainingRuntime must be created before the TrainJob is created" in caught.value.body


def test_a_runtime_for_trainers_own_settings_needs_a_container_named_node(admin: Clients) -> None:
    """A replicated job that is labelled as the trainer has one replica and the container `node`.

    Source (read): validateReplicatedJobs in TRAINER/pkg/webhooks/trainingruntime_webhook.go
    """
    labelled = runtime()
    job = labelled["spec"]["template"]["spec"]["replicatedJobs"][0]
    job["replicas"] = 2
    job["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    with pytest.raises(client.ApiException) as caught:
        admin.create("trainingruntimes", labelled)
    assert caught.value.status == 403
    assert "always must be 1" in caught.value.body
    assert "must contain the required container for the ancestor: trainer" in caught.value.body


def test_a_trainjob_with_too_long_a_name_has_no_condition(admin: Clients) -> None:
    """JobSet's webhook refuses names that make pod names of more than 63 characters; the TrainJob gets only an event.

    Source (read): ValidateCreate in JOBSET/pkg/webhooks/jobset_webhook.go; Reconcile in
    TRAINER/pkg/controller/trainjob_controller.go, which records the error as an event
    """
    admin.create("trainingruntimes", runtime())
    name = "j" * 49  # + "-node-0-1-abcde"
    admin.create("trainjobs", train_job(name))
    assert "pod names generated for this JobSet will exceed 63" in admin.events("TrainJobResourcesCreationFailed")[0]
    job = admin.custom.get_namespaced_custom_object(*TRAINER, NAMESPACE, "trainjobs", name)
    assert "conditions" not in job.get("status", {})


def test_without_the_operator_the_group_of_trainjobs_is_no_page(cluster: FakeKubernetes, admin: Clients) -> None:
    """Paths of a group that no CRD has are answered with the text "404 page not found" and not a Status.

    Source (read): https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/ (the
    endpoint exists once the CRD does); the answer is that of net/http's ServeMux in k8s.io/apiserver
    """
    cluster.installed.clear()
    with pytest.raises(client.ApiException) as caught:
        admin.create("trainjobs", train_job())
    assert (caught.value.status, caught.value.body) == (404, "404 page not found\n")
    with pytest.raises(client.ApiException):
        admin.custom.get_api_resources(*TRAINER)


# Who may do what


def test_the_log_of_a_trainjobs_pod_needs_a_rule_for_the_subresource(admin: Clients) -> None:
    """The right to read pods does not include their logs, pods/log.

    Source (read): https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources
    """
    grant(admin, {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]})
    step = Clients(admin.cluster, STEP)
    admin.submit("echo hello")
    pods = admin.wait_for_phase("Succeeded")
    assert len(step.pods()) == 2
    with pytest.raises(client.ApiException, match="403"):
        step.log(pods[0])
    assert admin.log(pods[0]) == "hello\n"


# From the TrainJob to its pods


def test_the_pods_of_a_trainjob_have_predictable_host_names_and_labels(admin: Clients) -> None:
    """A pod's host name is JOBSET-REPLICATEDJOB-JOB-POD, its subdomain the JobSet's name, that of the TrainJob.

    Source (read): https://jobset.sigs.k8s.io/docs/concepts/ (labels, headless service); IdentifyPodNetwork in
    TRAINER/pkg/runtime/framework/plugins/jobset/jobset.go
    """
    admin.submit()
    pods = admin.wait_for_phase("Succeeded")
    assert sorted(pod.spec.hostname for pod in pods) == ["job-node-0-0", "job-node-0-1"]
    assert {pod.spec.subdomain for pod in pods} == {"job"}
    for pod in pods:
        assert pod.metadata.name.rpartition("-")[0] == pod.spec.hostname
        assert pod.metadata.labels["jobset.sigs.k8s.io/replicatedjob-name"] == "node"
        assert pod.metadata.labels["batch.kubernetes.io/job-name"] == "job-node-0"


def test_a_pod_of_a_trainjob_knows_its_index(admin: Clients) -> None:
    """An indexed Job's pods have their index as annotation, label and the variable JOB_COMPLETION_INDEX.

    Source (read): https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    environment = [{"name": "REPLICA", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    admin.submit("echo $REPLICA $JOB_COMPLETION_INDEX $HOSTNAME", container={"env": environment})
    logs = sorted(admin.log(pod) for pod in admin.wait_for_phase("Succeeded"))
    assert logs == ["0 0 job-node-0-0\n", "1 1 job-node-0-1\n"]


def test_variables_of_a_trainjobs_pod_refer_only_to_earlier_ones(admin: Clients) -> None:
    """$(NAME) is replaced in values by earlier variables, in arguments by all; $$(NAME) and unknown names are kept.

    Source (read):
    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/; the index
    comes last: addCompletionIndexEnvVariable in pkg/controller/job of kubernetes/kubernetes
    """
    environment = [
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "LATE", "value": "late"},
        {"name": "BOTH", "value": "$(LATE) $$(LATE) $(JOB_COMPLETION_INDEX)"},
    ]
    script = 'echo "$EARLY|$BOTH|$1"'
    command = ["sh", "-c", script, "sh", "$(LATE) of $(JOB_COMPLETION_INDEX)"]
    admin.submit(container={"command": command, "env": environment}, pods=1)
    (pod,) = admin.wait_for_phase("Succeeded", 1)
    assert admin.log(pod) == "$(LATE)|late $(LATE) $(JOB_COMPLETION_INDEX)|late of 0\n"


def test_a_trainjob_is_complete_when_all_its_pods_succeed(admin: Clients) -> None:
    """The JobSet's condition Completed becomes the TrainJob's Complete; pods and logs are kept.

    Source (read): Status in TRAINER/pkg/runtime/framework/plugins/jobset/jobset.go; AllJobsCompleted in
    JOBSET/pkg/constants/constants.go
    """
    admin.submit("sleep 0.1; echo done")
    assert admin.condition("Complete")["reason"] == "AllJobsCompleted"
    (status,) = admin.job()["status"]["jobsStatus"]
    assert (status["name"], status["succeeded"], status["active"]) == ("node", 1, 0)
    assert {admin.log(pod) for pod in admin.pods()} == {"done\n"}


def test_the_first_failed_pod_fails_a_trainjob_without_a_backoff_limit(admin: Clients) -> None:
    """With backoffLimit 0 a failed pod fails its Job, which deletes the other pods with their logs, and so the JobSet.

    Source (read): https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy and
    #job-termination-and-cleanup; executeFailurePolicy in JOBSET/pkg/controllers/failure_policy.go
    """
    admin.submit("test $JOB_COMPLETION_INDEX = 0 && exec sleep 60; exit 3")
    condition = admin.condition("Failed")
    assert condition["reason"] == "FailedJobs"
    assert condition["message"] == "jobset failed due to one or more job failures (first failed job: job-node-0)"
    (pod,) = admin.wait_for_phase("Failed", 1)  # the other one is being ended
    (container,) = pod.status.container_statuses
    assert (container.state.terminated.exit_code, container.state.terminated.reason) == (3, "Error")
    assert pod.metadata.annotations["batch.kubernetes.io/job-completion-index"] == "1"


def test_pods_of_a_trainjob_restart_unless_told_otherwise(admin: Clients) -> None:
    """JobSet's default is restartPolicy OnFailure, a Job's six retries: a failed container starts again in its pod.

    Source (read): Default in JOBSET/pkg/webhooks/jobset_webhook.go;
    https://kubernetes.io/docs/concepts/workloads/controllers/job/ (.spec.backoffLimit)
    """
    defaults = runtime("test -e tried || { touch tried; exit 1; }", pods=1)
    job = defaults["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    del job["backoffLimit"], job["template"]["spec"]["restartPolicy"]
    admin.create("trainingruntimes", defaults)
    admin.create("trainjobs", train_job())
    admin.condition("Complete")
    assert [pod.status.container_statuses[0].restart_count for pod in admin.pods()] == [1]


def test_a_failed_pod_of_a_trainjob_is_replaced_within_the_backoff_limit(admin: Clients) -> None:
    """With restartPolicy Never, a Job creates a new pod of the same index and another name.

    Source (read): https://kubernetes.io/docs/concepts/workloads/controllers/job/#handling-pod-and-container-failures
    """
    admin.submit("exit 1", pods=1, job={"backoffLimit": 1})
    admin.condition("Failed")
    names = [pod.metadata.name for pod in admin.pods()]
    assert (len(set(names)), {name.rpartition("-")[0] for name in names}) == (2, {"job-node-0-0"})


def test_a_trainjob_starts_again_as_a_whole_by_its_failure_policy(admin: Clients) -> None:
    """With maxRestarts, JobSet deletes all Jobs with their pods and creates them again before it fails.

    Source (read): https://jobset.sigs.k8s.io/docs/concepts/ (failure policy); restartJobSetActionApplier in
    JOBSET/pkg/controllers/failure_policy.go
    """
    restarting = runtime("exit 1")
    restarting["spec"]["template"]["spec"]["failurePolicy"] = {"maxRestarts": 1}
    admin.create("trainingruntimes", restarting)
    admin.create("trainjobs", train_job())
    assert admin.condition("Failed")["reason"] == "ReachedMaxRestarts"
    assert {pod.metadata.labels["jobset.sigs.k8s.io/restart-attempt"] for pod in admin.pods()} == {"1"}


def test_a_deleted_pod_of_a_trainjob_counts_as_failed(admin: Clients) -> None:
    """A pod that is deleted while it runs, as by a drained node, fails a Job without a backoff limit.

    Source (read): https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy (pods
    that terminate count as failed)
    """
    admin.submit("sleep 60")
    pods = admin.wait_for_phase("Running")
    admin.core.delete_namespaced_pod(pods[0].metadata.name, NAMESPACE)
    assert admin.condition("Failed")["reason"] == "FailedJobs"


@pytest.mark.parametrize("reason", ["Error", "OOMKilled"])
def test_a_killed_pod_of_a_trainjob_ends_with_code_137(admin: Clients, reason: str) -> None:
    """A container that SIGKILL ended has the exit code 128 + 9; the reason tells whether the kernel was out of memory.

    Source (read):
    https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/#exceed-a-container-s-memory-limit
    """
    admin.submit("sleep 60", pods=1)
    admin.wait_for_phase("Running", 1)
    admin.cluster.kubelets.kill(admin.cluster.pod("job-node-0-0"), reason)
    (pod,) = admin.wait_for_phase("Failed", 1)
    ended = pod.status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason) == (137, reason)


def test_a_trainjobs_pod_ends_when_its_liveness_probe_fails(admin: Clients) -> None:
    """After failureThreshold failures in a row, the kubelet ends the container as if its pod was deleted.

    Source (read): https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/
    """
    folder = admin.cluster.add_claim("slipway")
    (folder / "lease").touch()
    admin.cluster.kubelets.probe_speed = 500
    probe = {"exec": {"command": ["test", "-e", "/mnt/lease"]}, "periodSeconds": 20, "failureThreshold": 2}
    mount = {"name": "data", "mountPath": "/mnt"}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "slipway"}}
    script = "trap 'exit 143' TERM; while :; do sleep 0.01; done"
    admin.submit(script, pods=1, volumes=[volume], container={"livenessProbe": probe, "volumeMounts": [mount]})
    admin.wait_for_phase("Running", 1)
    (folder / "lease").unlink()
    (pod,) = admin.wait_for_phase("Failed", 1)
    assert pod.status.container_statuses[0].state.terminated.exit_code == 143
    assert "failed liveness probe" in admin.events("Killing")[0]


# The end of a TrainJob


def test_deleting_a_trainjob_deletes_its_pods(admin: Clients) -> None:
    """By default the object is deleted at once, and its JobSet, Jobs and pods in the background.

    Source (read): https://kubernetes.io/docs/concepts/architecture/garbage-collection/#background-deletion
    """
    admin.submit("sleep 60")
    admin.wait_for_phase("Running")
    assert admin.delete("trainjobs")["status"] == "Success"
    with pytest.raises(client.ApiException, match="404"):
        admin.job()
    admin.cluster.wait(lambda: admin.cluster.left() == ["TrainingRuntime job"])


def test_a_pod_of_a_deleted_trainjob_has_its_grace_period(admin: Clients) -> None:
    """A deleted pod's main process gets SIGTERM, and SIGKILL after terminationGracePeriodSeconds.

    Source (read): https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
    """
    script = "trap 'echo told >>$1/log' TERM; touch $1/$JOB_COMPLETION_INDEX; while :; do sleep 0.05; done"
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "slipway"}}
    folder = admin.cluster.add_claim("slipway")
    mount = {"name": "data", "mountPath": "/mnt/slipway"}
    admin.submit(
        terminationGracePeriodSeconds=1,
        volumes=[volume],
        container={"command": ["sh", "-c", script, "sh", "/mnt/slipway"], "volumeMounts": [mount]},
    )
    admin.cluster.wait(lambda: len(list(folder.iterdir())) == 2)
    admin.delete("trainjobs")
    admin.cluster.wait(lambda: (folder / "log").exists())
    assert len(admin.pods()) == 2
    admin.cluster.wait(lambda: not admin.pods())


def test_a_runtime_is_kept_while_a_trainjob_refers_to_it(admin: Clients) -> None:
    """A deleted runtime has a finalizer until the TrainJobs that refer to it are deleted.

    Source (read): TRAINER/pkg/controller/trainingruntime_controller.go (ResourceInUseFinalizer)
    """
    admin.submit("sleep 60")
    admin.wait_for_phase("Running")
    admin.delete("trainingruntimes")
    assert "TrainingRuntime job" in admin.cluster.left()
    admin.delete("trainjobs")
    admin.cluster.wait(lambda: not admin.cluster.left())


def test_a_trainjob_goes_with_the_pod_that_owns_it(admin: Clients) -> None:
    """Garbage collection deletes an object after its owner; a pod that only failed still exists, and its object does.

    Source (read): https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents; failed pods
    stay: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection
    """
    pod = admin.cluster.add_step("train")
    admin.submit("sleep 60", metadata=owned_by(pod))
    admin.wait_for_phase("Running")
    admin.cluster.end_step(pod, "Failed")
    assert admin.job()["spec"]
    admin.core.delete_namespaced_pod("train", NAMESPACE)
    admin.cluster.wait(lambda: admin.cluster.left() == ["TrainingRuntime job"])


def test_a_trainjob_whose_owner_never_existed_is_deleted(admin: Clients) -> None:
    """An ownerReference with the uid of no object in the namespace lets the garbage collector delete the dependent.

    Source (read): https://kubernetes.io/docs/concepts/overview/working-with-objects/owners-dependents/ (unresolvable
    owner references)
    """
    pod = admin.cluster.add_step("train")
    admin.submit("sleep 60", metadata=owned_by(pod, uid="00000000-0000-0000-0000-000000000000"))
    admin.cluster.wait(lambda: admin.cluster.left() == ["TrainingRuntime job"])


# Waiting


def test_kueue_suspends_a_trainjob_with_a_queue_until_it_is_admitted(admin: Clients) -> None:
    """Kueue's webhook suspends a TrainJob with a queue's label; no pods exist until the queue admits it.

    Source (read): Default in KUEUE/pkg/controller/jobs/trainjob/trainjob_webhook.go; setSuspendedCondition in
    TRAINER/pkg/controller/trainjob_controller.go
    """
    admin.cluster.installed.add("kueue")
    admin.submit(metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}})
    assert admin.condition("Suspended")["reason"] == "Suspended"
    assert (admin.job()["spec"]["suspend"], admin.pods()) == (True, [])
    admin.cluster.queues.add("team")
    admin.condition("Complete")
    suspended = next(one for one in admin.job()["status"]["conditions"] if one["type"] == "Suspended")
    assert (suspended["status"], suspended["reason"]) == ("False", "Resumed")


def test_kueue_cannot_start_a_trainjob_without_runtime_patches(admin: Clients) -> None:
    """Kueue 0.17 writes spec.runtimePatches, which Trainer before 2.2 drops: an admitted TrainJob stays suspended.

    Source (reported): kubernetes-sigs/kueue#11931. Source (read): kubeflow/trainer#3309.
    """
    admin.cluster.installed.add("kueue")
    admin.cluster.queues.add("team")
    admin.cluster.absent_fields.add("TrainJob.spec.runtimePatches")
    admin.submit(metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}})
    assert admin.condition("Suspended")
    assert (admin.job()["spec"]["suspend"], admin.pods()) == (True, [])


def test_every_account_may_read_the_fields_of_trainjobs(admin: Clients) -> None:
    """The role system:discovery lets all accounts read /openapi; its document has the schema of each CRD.

    Source (read): https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-v3 and
    https://kubernetes.io/docs/reference/access-authn-authz/rbac/#discovery-roles
    """
    admin.cluster.absent_fields.add("TrainJob.spec.suspend")
    document = Clients(admin.cluster, STEP).custom.api_client.call_api(
        f"/openapi/v3/apis/{API_VERSION}", "GET", auth_settings=["BearerToken"], response_type="object"
    )[0]
    job = document["components"]["schemas"]["org.kubeflow.trainer.v1alpha1.TrainJob"]
    assert {"group": TRAINER[0], "version": TRAINER[1], "kind": "TrainJob"} in job["x-kubernetes-group-version-kind"]
    assert "runtimePatches" in job["properties"]["spec"]["properties"]
    assert "suspend" not in job["properties"]["spec"]["properties"]


def test_without_kueue_a_trainjobs_queue_is_a_label_like_others(admin: Clients) -> None:
    """A label that no controller reads changes nothing: the TrainJob starts at once.

    Source (read): https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/ ("do not directly imply
    semantics to the core system")
    """
    admin.submit(metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}})
    admin.condition("Complete")


GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"}},
            "1 node(s) didn't match Pod's node affinity",
        ),
        (
            {"container": GPU},
            "1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {nvidia.com/gpu: present}",
        ),
        (
            {"container": GPU, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "pods": 3},
            "2 Insufficient nvidia.com/gpu",
        ),
        (
            {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "none"}}]},
            'persistentvolumeclaim "none" not found',
        ),
    ],
)
def test_a_trainjobs_pod_that_fits_no_node_is_pending(admin: Clients, pod: dict[str, Any], reason: str) -> None:
    """The scheduler says in the condition PodScheduled and an event FailedScheduling how many nodes fail which test.

    Source (read): https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/#my-pod-stays-pending; the
    sentences are those of pkg/scheduler/framework/plugins in kubernetes/kubernetes
    """
    gpus = Node("gpu", taints={"nvidia.com/gpu": "present"}, allocatable={"cpu": "8", "nvidia.com/gpu": "2"})
    admin.cluster.around.nodes = [Node("cpu"), gpus]
    admin.submit("sleep 60", **copy.deepcopy(pod))
    assert reason in admin.events("FailedScheduling")[0]
    waiting = [one for one in admin.pods() if one.status.phase == "Pending"]
    assert waiting[0].status.conditions[0].reason == "Unschedulable"


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"priorityClassName": "high"}, "no PriorityClass with name high was found"),
        ({"serviceAccountName": "trainer"}, 'serviceaccount "trainer" not found'),
    ],
)
def test_a_trainjob_whose_pods_are_forbidden_has_only_an_event(admin: Clients, pod: Any, reason: str) -> None:
    """A Job whose pods the server refuses retries for ever; the reason is in an event FailedCreate about the Job.

    Source (read): https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/ ("the Pod is
    rejected") and https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/
    """
    admin.submit(**pod)
    (message, *_) = admin.events("FailedCreate")
    assert "Error creating: pods" in message
    assert reason in message
    assert (admin.pods(), admin.job()["status"].get("conditions")) == ([], None)


OF_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
OF_POD = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("of_pod", "of_container", "reason"),
    [
        (OF_POD, OF_CONTAINER, None),
        (OF_POD | {"runAsUser": 0}, OF_CONTAINER, "runAsUser=0 ("),
        ({**OF_POD, "runAsNonRoot": None}, OF_CONTAINER, "runAsNonRoot != true (pod or container"),
        (OF_POD | {"seccompProfile": {"type": "Unconfined"}}, OF_CONTAINER, "seccompProfile (pod or container"),
        (OF_POD, {**OF_CONTAINER, "capabilities": {}}, "unrestricted capabilities ("),
        (OF_POD, {**OF_CONTAINER, "allowPrivilegeEscalation": None}, "allowPrivilegeEscalation != false ("),
    ],
)
def test_a_restricted_namespace_forbids_pods_without_its_security_context(
    admin: Clients, of_pod: dict[str, Any], of_container: dict[str, Any], reason: str | None
) -> None:
    """The Pod Security Standard "restricted" demands five fields; the event of the Job names the missing ones.

    Source (recorded): pods sent to kube-apiserver 1.36.2 in a namespace with the label
    pod-security.kubernetes.io/enforce=restricted.
    """
    admin.cluster.around.restricted = True
    given = {key: value for key, value in of_pod.items() if value is not None}
    own = {key: value for key, value in of_container.items() if value is not None}
    admin.submit(pods=1, securityContext=given, container={"securityContext": own})
    if reason is None:
        assert admin.condition("Complete")
    else:
        (message,) = admin.events("FailedCreate")
        assert f'violates PodSecurity "restricted:latest": {reason}' in message


@pytest.mark.parametrize("kind", ["labels", "annotations", None])
def test_istio_adds_a_sidecar_to_a_pod_that_does_not_refuse_it(admin: Clients, kind: str | None) -> None:
    """In a namespace with injection, such as a profile of Kubeflow, a pod has a proxy unless it says "false".

    Source (read):
    https://istio.io/latest/docs/setup/additional-setup/sidecar-injection/#controlling-the-injection-policy Source
    (reported): kubeflow/trainer#2794 and #2872, where replicas behind proxies could not connect.
    """
    admin.cluster.around.istio = True
    body = runtime(nodeSelector={"pool": "none"})
    template = body["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    if kind:
        template["metadata"] = {kind: {"sidecar.istio.io/inject": "false"}}
    admin.create("trainingruntimes", body)
    admin.create("trainjobs", train_job())
    names = [container.name for container in admin.wait_for_phase("Pending")[0].spec.containers]
    assert names == (["trainer"] if kind else ["trainer", "istio-proxy"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"restartPolicy": "Sometimes"}, "spec.template.spec.restartPolicy"),
        ({"tolerations": [{"operator": "Maybe"}]}, "spec.tolerations[0].operator"),
        ({"job": {"completionMode": "Odd"}}, "spec.completionMode"),
    ],
)
def test_a_trainjob_whose_jobs_are_invalid_has_only_an_event(admin: Clients, changes: Any, field: str) -> None:
    """What the CRD does not check is refused when JobSet creates the Job; the reason is in an event about the JobSet.

    Source (recorded): kube-apiserver 1.36.2 accepts the TrainingRuntime. Source (read): createJobs in
    JOBSET/pkg/controllers/jobset_controller.go.
    """
    admin.submit(**changes)
    (message, *_) = admin.events("JobCreationFailed")
    assert f"{field}: Unsupported value: " in message
    assert (admin.pods(), admin.job()["status"].get("conditions")) == ([], None)


def test_the_log_of_a_trainjobs_waiting_pod_is_a_bad_request(admin: Clients) -> None:
    """A container that has not started has no log: 400.

    Source (read): https://kubernetes.io/docs/tasks/debug/debug-application/debug-running-pod/;
    validateContainerLogStatus in pkg/kubelet of kubernetes/kubernetes ("is waiting to start")
    """
    admin.cluster.around.pulling.add("image")
    admin.submit(pods=1)
    admin.cluster.wait(lambda: [pod for pod in admin.pods() if pod.status.container_statuses])
    (pod,) = admin.pods()
    with pytest.raises(client.ApiException) as caught:
        admin.log(pod)
    assert (caught.value.status, "is waiting to start" in caught.value.body) == (400, True)


def test_a_followed_log_of_a_trainjobs_pod_ends_with_its_container(admin: Clients) -> None:
    """With follow, lines come as they are written; with timestamps, each begins with its time in UTC.

    Source (read):
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#get-read-log-of-the-specified-pod
    """
    admin.submit("echo one; sleep 0.2; echo two", pods=1)
    (pod,) = admin.wait_for_phase("Running", 1)
    stream = admin.core.read_namespaced_pod_log(
        pod.metadata.name, NAMESPACE, follow=True, timestamps=True, _preload_content=False
    )
    lines = [line.decode() for line in stream]
    assert [line.split()[1] for line in lines] == ["one", "two"]
    assert all(line.split()[0].endswith("Z") for line in lines)
