"""How a Kubernetes API server fails for a while: after a restart, without etcd, and with a webhook that lags behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from tests.components.train.trainjob.conftest import grant
from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes

TRAINJOBS = ("trainer.kubeflow.org", "v1alpha1", NAMESPACE, "trainjobs")
STEP = "system:serviceaccount:kubeflow:pipeline-runner"

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(tmp_path) as fake:
        grant(fake)
        yield fake


@pytest.fixture
def core(cluster: FakeKubernetes) -> client.CoreV1Api:
    """The API as the account of the step train, without retries."""
    configuration = client.Configuration()
    configuration.retries = False
    config.load_kube_config(str(cluster.kubeconfig(STEP)), client_configuration=configuration)
    return client.CoreV1Api(client.ApiClient(configuration))


def list_pods(core: client.CoreV1Api) -> int:
    """Return the status of a call that the account is allowed to make; 0 if there is no response."""
    try:
        core.list_namespaced_pod(NAMESPACE)
    except client.ApiException as error:
        return error.status or 0
    except HTTPError:
        return 0
    return 200


@pytest.mark.parametrize("denial", [401, 403])
def test_a_restarted_api_server_denies_legitimate_accounts_at_first(
    cluster: FakeKubernetes, core: client.CoreV1Api, denial: int
) -> None:
    """Until its caches of RBAC are filled (0.1 to 4 s), it answers 403 or 401, then 503 until it is ready.

    Source (recorded): kube-apiserver 1.36.2, killed and started five times
    """
    assert list_pods(core) == 200
    cluster.outages.restart(code=denial)
    seen = [list_pods(core)]
    while seen[-1] != 200:
        time.sleep(0.02)
        seen.append(list_pods(core))
    assert list(dict.fromkeys(seen)) == [0, denial, 503, 200]


def test_an_api_server_without_etcd_hangs_and_then_fails(cluster: FakeKubernetes, core: client.CoreV1Api) -> None:
    """Every call takes about 10 s, here less, and fails.

    Source (recorded): kube-apiserver 1.36.2, whose etcd was killed
    """
    cluster.outages.lose_etcd(0.2, hang=0.1)
    started = time.monotonic()
    assert list_pods(core) == 500
    assert time.monotonic() - started > 0.1
    cluster.wait(lambda: list_pods(core) == 200)


def test_a_killed_api_server_breaks_the_logs_that_it_streams(cluster: FakeKubernetes, core: client.CoreV1Api) -> None:
    """A followed log is a connection through the API server, and breaks with it; the pod is not affected.

    Source (read):
    https://kubernetes.io/docs/concepts/architecture/control-plane-node-communication/#api-server-to-kubelet
    """
    container = {"name": "main", "image": "image", "command": ["sh", "-c", "echo hello; sleep 60"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    admin = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig())))
    admin.create_namespaced_pod(NAMESPACE, {"metadata": {"name": "pod"}, "spec": spec})
    cluster.wait(lambda: cluster.pod("pod")["status"]["phase"] == "Running")
    stream = core.read_namespaced_pod_log("pod", NAMESPACE, follow=True, _preload_content=False).stream()
    assert next(stream) == b"hello\n"
    cluster.outages.restart()
    with pytest.raises(HTTPError):
        next(stream)
    assert cluster.pod("pod")["status"]["phase"] == "Running"


def test_trainers_webhook_may_not_know_a_runtime_that_was_just_created(cluster: FakeKubernetes) -> None:
    """The webhook reads runtimes from a cache: a TrainJob that is created 0.3 s after its runtime may be refused.

    Source (reported): https://github.com/NVIDIA/aicr/issues/1669
    """
    cluster.outages.lag(1)
    admin = client.CustomObjectsApi(config.new_client_from_config(str(cluster.kubeconfig())))
    job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "job"}}
    with pytest.raises(client.ApiException, match="must be created before the TrainJob is created") as caught:
        admin.create_namespaced_custom_object(*TRAINJOBS, job | {"spec": {"runtimeRef": {"name": "job"}}})
    assert caught.value.status == 403
