"""Images built by a real builder, pushed to a real registry, and the digits pipeline in real containers."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.conftest import MARK, Slipway, Sources
from tests.containers.engine import Engine
from tests.end_to_end.workspace import record_in, steps, wait_for
from tests.fidelity.test_gpu_driver import check_driver_paths

NAME = "slipway/steps-cpu"


def record_of(folder: Path, run: str = "latest") -> dict[str, Any]:
    return record_in(folder / "runs" / run)


@pytest.fixture(scope="module")
def containers(slipway: Slipway) -> dict[str, Any]:
    """The record of a run in containers."""
    done = slipway("run", "--runner", "docker")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return record_of(slipway.folder)


def test_a_run_in_containers_gives_the_results_of_processes(
    slipway: Slipway, containers: dict[str, Any], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "slipway.pipelines", "run", "-c", str(slipway.folder / "configs/digits.yaml")]
    subprocess.run(command, cwd=tmp_path, env=slipway.environment, check=True, capture_output=True)
    processes = record_of(tmp_path)
    assert {step["status"] for step in containers["steps"]} == {"succeeded"}
    assert containers["metrics"] == processes["metrics"]
    assert containers["metrics"]["accuracy"] >= 0.97
    assert containers["verdict"]["decision"] == "promote"


def test_every_step_ran_in_the_image_that_build_image_gave(slipway: Slipway, containers: dict[str, Any]) -> None:
    image = steps(containers)["build_image"]["outputs"]["image"]
    assert image.startswith(f"{slipway.engine.registry}/{NAME}@sha256:")
    specification = yaml.safe_load((slipway.folder / "runs/latest/spec.yaml").read_text())
    executors = specification["deploymentSpec"]["executors"].values()
    assert {executor["container"]["image"] for executor in executors} == {image}
    assert len(executors) == 5


def test_outputs_have_the_usual_paths_and_belong_to_the_user(slipway: Slipway, containers: dict[str, Any]) -> None:
    assert Path(containers["model"]) == slipway.folder / "models/digits/1"
    assert Path(containers["report"]).is_file()
    left = [path for folder in ("runs", "datasets", "models") for path in (slipway.folder / folder).rglob("*")]
    assert len(left) > 30
    assert {path.lstat().st_uid for path in left} == {os.getuid()}


def test_an_image_has_no_entrypoint_runs_as_nobody_and_has_labels(slipway: Slipway, containers: dict[str, Any]) -> None:
    engine, digest = slipway.engine, slipway.image().partition("@")[2]
    manifest: dict[str, Any] = engine.manifest(NAME, digest)
    configuration = json.loads(engine.blob(NAME, manifest["config"]["digest"]))["config"]
    assert not configuration.get("Entrypoint")
    assert configuration["User"] == "65534:65534"
    check_driver_paths(dict(variable.split("=", 1) for variable in configuration["Env"]))
    labels = configuration["Labels"]
    assert labels["org.opencontainers.image.title"] == "slipway/steps-cpu"
    assert len(labels["org.opencontainers.image.revision"]) >= 40
    assert labels["org.opencontainers.image.version"][:24] in engine.tags(NAME)


def layers(engine: Engine, image: str) -> list[str]:
    manifest: dict[str, Any] = engine.manifest(NAME, image.partition("@")[2])
    return [layer["digest"] for layer in manifest["layers"]]


def test_a_code_change_rebuilds_the_last_layer_and_a_test_change_nothing(
    slipway: Slipway, sources: Sources, containers: dict[str, Any]
) -> None:
    before = slipway.image()
    for name in ("README.md", "tests/conftest.py"):
        with (sources.folder / name).open("a") as file:
            file.write("\n# changed\n")
    again = slipway("config", "build", "--target", "local")
    assert (again.stdout.strip(), "STEP" in again.stderr) == (before, False)
    with (sources.folder / "trainer/loop.py").open("a") as file:
        file.write("\n# changed\n")
    after = slipway.image()
    assert after != before
    assert layers(slipway.engine, after)[:-1] == layers(slipway.engine, before)[:-1]
    assert layers(slipway.engine, after)[-1] != layers(slipway.engine, before)[-1]
    sources.git("checkout", "--quiet", ".")
    assert slipway.image() == before


def test_a_planted_secret_is_in_no_layer(slipway: Slipway, containers: dict[str, Any]) -> None:
    stored = [path for path in (slipway.engine.folder / "registry").rglob("data") if path.is_file()]
    assert len(stored) > 4
    found = [path for path in stored if _contains(path, MARK.encode())]
    assert found == []
    # The search would see it: what was packed is found the same way.
    assert [path for path in stored if _contains(path, b"def run_local_cluster(")]


def _contains(path: Path, mark: bytes) -> bool:
    """Whether a blob (a layer or a document) contains these bytes."""
    size = 1 << 24
    tail = b""
    with path.open("rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        while block := file.read(size):
            if mark in tail + block:
                return True
            tail = block[-len(mark) :]
    return False


def test_a_stopped_run_ends_its_containers_and_can_be_resumed(slipway: Slipway, containers: dict[str, Any]) -> None:
    import docker

    process = slipway.start("run", "--runner", "docker", "--set", "train.epochs=200", "--set", "evaluate.champion=none")
    run = wait_for(lambda: _new_run(slipway.folder, containers["run_id"]))
    wait_for(lambda: steps(record_of(slipway.folder, run))["train"]["status"] == "running")
    client = docker.DockerClient(base_url=slipway.environment["DOCKER_HOST"])
    assert client.containers.list(filters={"label": f"slipway.run={run}"})
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert record_of(slipway.folder, run)["status"] == "cancelled"
    assert client.containers.list(filters={"label": f"slipway.run={run}"}) == []
    client.close()


def _new_run(folder: Path, old: str) -> str | None:
    return next(
        (path.parent.name for path in (folder / "runs").glob("digits-*/run.json") if path.parent.name != old), None
    )


def test_a_step_that_fails_shows_its_error_as_without_containers(slipway: Slipway, containers: dict[str, Any]) -> None:
    done = slipway("run", "--runner", "docker", "--set", "train.batch_size=100000")
    assert done.returncode == 1
    assert "setting:  train.batch_size" in done.stderr
    assert steps(record_of(slipway.folder))["plan_training"]["status"] == "failed"


VERTEX = ("vertex.project=p", "vertex.region=europe-west4", "vertex.bucket=gs://p-b")
LISTED = """
import importlib, importlib.metadata, json, os, pkgutil
from slipway import trainer
names = [found.name for found in pkgutil.walk_packages(trainer.__path__, "slipway.trainer.")]
for name in names:
    if not any(part in name for part in ("jax", "pytorch", "states", "__main__")):
        importlib.import_module(name)
packages = sorted({found.metadata["Name"].lower() for found in importlib.metadata.distributions()})
print(json.dumps({"packages": packages, "user": os.getuid(), "code": sorted(os.listdir("/app/slipway"))}))
"""


@pytest.mark.long
def test_trainer_and_serving_images_have_no_packages_of_the_pipeline(
    slipway: Slipway, containers: dict[str, Any]
) -> None:
    import docker

    repository = f"{slipway.engine.registry}/vertex"
    settings = (*VERTEX, f"vertex.build.base={slipway.engine.base}", f"vertex.build.repository={repository}")
    options = [part for setting in settings for part in ("--set", setting)]
    done = slipway("config", "build", "--target", "vertex", "--builder", "buildah", "--no-push", "--json", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    images = json.loads(done.stdout)
    client = docker.DockerClient(base_url=slipway.environment["DOCKER_HOST"])
    found = {}
    for role, image in images.items():
        command = ["sh", "-c", 'exec python -c "$0" 2>/dev/null', LISTED]
        found[role] = json.loads(client.containers.run(image, command, remove=True).decode().splitlines()[-1])
        print(image, f"{client.images.get(image).attrs['Size'] / 1e9:.2f} GB")
    client.close()
    cloud = {"kfp", "google-cloud-aiplatform", "google-cloud-pipeline-components", "google-api-python-client", "pip"}
    assert cloud & set(found["trainer"]["packages"]) == cloud & set(found["serving"]["packages"]) == set()
    assert cloud & set(found["steps"]["packages"]) == cloud - {"google-cloud-pipeline-components", "pip"}
    assert [name for name in found["steps"]["packages"] if name.startswith("nvidia")] == []
    trainer = {"__init__.py", "core", "extensions.py", "trainer", "training.py"}
    assert set(found["trainer"]["code"]) == trainer
    assert set(found["steps"]["code"]) == {*trainer, "components", "pipelines", "serving"}
    assert set(found["serving"]["code"]) == {*trainer, "serving"}
    assert {role: found[role]["user"] for role in found} == {"steps": 0, "trainer": 0, "serving": 65534}


NETWORK = """
import json
import iniconfig
import keras
from shapes import flat

def build(image_shape, classes):
    width = json.load(open("sizes/width.json")) if iniconfig.IniConfig else 0
    return keras.Sequential([keras.Input(image_shape), flat(), keras.layers.Dense(width), keras.layers.Dense(classes)])
"""


def test_a_projects_modules_data_files_and_requirements_are_in_its_image(
    engine: Engine, sources: Sources, containers: dict[str, Any], tmp_path: Path
) -> None:
    project = Slipway(engine, sources, tmp_path)
    files = {
        "network.py": NETWORK,
        "shapes.py": "import keras\n\ndef flat():\n    return keras.layers.Flatten()\n",
        "sizes/width.json": "16",
        "requirements.txt": f"iniconfig=={metadata.version('iniconfig')}\n",
        ".gitignore": "sizes/\nruns/\ndatasets/\nmodels/\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for arguments in (["init", "--quiet"], ["add", "network.py", "shapes.py"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    settings = {
        "model.builder": "network:build",
        "model.arguments": "{}",
        "build.include": "[sizes]",
        "build.requirements": "requirements.txt",
        "train.epochs": 1,
        "evaluate.gate.minimum": 0.1,
    }
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    done = project("run", "--runner", "docker", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {step["status"] for step in record_of(tmp_path)["steps"]} == {"succeeded"}
