"""`slipway setup --target kubeflow` and the doctor: the rights to train by a TrainJob, the operator and the volume."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slipway.components.build_image.registry import HttpRegistry
from slipway.components.train.trainjob import manifest
from slipway.core.errors import UserError
from slipway.pipelines.checks import Finding, examine
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import Check, Context
from slipway.pipelines.platforms.kubeflow import access
from slipway.pipelines.platforms.kubeflow import doctor as kubeflow
from slipway.pipelines.platforms.table import platform_of
from tests.fakes.kubernetes import real
from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes
from tests.fakes.kubernetes.store import RBAC
from tests.fidelity.kubernetes_client import Clients, Cluster, eventually, grant
from tests.pipelines.platforms.kubeflow.conftest import configuration

DEFAULT = f"system:serviceaccount:{NAMESPACE}:default"
changes_the_operator = pytest.mark.skipif(
    bool(os.environ.get(real.VARIABLE)), reason="The real API server has the operator's current kinds."
)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.01")
    with real.cluster(tmp_path) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig()))
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Clients:
    admin = Clients(cluster)
    claim(admin, "slipway", "ReadWriteMany")
    return admin


def claim(admin: Clients, name: str, mode: str) -> None:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    admin.core.create_namespaced_persistent_volume_claim(NAMESPACE, {"metadata": {"name": name}, "spec": spec})


def trains(**settings: str | int | None) -> RunConfig:
    return configuration("cpu*2", service_account="pipeline-runner", **settings)


def setup(folder: Path, config: RunConfig, *options: str) -> tuple[int, str, str]:
    (folder / "run.yaml").write_text(config.as_yaml())
    result = CliRunner().invoke(app, ["setup", "-c", str(folder / "run.yaml"), "--target", "kubeflow", *options])
    return result.exit_code, result.stdout, result.stderr


def doctor(config: RunConfig, folder: Path, check: Callable[[Context], str] = kubeflow.training) -> Finding:
    return examine(Check("kubeflow", check), Context(config, platform_of("kubeflow"), False, folder))


def bindings(admin: Clients) -> list[Any]:
    return list(admin.rbac.list_namespaced_role_binding(NAMESPACE).items)


def test_the_rights_for_a_trainjob_are_printed_as_a_manifest_and_applied(admin: Clients, tmp_path: Path) -> None:
    code, printed, _ = setup(tmp_path, trains())
    assert code == 0
    assert [body["kind"] for body in yaml.safe_load_all(printed)] == ["Role", "RoleBinding"]
    assert (bindings(admin), admin.rbac.list_namespaced_role(NAMESPACE).items) == ([], [])
    assert doctor(trains(), tmp_path).status == "warning"
    code, said, _ = setup(tmp_path, trains(), "--apply")
    assert (code, said.count("created")) == (0, 2)
    found = doctor(trains(), tmp_path)
    assert (found.status, found.error) == ("pass", None)
    assert "unchanged" in setup(tmp_path, trains(), "--apply")[1]
    other = configuration("cpu*2", service_account="default")
    assert "RoleBinding slipway-train in kubeflow: changed" in setup(tmp_path, other, "--apply")[1]
    (binding,) = bindings(admin)
    assert [subject.name for subject in binding.subjects] == ["pipeline-runner", "default"]


@changes_the_operator
def test_the_doctor_names_what_a_trainjob_lacks_on_the_cluster(cluster: FakeKubernetes, tmp_path: Path) -> None:
    cluster.installed.clear()
    absent = doctor(trains(), tmp_path)
    assert absent.status == "fail"
    assert str(absent.fix).startswith("kubectl apply --server-side")
    assert str(absent.fix) in (Path(__file__).parents[4] / "docs/kubeflow.md").read_text()
    assert "Kubeflow Trainer is not installed" in setup(tmp_path, trains(), "--apply")[2]
    assert doctor(configuration("cpu"), tmp_path).found == "the step train needs no TrainJob"


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (trains(), "slipway (ReadWriteMany)"),
        (trains(volume="single"), "single has the access modes ReadWriteOnce; 3 pods on several nodes mount it at"),
        (configuration(volume="single", context="fake"), "single (ReadWriteOnce)"),
        (configuration(volume="single", queue="team"), "2 pods on several nodes mount it at once"),
        (configuration(volume="other", context="fake"), "The namespace kubeflow has no PersistentVolumeClaim other."),
        (configuration(volume="other"), "kubeflow.context is not set"),  # the current one may be another cluster's
    ],
)
def test_a_volume_that_the_pods_cannot_mount_is_refused(
    admin: Clients, tmp_path: Path, config: RunConfig, found: str
) -> None:
    claim(admin, "single", "ReadWriteOnce")
    told = doctor(config, tmp_path, kubeflow.volume)
    assert found in told.found
    assert (told.status == "fail") == told.found.endswith((".", "TrainJob's."))
    if config.kubeflow.context and told.status == "fail":
        with pytest.raises(UserError, match=told.found):
            access.check_before_run(config.kubeflow, config.training_hardware)


def test_who_may_not_grant_the_rights_for_a_trainjob_is_told_who_can(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(DEFAULT)))
    code, _, said = setup(tmp_path, trains(), "--apply")
    assert code != 0
    assert "as an administrator of the cluster, or with an account that has the rights of the Role itself" in said
    assert "(create, get, delete trainjobs, trainingruntimes; list pods, events; get pods/log)" in said
    assert "slipway setup --target kubeflow | kubectl apply -f -" in said
    assert "not checked" in doctor(trains(), tmp_path).found
    assert "not checked" in doctor(trains(), tmp_path, kubeflow.volume).found


def test_an_administrator_of_the_namespace_cannot_grant_rights_that_they_lack(
    cluster: Cluster, admin: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs = ["create", "get", "patch"]  # not escalate
    rule = {"apiGroups": [manifest.RBAC], "resources": ["roles", "rolebindings"], "verbs": verbs}
    grant(admin, rule, account="default")
    eventually(lambda: Clients(cluster, DEFAULT).rbac.read_namespaced_role("slipway", NAMESPACE))
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(DEFAULT)))
    code, _, said = setup(tmp_path, trains(), "--apply")
    assert code != 0
    assert "attempting to grant RBAC permissions not currently held" in said
    assert "as an administrator of the cluster" in said


def test_a_binding_to_another_role_is_no_right_and_is_replaced(admin: Clients, tmp_path: Path) -> None:
    setup(tmp_path, trains(), "--apply")
    (binding,) = bindings(admin)
    admin.rbac.delete_namespaced_role_binding(binding.metadata.name, NAMESPACE)
    other = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"}
    body = {"metadata": {"name": binding.metadata.name}, "roleRef": other, "subjects": binding.subjects}
    admin.rbac.create_namespaced_role_binding(NAMESPACE, body)
    found = doctor(trains(), tmp_path)
    assert (found.status, "has no RoleBinding slipway-train as setup makes it" in found.found) == ("warning", True)
    said = setup(tmp_path, trains(), "--apply")[1]
    assert "RoleBinding slipway-train in kubeflow: replaced: it was of the ClusterRole view" in said
    assert bindings(admin)[0].role_ref == binding.role_ref
    assert doctor(trains(), tmp_path).status == "pass"


def test_a_namespace_that_does_not_exist_is_named_with_the_command(admin: Clients, tmp_path: Path) -> None:
    config = trains(namespace="team-b", context="fake")
    code, _, said = setup(tmp_path, config, "--apply")
    assert (code, "kubectl create namespace team-b" in said) == (2, True)
    assert doctor(config, tmp_path).found == "The cluster has no namespace team-b."
    with pytest.raises(UserError, match="no namespace team-b"):
        access.check_before_run(config.kubeflow, config.training_hardware)


def test_root_in_a_restricted_namespace_is_refused_before_the_run(admin: Clients, tmp_path: Path) -> None:
    def enforce(standard: str | None) -> None:
        labels = {"pod-security.kubernetes.io/enforce": standard}
        admin.core.patch_namespace(NAMESPACE, {"metadata": {"labels": labels}})

    enforce("restricted")
    for user in (0, None):
        config = trains(context="fake", run_as_user=user)
        with pytest.raises(UserError, match="pods need a user other than root") as refused:
            access.check_before_run(config.kubeflow, config.training_hardware)
        assert "--set kubeflow.run_as_user=65534" in str(refused.value.fix)
    setup(tmp_path, trains(run_as_user=65534), "--apply")
    assert doctor(trains(run_as_user=65534), tmp_path).status == "pass"
    enforce(None)


@changes_the_operator
def test_the_doctor_compares_the_fields_of_the_operators_kinds(cluster: FakeKubernetes, tmp_path: Path) -> None:
    setup(tmp_path, trains(), "--apply")
    assert doctor(trains(queue="team"), tmp_path).status == "pass"
    cluster.absent_fields.add("TrainJob.spec.runtimePatches")
    assert doctor(trains(), tmp_path).status == "pass"
    found = doctor(trains(queue="team"), tmp_path)
    assert (found.status, "Kubeflow Trainer has since 2.2" in found.found) == ("warning", True)
    assert "ref=v2.3.0" in str(found.fix)
    cluster.absent_fields.add("TrainingRuntime.spec.mlPolicy")
    assert "needs the field spec.mlPolicy of a TrainingRuntime" in doctor(trains(), tmp_path).found


@pytest.mark.parametrize(
    ("hardware", "environment", "status", "says"),
    [
        ("gpux2", {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "PATH": "/usr/local/nvidia/bin"}, "pass", "finds it"),
        ("gpux2", {"PATH": "/usr/local/nvidia/bin"}, "warning", "does not set LD_LIBRARY_PATH to /usr/local/nvidia"),
        ("gpux2", None, "skipped", "there is no image registry.example.com/slipway/trainer@sha256:"),
        ("cpu", {}, "skipped", "no custom image runs on GPUs"),
    ],
)
def test_the_image_for_gpus_must_find_the_driver_of_gke(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hardware: str,
    environment: dict[str, str] | None,
    status: str,
    says: str,
) -> None:
    config = None if environment is None else {"Env": [f"{name}={value}" for name, value in environment.items()]}
    monkeypatch.setattr(HttpRegistry, "configuration", lambda *_: config)
    found = doctor(configuration(hardware), tmp_path, kubeflow.gpu_driver)
    assert (found.status, says in found.found) == (status, True), found


def test_without_a_kubeconfig_the_doctor_cannot_check_for_trainjobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    found = doctor(trains(), tmp_path)
    assert found.status == "warning"
    assert "No Kubernetes cluster is configured" in found.found
