"""The spec that `slipway config compile --target kubeflow` writes: pod settings, refused settings, and that it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slipway.components.register_model.registration import champion_folder
from slipway.components.train.trainjob.backend import TrainJobs
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.pipelines.platforms.kubeflow.launch import check_parameters, parameters_of
from slipway.pipelines.platforms.table import PLATFORMS
from tests.pipelines.platforms.kubeflow.conftest import DIGITS, configuration


def compiled(folder: Path, config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pipeline spec and the platform spec ({} if there is none)."""
    (folder / "run.yaml").write_text(config.as_yaml())
    output = folder / "spec.yaml"
    result = CliRunner().invoke(
        app, ["config", "compile", "-c", str(folder / "run.yaml"), "--target", "kubeflow", "-o", str(output)]
    )
    assert result.exit_code == 0, result.output
    specification, *platforms = yaml.safe_load_all(output.read_text())
    return specification, (platforms[0]["platforms"]["kubernetes"]["deploymentSpec"]["executors"] if platforms else {})


def inputs(specification: dict[str, Any], task: str) -> dict[str, Any]:
    """Return a task's constant parameters."""
    tasks = dict(specification["root"]["dag"]["tasks"])
    for component in specification["components"].values():
        tasks |= component.get("dag", {}).get("tasks", {})
    given = tasks[task]["inputs"]["parameters"]
    return {name: value["runtimeValue"]["constant"] for name, value in given.items() if "runtimeValue" in value}


def test_train_requests_gpus_and_selects_nodes(tmp_path: Path) -> None:
    nodes = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    config = configuration("t4x2", cpu="7", memory="24Gi", node_selector=nodes, tolerations=[taint])
    specification, pods = compiled(tmp_path, config)
    executors = specification["deploymentSpec"]["executors"]
    resources = executors["exec-train"]["container"]["resources"]
    assert (resources["accelerator"]["resourceType"], resources["accelerator"]["resourceCount"]) == (
        "nvidia.com/gpu",
        "2",
    )
    assert (resources["resourceCpuLimit"], resources["resourceMemoryLimit"]) == ("7", "24Gi")
    assert "accelerator" not in executors["exec-evaluate"]["container"]["resources"]
    assert pods["exec-train"]["nodeSelector"] == {"labels": nodes}
    assert pods["exec-train"]["tolerations"] == [taint]
    assert not {"nodeSelector", "tolerations"} & set(pods["exec-evaluate"])
    assert inputs(specification, "plan-training")["devices"] == 2


def test_a_steps_own_limits_replace_those_of_all_steps(tmp_path: Path) -> None:
    steps = {"prepare_data": {"memory": "64Gi"}, "plan_training": {"cpu": "500m"}, "evaluate": {"cpu": 2}}
    specification, _ = compiled(tmp_path, configuration(cpu=4, memory="16Gi", steps=steps))
    executors = specification["deploymentSpec"]["executors"]
    resources = {name: executors[f"exec-{name}"]["container"].get("resources", {}) for name in executors_of(executors)}
    limits = {
        name: (found.get("resourceCpuLimit"), found.get("resourceMemoryLimit")) for name, found in resources.items()
    }
    assert {name: found for name, found in limits.items() if any(found)} == {
        "prepare-data": ("4", "64Gi"),
        "plan-training": ("500m", None),
        "train": ("4", "16Gi"),
        "evaluate": ("2", "16Gi"),
    }


def executors_of(executors: dict[str, Any]) -> list[str]:
    return [name.removeprefix("exec-") for name in executors]


def test_with_a_volume_every_step_mounts_it_and_stores_its_outputs_there(tmp_path: Path) -> None:
    specification, pods = compiled(tmp_path, configuration(volume="claim", folder="/data"))
    assert set(pods) == set(specification["deploymentSpec"]["executors"])
    assert {(pod["pvcMount"][0]["constant"], pod["pvcMount"][0]["mountPath"]) for pod in pods.values()} == {
        ("claim", "/data")
    }
    assert json.loads(inputs(specification, "prepare-data")["settings"])["store"] == "/data/datasets"
    assert json.loads(inputs(specification, "register-model")["settings"])["registry"] == "/data/models"
    assert inputs(specification, "find-champion-folder")["registry"] == "/data/models"


def test_without_a_volume_nothing_is_registered_and_train_receives_the_data(tmp_path: Path) -> None:
    config = configuration(pipeline_root="minio://mlpipeline/slipway/")
    specification, pods = compiled(tmp_path, config)
    assert {name for pod in pods.values() for name in pod} == {"securityContext"}
    assert json.loads(inputs(specification, "prepare-data")["settings"])["store"] == ""
    assert {"run_id": "r1", "output": ""}.items() <= parameters_of(config, "r1").items()
    assert not any("register" in name or "champion" in name for name in specification["components"])
    train = specification["root"]["dag"]["tasks"]["train"]["inputs"]
    assert train["artifacts"]["dataset"]["taskOutputArtifact"]["producerTask"] == "prepare-data"
    assert inputs(specification, "evaluate")["champion"] == "none"


def train_job(specification: dict[str, Any]) -> TrainJobSettings:
    backend = json.loads(inputs(specification, "train")["backend"])
    assert backend["backend"] == "trainjob"
    return TrainJobs.model_validate(backend["settings"]).pods


def test_trainjob_pods_have_the_hardware_and_the_step_that_waits_for_them_has_not(tmp_path: Path) -> None:
    own = {"cpu": 4, "steps": {"train": {"memory": "64Gi"}}, "queue": "team", "priority_class": "high"}
    specification, pods = compiled(tmp_path, configuration("l4x4*2", gpu_labels="gke", folder="/data", **own))
    job = train_job(specification)
    assert job.resources == {"cpu": "4", "memory": "64Gi", "nvidia.com/gpu": "4"}
    assert job.node_selector == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert (job.volume, job.folder, job.queue, job.priority_class) == ("slipway", "/data", "team", "high")
    assert "resources" not in specification["deploymentSpec"]["executors"]["exec-train"]["container"]
    assert "nodeSelector" not in pods["exec-train"]
    assert pods["exec-train"]["pvcMount"][0]["mountPath"] == "/data"


def test_trainjob_of_a_tpu_slice_has_a_pod_per_host_with_its_chips(tmp_path: Path) -> None:
    config = configuration("tpu-v5e-4x4")
    config = config.model_copy(update={"train": config.train.model_copy(update={"engine": "jax"})})
    specification, _ = compiled(tmp_path, config)
    job = train_job(specification)
    assert job.resources == {"google.com/tpu": "4"}
    assert job.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert inputs(specification, "plan-training")["hosts"] == 4


def test_a_trainjob_trains_one_replica_only_for_what_a_step_cannot_have(tmp_path: Path) -> None:
    specification, pods = compiled(tmp_path, configuration("a100x2", gpu_labels="nvidia"))
    assert inputs(specification, "train")["backend"] == ""
    assert pods["exec-train"]["nodeSelector"] == {"labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}
    for setting in ({"queue": "team"}, {"priority_class": "high"}):
        specification, _ = compiled(tmp_path, configuration("cpu", **setting))
        assert train_job(specification)


@pytest.mark.parametrize(
    ("hardware", "settings", "fix"),
    [
        ("cpu*2", {"volume": None, "pipeline_root": "gs://bucket/x"}, "--set kubeflow.volume=CLAIM"),
        ("l4x4*2", {}, "--set kubeflow.gpu_labels=gke, or --hardware 'gpux4*2'"),
        ("rtx-pro-6000x1", {"gpu_labels": "nvidia"}, "--hardware 'gpux1', and the nodes' label"),
    ],
)
def test_a_trainjob_is_refused_before_the_run(hardware: str, settings: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError) as refused:
        settings_of(configuration(hardware, **settings))
    assert fix in str(refused.value)


def test_a_program_in_an_image_of_its_own_is_refused() -> None:
    config = configuration()
    own = config.train.model_copy(update={"image": f"registry/own@sha256:{'0' * 64}"})
    config = config.model_copy(update={"train": own})
    with pytest.raises(UserError, match="Training on Kubeflow runs in"):
        PLATFORMS["kubeflow"].check_hardware(Context(config, PLATFORMS["kubeflow"], False, Path.cwd()))


def test_parameters_that_the_server_would_refuse_are_named() -> None:
    check_parameters({"argument_items": "x" * 9_900, "run_id": "a"})
    with pytest.raises(UserError, match="accepts 10,000: argument_items alone has 9,962") as refused:
        check_parameters({"argument_items": "x" * 9_960, "run_id": "a" * 60})
    assert "pass its name" in str(refused.value.fix)


@pytest.mark.parametrize(
    ("hardware", "near"),
    [
        ("tpu-v3-8", "tpu-v5e-2x4"),
        ("a100x1+spot", "a100x1"),
        ("l4x1*2+timeout=1h", "l4x1*2"),
        ("cpu@e2-highmem-8", "cpu"),
    ],
)
def test_unsupported_hardware_is_refused(tmp_path: Path, hardware: str, near: str) -> None:
    (tmp_path / "run.yaml").write_text(configuration(hardware).as_yaml())
    for command in (["config", "compile", "-o", str(tmp_path / "spec.yaml")], ["run"]):
        arguments = [*command, "-c", str(tmp_path / "run.yaml"), "--target", "kubeflow"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert f"closest:  {near}" in result.stderr
    assert not (tmp_path / "spec.yaml").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"image": "registry.example.com:5000/trainer"}, "a digest or an immutable tag"),
        ({"image": "trainer:latest"}, "a digest or an immutable tag"),
        ({"volume": None}, "no storage for data and models"),
        ({"pipeline_root": "http://bucket/x"}, "kubeflow.pipeline_root"),
        ({"host": "kubeflow.example.com"}, "kubeflow.host"),
        ({"memory": "16 GB"}, "kubeflow.memory"),
        ({"hots": "x"}, "write kubeflow.host instead"),
        ({"run_as_user": -1}, "kubeflow.run_as_user"),
        ({"run_as_user": 2**31}, "kubeflow.run_as_user"),
        ({"image_pull_secrets": ["My Secret"]}, "correct kubeflow.image_pull_secrets.0 to my-secret"),
        ({"service_account": "a..b"}, "kubeflow.service_account: must be lowercase letters"),
        ({"namespace": "a.b"}, "kubeflow.namespace: must be at most 63 lowercase letters"),
        ({"memory": "16K"}, "closest:  16k"),
        ({"cpu": "0.0005"}, "kubeflow.cpu: must be a number of CPUs"),
        ({"accelerator": "gpu"}, "must be the name of a resource, such as nvidia.com/gpu"),
        ({"folder": "/dev/shm/"}, "another volume at this path"),
        ({"node_selector": {"a b": "c"}}, "the key of a label must be NAME or DOMAIN/NAME"),
        ({"node_selector": {"example.com/" + "a" * 64: "c"}}, "the key of a label must be"),
        ({"node_selector": {"pool": "a/b"}}, "the value of a label must be empty or at most 63"),
        ({"tolerations": [{"key": "a/b/c", "operator": "Exists"}]}, "the key of a taint must be"),
        ({"tolerations": [{"key": "a", "value": "b c"}]}, "the value of a label must be"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "value": "a"}]}, "Exists has no value"),
        ({"tolerations": [{"value": "a"}]}, "without a key needs operator Exists"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 60}]}, "tolerationSeconds needs the effect NoExecute"),
        ({"node_selector": {"a." * 126 + "ab/c": "d"}}, "the domain before the / has more than 253 characters"),
        ({"cpu": 0.0005}, "kubeflow.cpu: must be a number of CPUs"),
        ({"memory": "0.0Gi"}, "kubeflow.memory"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        configuration(**settings)


def test_settings_that_kubernetes_accepts_are_accepted(tmp_path: Path) -> None:
    names = {"service_account": "team.trainer", "image_pull_secrets": ["registry.example.com"], "queue": "team.a"}
    labels = {"node_selector": {"Pool": "", "example.com/kind_of.Node": "A_1"}, "tolerations": [{"operator": "Exists"}]}
    configuration(**names, **labels, run_as_user=2**31 - 1)
    evicted = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    for cpu, memory, given in (("0.5", "16000000k", "16000000000"), (0.5, "1.5Gi", "1610612736")):
        specification, pods = compiled(tmp_path, configuration("gpux2", cpu=cpu, memory=memory, tolerations=[evicted]))
        resources = specification["deploymentSpec"]["executors"]["exec-train"]["container"]["resources"]
        assert (resources["resourceCpuLimit"], resources["resourceMemoryLimit"]) == ("0.5", given)
        assert pods["exec-train"]["tolerations"] == [evicted]


def test_without_a_cluster_the_missing_section_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "-c", str(DIGITS), "--target", "kubeflow"])
    assert result.exit_code == 2
    assert "add a section kubeflow:" in result.stderr


def run(folder: Path, config: RunConfig) -> Path:
    """Run the steps of a pipeline of one epoch without a gate; return the folder of their artifacts."""
    gate = config.evaluate.gate.model_copy(update={"minimum": None})
    train, evaluate = {"epochs": 1.0}, {"gate": gate}
    brief = {"train": config.train.model_copy(update=train), "evaluate": config.evaluate.model_copy(update=evaluate)}
    config = config.model_copy(update=brief)
    (folder / "run.yaml").write_text(config.as_yaml())
    arguments = json.dumps(parameters_of(config, "first"))
    subprocess.run(
        [sys.executable, "-m", "tests.programs.run_pipeline", "kubeflow", "run.yaml", "artifacts", arguments],
        check=True,
        capture_output=True,
        timeout=200,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},  # the steps find this source tree from whatever folder
    )
    return folder / "artifacts"


@pytest.mark.long  # test_trainjob.py also has a run on a volume
def test_the_steps_run_and_store_their_outputs_on_the_volume(tmp_path: Path) -> None:
    config = configuration(folder=str(tmp_path / "volume"), cpu="1", memory="2Gi")
    run(tmp_path, config)
    volume = tmp_path / "volume"
    assert (volume / "runs/first/model/saved_model.pb").is_file()
    assert (volume / "runs/first/checkpoints").is_dir()
    assert len(list((volume / "datasets/digits").glob("*/manifest.json"))) == 1
    assert json.loads((volume / "models/digits/1/metadata.json").read_text())["run_id"] == "first"
    # What the next run's step find_champion_folder gives, and the gate is measured against.
    assert champion_folder(str(volume / "models"), "digits") == str(volume / "models/digits/1")
    assert champion_folder(str(volume / "models"), "letters") == ""


@pytest.mark.slow
def test_without_a_volume_the_steps_store_artifacts(tmp_path: Path) -> None:
    config = configuration(pipeline_root="minio://mlpipeline/slipway")
    root = run(tmp_path, config)
    # Below each step's own artifact, or Kubeflow Pipelines would refuse to store it.
    assert len(list(root.glob("*/prepare-data/dataset/digits/*/manifest.json"))) == 1
    assert len(list(root.glob("*/train/model/saved_model.pb"))) == 1
    assert len(list(root.glob("*/evaluate/report"))) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifacts", "run.yaml"]
