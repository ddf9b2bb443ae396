"""`slipway setup --target kubeflow` and the doctor: the rights to train by a TrainJob, the operator and the volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.doctor import kubeflow
from slipway.pipelines.doctor.check import Check, Context, Finding, examine
from slipway.pipelines.platforms.kubeflow import access
from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes
from tests.fakes.kubernetes.store import RESOURCES
from tests.pipelines.platforms.kubeflow.conftest import configuration


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.01")
    with FakeKubernetes(tmp_path) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig()))
        cluster.add_claim("slipway")
        yield cluster


def trains(**settings: str) -> RunConfig:
    return configuration("cpu*2", service_account="pipeline-runner", **settings)


def setup(folder: Path, config: RunConfig, *options: str) -> tuple[int, str, str]:
    (folder / "run.yaml").write_text(config.as_yaml())
    result = CliRunner().invoke(app, ["setup", "-c", str(folder / "run.yaml"), "--target", "kubeflow", *options])
    return result.exit_code, result.stdout, result.stderr


def doctor(config: RunConfig, folder: Path, check: Callable[[Context], str] = kubeflow.training) -> Finding:
    return examine(Check("kubeflow", check), Context(config, "kubeflow", False, folder))


def granted(cluster: FakeKubernetes) -> dict[str, list[dict]]:
    return {kind.kind: cluster.store.all(kind) for kind in RESOURCES if kind.kind in ("Role", "RoleBinding")}


def test_the_rights_for_a_trainjob_are_printed_as_a_manifest_and_applied(
    cluster: FakeKubernetes, tmp_path: Path
) -> None:
    code, printed, _ = setup(tmp_path, trains())
    assert code == 0
    assert [body["kind"] for body in yaml.safe_load_all(printed)] == ["Role", "RoleBinding"]
    assert granted(cluster) == {"Role": [], "RoleBinding": []}
    assert doctor(trains(), tmp_path).status == "warning"
    code, said, _ = setup(tmp_path, trains(), "--apply")
    assert (code, said.count("created")) == (0, 2)
    found = doctor(trains(), tmp_path)
    assert (found.status, found.error) == ("pass", None)
    assert "unchanged" in setup(tmp_path, trains(), "--apply")[1]
    other = configuration("cpu*2", service_account="default")
    assert "RoleBinding slipway-train in kubeflow: changed" in setup(tmp_path, other, "--apply")[1]
    (binding,) = granted(cluster)["RoleBinding"]
    assert [subject["name"] for subject in binding["subjects"]] == ["pipeline-runner", "default"]


def test_the_doctor_names_what_a_trainjob_lacks_on_the_cluster(cluster: FakeKubernetes, tmp_path: Path) -> None:
    cluster.installed.clear()
    absent = doctor(trains(), tmp_path)
    assert absent.status == "fail"
    assert str(absent.fix).startswith("kubectl apply --server-side")
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
    cluster: FakeKubernetes, tmp_path: Path, config: RunConfig, found: str
) -> None:
    cluster.add_claim("single", modes=["ReadWriteOnce"])
    told = doctor(config, tmp_path, kubeflow.volume)
    assert found in told.found
    assert (told.status == "fail") == told.found.endswith((".", "TrainJob's."))
    if config.kubeflow.context and told.status == "fail":
        with pytest.raises(UserError, match=told.found):
            access.check_before_run(config.kubeflow, config.parsed_hardware)


def test_who_may_not_grant_the_rights_for_a_trainjob_is_told_who_can(
    cluster: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(f"system:serviceaccount:{NAMESPACE}:default")))
    code, _, said = setup(tmp_path, trains(), "--apply")
    assert code != 0
    assert "slipway setup --target kubeflow | kubectl apply -f -" in said
    assert "not checked" in doctor(trains(), tmp_path).found
    assert "not checked" in doctor(trains(), tmp_path, kubeflow.volume).found


def test_without_a_kubeconfig_the_doctor_cannot_check_for_trainjobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    found = doctor(trains(), tmp_path)
    assert found.status == "warning"
    assert "No Kubernetes cluster is configured" in found.found
