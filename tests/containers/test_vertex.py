"""Runs on Vertex AI, end to end on loopback: every task and every replica is a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from google.protobuf import json_format

from slipway.trainer.checkpoint.store import pointed_step
from tests.containers.conftest import Sources
from tests.containers.engine import Engine
from tests.containers.loopback import build_launcher, vertex_on_loopback
from tests.end_to_end.test_endpoints import Client
from tests.end_to_end.test_migration import CLASSIC, write_digits
from tests.end_to_end.test_migration import change as change_program
from tests.end_to_end.workspace import record_in, steps, wait_for
from tests.fakes.google import FakeGoogle
from tests.fakes.ready import BUCKET, vertex_settings
from tests.fakes.vertex.replicas import REPLICA_LABEL
from tests.fakes.vertex.serving import ACCOUNT, STAND_IN
from tests.pipelines.platforms.vertex.endpoints.conftest import PARENT, Workspace

REPLICAS = ("workerpool0-0", "workerpool1-0")
MODELS = """
import json, os
from slipway.trainer.models.digits import build as digits

def build(image_shape, classes):
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if task["type"] == "worker":
        raise ValueError(f"no network for {task['type']} {task['index']}")
    return digits(image_shape, classes)
"""


class Cloud:
    """The command in a folder with a configuration for the project on loopback."""

    def __init__(self, engine: Engine, google: FakeGoogle, sources: Sources, folder: Path) -> None:
        self.google = google
        self.folder = folder
        self.docker = docker.DockerClient(base_url=engine.environment["DOCKER_HOST"])
        values = yaml.safe_load((sources.folder / "configs/digits.yaml").read_text())
        vertex = vertex_settings(google, image=None, serving_image=None, build={"base": engine.base})
        values |= {"hardware": "cpu*2", "vertex": vertex}
        (folder / "run.yaml").write_text(yaml.safe_dump(values))
        self.environment = {**os.environ, **google.environment, "PYTHONPATH": str(sources.folder)}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "slipway.pipelines", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def record(self, run: str = "latest") -> dict[str, Any]:
        return record_in(self.folder / "runs" / run)

    def path(self, uri: str) -> Path:
        """Return the local path of an object or a folder of the bucket."""
        mount = self.google.storage.mount
        assert mount
        return mount.folder / uri.removeprefix("gs://")

    def objects(self, folder: str) -> dict[str, bytes]:
        """Return what is in the bucket, by the name below `folder`; files that are open are not."""
        with self.google.world.lock:
            assert self.google.storage.mount
            self.google.storage.mount.take_in(BUCKET)
            names = [name for name in self.google.storage.names(BUCKET) if name.startswith(f"{folder}/")]
            return {name.removeprefix(f"{folder}/"): self.google.storage.read(BUCKET, name)[0] for name in names}

    def lines(self, job: str) -> dict[str, list[str]]:
        """Return the output of each replica of a custom job."""
        found: dict[str, list[str]] = {}
        for entry in self.google.log.entries:
            labels = entry["resource"]["labels"]
            if labels.get("job_id") == job.rpartition("/")[2]:
                found.setdefault(labels["task_name"], []).append(entry["jsonPayload"]["message"])
        return found

    def versions(self) -> list[Any]:
        """Return the registered model's versions."""
        [versions] = self.google.region.models.models.values()
        return versions

    def training_jobs(self) -> list[str]:
        """Return the custom jobs that a launcher created."""
        jobs = self.google.region.jobs.jobs.values()
        return [job.name for job in jobs if job.display_name != "caip_pipelines_task"]

    def replicas(self, job: str) -> dict[str, Any]:
        """Return the running containers of a custom job by replica name."""
        found = {}
        for container in self.docker.containers.list(filters={"label": REPLICA_LABEL}):
            identity, _, name = container.labels[REPLICA_LABEL].partition("/")
            if identity == job.rpartition("/")[2]:
                found[name] = container
        return found


@pytest.fixture(scope="module")
def cloud(engine: Engine, sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    build_launcher(engine)
    with vertex_on_loopback(engine, tmp_path_factory.mktemp("google")) as google:
        yield Cloud(engine, google, sources, tmp_path_factory.mktemp("cloud"))


@pytest.fixture(scope="module")
def submitted(cloud: Cloud) -> dict[str, Any]:
    """The record of a run that was watched to its end."""
    done = cloud("setup", "-c", "run.yaml", "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    done = cloud("run", "-c", "run.yaml", "--target", "vertex")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return cloud.record()


def test_every_step_ran_in_a_container(cloud: Cloud, submitted: dict[str, Any]) -> None:
    assert {step["status"] for step in submitted["steps"]} == {"succeeded"}
    assert submitted["metrics"]["accuracy"] >= 0.97
    assert submitted["verdict"]["decision"] == "promote"
    model = cloud.path(steps(submitted)["train"]["outputs"]["model"])
    assert (model / "saved_model.pb").is_file()
    assert model == cloud.path(f"gs://{BUCKET}/runs/{submitted['run_id']}/model")
    assert Path(submitted["report"]).read_text().lstrip().startswith("<!doctype html>")
    [version] = cloud.versions()
    assert version.artifact_uri == steps(submitted)["train"]["outputs"]["model"]
    assert "champion" in version.version_aliases
    served = version.container_spec
    assert served.image_uri.rpartition("/")[2].startswith("serving-cpu@sha256:")
    assert (served.health_route, [port.container_port for port in served.ports]) == ("/health", [8080])


def test_the_executed_spec_is_the_compiled_one(cloud: Cloud, submitted: dict[str, Any]) -> None:
    done = cloud("config", "compile", "-c", "run.yaml", "--target", "vertex", "-o", "spec.yaml")
    assert done.returncode == 0, done.stderr
    written = (cloud.folder / "spec.yaml").read_bytes()
    assert (cloud.folder / "runs" / submitted["run_id"] / "spec.yaml").read_bytes() == written
    job = cloud.google.region.pipelines.jobs[submitted["job"]]
    sent = json_format.MessageToDict(type(job).pb(job).pipeline_spec)
    expected = yaml.safe_load(written)
    for component in (expected["root"], *expected["components"].values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            assert not task.get("cachingOptions")  # off, as kfp writes it
            task["cachingOptions"] = {"enableCache": False}  # as Google's client sends it
    assert sent == expected
    images = [one["container"]["image"] for one in sent["deploymentSpec"]["executors"].values()]
    own = [image for image in images if not image.startswith("gcr.io/ml-pipeline/")]
    assert len(images) - len(own) == 1
    assert all("@sha256:" in image for image in own)
    assert cloud.google.endpoints["aiplatform"] in written.decode()


def test_each_replica_ran_in_a_separate_container(cloud: Cloud, submitted: dict[str, Any]) -> None:
    lines = cloud.lines(cloud.training_jobs()[0])
    checksums = {name: [line for line in lines[name] if "weights checksum" in line] for name in REPLICAS}
    ends = {found[-1].rpartition(" ")[2] for found in checksums.values()}
    assert len(ends) == 1, checksums
    shown = cloud("logs", submitted["run_id"], "--step", "train").stdout
    assert all(f"{name} | " in shown for name in REPLICAS)


def container(engine: Engine, google: FakeGoogle, image: str, command: Sequence[str]) -> list[str]:
    """Return what runs a model server's command in a container until it ends, or is sent SIGTERM."""
    assert google.region.servers.key_file is not None
    key = google.region.servers.key_file(ACCOUNT)
    key.chmod(0o644)
    authority, server = Path(google.certificates.authority_file), Path(STAND_IN[-1])
    files = {key: "/key.json", authority: "/authority.pem", server: "/server.py"}
    names = ("HTTP_PORT", "HEALTH_ROUTE", "PREDICT_ROUTE", "STORAGE_URI", "DEPLOYED_MODEL_ID")
    variables = {f"AIP_{name}": "" for name in names} | {"API_ENDPOINT_OVERRIDE": ""}
    variables |= {"GOOGLE_APPLICATION_CREDENTIALS": "=/key.json", "REQUESTS_CA_BUNDLE": "=/authority.pem"}
    options = [part for name, value in variables.items() for part in ("--env", f"{name}{value}")]
    options += [part for path, place in files.items() for part in ("--volume", f"{path}:{place}:ro")]
    podman = ["podman", "--remote", "--url", engine.environment["DOCKER_HOST"], "run", "--rm", "--network=host"]
    return [*podman, *options, image, *command]


def test_a_model_is_rolled_out_in_containers_and_a_failing_one_withdrawn_while_a_client_sends_requests(
    cloud: Cloud, engine: Engine, submitted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registered model is deployed, then a second version of it, then one whose server fails."""
    for name, value in cloud.google.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(cloud.google, tmp_path)
    workspace.write(canary=[5, 25, 100], hold=0.05, check={"requests": None, "rate": 30, "answers": 8})
    [first] = cloud.versions()
    spec = first.container_spec
    commands = cloud.google.region.servers.commands
    commands["digits"] = container(engine, cloud.google, spec.image_uri, list(spec.command))
    model = cloud.path(steps(submitted)["train"]["outputs"]["model"])
    stored = json.loads((model / "examples.json").read_text())
    workspace.deployed("--version", "1")
    workspace.register(uri=first.artifact_uri)
    with Client(workspace, stored["instances"][0]) as client:
        new = json.loads(workspace.deployed("--json").stdout)["deployed"]
    counts = Counter(each.deployed for each in client.answers)
    print(counts)
    assert not [each.error for each in client.answers if each.error]
    assert len(counts) == 2 and min(counts.values()) > 20

    commands["digits@3"] = container(
        engine, cloud.google, spec.image_uri, ["python", "-S", "/server.py", "--failing", "1"]
    )
    workspace.register(uri=first.artifact_uri)
    with Client(workspace, stored["instances"][0]) as client:
        result = workspace.slipway("deploy", "--json")
        decided = time.monotonic()
        time.sleep(2)
    assert result.exit_code == 3, result.output
    print(json.loads(result.stdout)["reason"])
    after = [(each.deployed, each.error) for each in client.answers if each.began > decided]
    assert len(after) > 20 and set(after) == {(new, "")}
    assert workspace.versions == ["digits@2"]
    assert workspace.slipway("endpoints", "delete", "digits", "--yes").exit_code == 0
    wait_for(lambda: not cloud.docker.containers.list(filters={"ancestor": spec.image_uri}), seconds=60)
    workspace.connection.models.merge_version_aliases(name=f"{PARENT}/models/digits@1", version_aliases=["champion"])


def test_a_replica_that_raises_is_explained_with_its_traceback(cloud: Cloud, submitted: dict[str, Any]) -> None:
    (cloud.folder / "own_models.py").write_text(MODELS)
    for command in (("init", "--quiet"), ("add", "own_models.py")):
        subprocess.run(["git", "-C", str(cloud.folder), *command], check=True)
    setting = "model.builder=own_models:build"
    done = cloud("run", "-c", "run.yaml", "--target", "vertex", "--set", setting, "--set", "evaluate.champion=none")
    assert done.returncode == 1, done.stdout + done.stderr
    explained = cloud("explain", cloud.record()["run_id"]).stdout
    print(explained)
    assert "workerpool1-0" in explained
    assert "ValueError: no network for worker 0" in explained
    assert "own_models.py" in explained


def retries(cloud: Cloud, job: str) -> list[str]:
    """Return the service's messages about exits that made it retry a job."""
    said = cloud.lines(job).get("service", [])
    return [
        line
        for line in said
        if re.fullmatch(r"The replica \S+ exited with .* status of 134; the job is retried\.", line)
    ]


@pytest.mark.long
def test_a_lost_and_a_preempted_replica_of_a_scheduled_run_restart_and_training_resumes(
    cloud: Cloud, submitted: dict[str, Any]
) -> None:
    schedule = {"configuration": "run.yaml", "cron": "0 3 * * *", "time_zone": "UTC", "set": ["train.epochs=60"]}
    (cloud.folder / "configs/schedules").mkdir(parents=True)
    (cloud.folder / "configs/schedules/nightly.yaml").write_text(yaml.safe_dump(schedule))
    made = cloud("schedule", "apply")
    assert made.returncode == 0, made.stdout + made.stderr
    before, versions = set(cloud.training_jobs()), len(cloud.versions())
    [job] = cloud.google.region.schedules.move(timedelta(days=1))
    [training] = wait_for(lambda: [name for name in cloud.training_jobs() if name not in before], seconds=300)
    output = cloud.path(f"gs://{BUCKET}/runs/{job.name.rpartition('/')[2]}")
    wait_for(lambda: list(output.glob("checkpoints/*")), seconds=120)
    cloud.google.region.jobs.lose(training, "workerpool1-0", noticed_after=60.0)
    wait_for(lambda: len(retries(cloud, training)) == 1, seconds=120)
    saved = pointed_step(output / "checkpoints") or 0
    wait_for(lambda: (pointed_step(output / "checkpoints") or 0) > saved, seconds=240)
    cloud.replicas(training)["workerpool0-0"].kill(signal.SIGTERM)
    wait_for(lambda: job.state.name not in ("PIPELINE_STATE_PENDING", "PIPELINE_STATE_RUNNING"), seconds=600)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", job.error
    lines = cloud.lines(training)
    print("\n".join(lines["service"]))
    assert len(retries(cloud, training)) == 2
    for name in REPLICAS:
        assert [line for line in lines[name] if "resuming from the checkpoint" in line], lines[name]
    assert len(cloud.versions()) == versions + 1


def test_the_best_of_several_trials_is_registered(cloud: Cloud, submitted: dict[str, Any]) -> None:
    """Each trial is a container, whose metric the service reads from a file."""
    cloud.google.region.searches.dice.seed(1)
    rate = {"low": 0.0001, "high": 0.02, "scale": "log"}
    tune = {"trials": 3, "parallel": 2, "parameters": {"train.learning_rate": rate}}
    changes = ("train.steps=30", "evaluate.champion=none", "evaluate.gate.minimum=0.1", f"tune={json.dumps(tune)}")
    options = [option for change in changes for option in ("--set", change)]
    done = cloud("tune", "-c", "run.yaml", "--target", "vertex", "--hardware", "cpu", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = cloud.google.region.searches.jobs.values()
    values = {trial.id: trial.final_measurement.metrics[0].value for trial in job.trials}
    assert set(values) == {"1", "2", "3"}
    assert len(set(values.values())) > 1, "the trials are trainings with different results"
    trained = steps(cloud.record())["train"]["outputs"]
    assert values[trained["trial"]] == max(values.values())
    assert cloud.versions()[-1].artifact_uri == trained["model"]


@pytest.fixture(scope="module")
def training(cloud: Cloud, submitted: dict[str, Any]) -> str:
    """The custom job of the newest run, which is in progress."""
    before = set(cloud.training_jobs())
    settings = ("--set", "train.epochs=5000", "--set", "evaluate.champion=none")
    done = cloud("run", "-c", "run.yaml", "--target", "vertex", "--no-wait", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    [training] = wait_for(lambda: [name for name in cloud.training_jobs() if name not in before], seconds=300)
    return training


def test_the_history_up_to_the_checkpoint_is_in_the_bucket_while_a_job_runs(cloud: Cloud, training: str) -> None:
    """A machine that is lost takes the files that it has open with it: see tests/fidelity/test_mount.py."""
    import tensorflow as tf

    folder = f"runs/{cloud.record()['run_id']}"
    found = wait_for(lambda: (there := cloud.objects(folder)) and "checkpoints/latest" in there and there, seconds=120)
    step = int(found["checkpoints/latest"].removeprefix(b"step-"))
    history = [json.loads(line) for line in found["logs/metrics.jsonl"].splitlines()]
    assert max(line["step"] for line in history if line["kind"] == "train") >= step
    [name] = [name for name in found if name.startswith("logs/train/events.out.tfevents.")]
    (events := cloud.folder / "events").write_bytes(found[name])
    shown = [
        tf.compat.v1.Event.FromString(record).step
        for record in tf.data.TFRecordDataset(str(events)).as_numpy_iterator()
    ]
    assert max(shown) >= step


def test_a_run_that_is_cancelled_leaves_no_container(cloud: Cloud, training: str) -> None:
    wait_for(lambda: len(cloud.replicas(training)) == 2, seconds=60)
    done = cloud("cancel")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.record()["status"] == "cancelled"
    wait_for(lambda: cloud.google.region.jobs.jobs[training].state.name == "JOB_STATE_CANCELLED", seconds=60)
    assert cloud.replicas(training) == {}


def test_another_user_than_the_mounter_cannot_write_to_the_bucket(cloud: Cloud, submitted: dict[str, Any]) -> None:
    done = cloud("run", "-c", "run.yaml", "--target", "vertex", "--set", "vertex.build.run_as=65534:65534")
    assert done.returncode == 1, done.stdout + done.stderr
    explained = cloud("explain", cloud.record()["run_id"]).stdout
    print(explained)
    assert "Permission denied" in explained
    assert "/gcs/" in explained


@pytest.mark.long
def test_a_migrated_program_runs_on_two_replicas(cloud: Cloud, submitted: dict[str, Any]) -> None:
    """The last test: its model is the project's second one."""
    shutil.copytree(CLASSIC / "trainer", cloud.folder / "trainer")
    write_digits(cloud.path(f"gs://{BUCKET}/digits.csv"))
    done = cloud("migrate", "-o", "classic.yaml", "--", "--config", str(CLASSIC / "config.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    change_program(cloud.folder)
    for command in (["init", "--quiet"], ["add", "trainer"]):  # images contain what git tracks
        subprocess.run(["git", "-C", str(cloud.folder), *command], check=True)
    values = yaml.safe_load((cloud.folder / "classic.yaml").read_text())
    assert values["hardware"] == "cpu*2"
    values["vertex"] = yaml.safe_load((cloud.folder / "run.yaml").read_text())["vertex"]
    arguments = values["train"]["arguments"]
    arguments[arguments.index("digits.csv")] = f"/gcs/{BUCKET}/digits.csv"
    (cloud.folder / "classic.yaml").write_text(yaml.safe_dump(values))
    done = cloud("run", "-c", "classic.yaml", "--target", "vertex")
    assert done.returncode == 0, done.stdout + done.stderr
    record = cloud.record()
    assert record["metrics"]["accuracy"] >= 0.9
    assert record["verdict"]["decision"] == "promote"
    lines = cloud.lines(cloud.training_jobs()[-1])
    for name, task in zip(REPLICAS, ("chief", "worker"), strict=True):
        assert any(f"replica {task} of 2: test accuracy" in line for line in lines[name]), lines[name]
    models = cloud.google.region.models.models
    assert [len(versions) for versions in models.values()][-1] == 1
    model = cloud.path(f"gs://{BUCKET}/runs/{record['run_id']}/model")
    assert (model / "saved_model.pb").is_file() and (model / "metrics.json").is_file()
