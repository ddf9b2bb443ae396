"""The mounts and settings of a local run's containers, and what is refused before they start."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml
from docker import errors
from kfp import compiler
from typer.testing import CliRunner

from slipway.core.memory import MemoryKills
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig, load, validate
from slipway.pipelines.platforms.local import containers, replica
from slipway.pipelines.platforms.local.containers import HOST
from slipway.pipelines.platforms.local.steps import pipeline
from slipway.pipelines.runs import record as runs

DIGITS = Path(__file__).parents[4] / "configs/digits.yaml"


def configuration(*overrides: str) -> RunConfig:
    return load(DIGITS, overrides)


def test_only_the_working_folder_is_mounted_by_default(tmp_path: Path) -> None:
    assert containers.mounted_folders(configuration(), tmp_path) == [tmp_path]
    assert not (tmp_path / "datasets").exists()


@pytest.mark.parametrize("source", ["images:{}/images", "csv:{}/images/all.csv", "tfrecord:{}/images/*/a-*.tfrecord"])
def test_folders_elsewhere_that_settings_name_are_mounted_too(tmp_path: Path, source: str) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    (elsewhere / "images").mkdir(parents=True)
    here.mkdir()
    config = configuration(
        f"data.source={source.format(elsewhere)}", f"data.store={elsewhere}/store", "register.registry=../models",
        "data.text.vocabulary=../bert/vocab.txt",
    )  # fmt: skip
    assert containers.mounted_folders(config, here) == [
        here, elsewhere / "store", tmp_path / "models", elsewhere / "images", tmp_path / "bert"
    ]  # fmt: skip
    assert (elsewhere / "store").is_dir(), "the engine would create it, as root's"


def client(security: list[str], component: str) -> Any:
    return SimpleNamespace(
        info=lambda: {"SecurityOptions": security}, version=lambda: {"Components": [{"Name": component}]}
    )


@pytest.mark.parametrize(
    ("security", "component", "expected"),
    [
        (["name=seccomp"], "Engine", {"user": "1000:1001"}),
        (["name=rootless"], "Engine", {"user": "0:0"}),
        (["name=rootless"], "Podman Engine", {"user": "1000:1001", "userns_mode": "keep-id"}),
    ],
)
def test_files_written_by_a_container_belong_to_the_user(
    monkeypatch: pytest.MonkeyPatch, security: list[str], component: str, expected: dict[str, str]
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("os.getgid", lambda: 1001)
    assert containers._user(client(security, component)) == expected


@pytest.mark.extension("google")
def test_without_a_docker_api_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "-c", str(DIGITS), "--runner", "docker"])
    assert result.exit_code == 2
    assert "setting:  DOCKER_HOST" in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.extension("vertex")
def test_a_runner_option_without_effect_is_refused(tmp_path: Path) -> None:
    values = yaml.safe_load(DIGITS.read_text())
    image = "europe-docker.pkg.dev/p/r/x@sha256:" + "0" * 64
    place = {"project": "p", "region": "europe-west4", "bucket": "gs://p-b", "image": image, "serving_image": image}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values | {"vertex": place}))
    result = CliRunner().invoke(app, ["run", "-c", str(path), "--target", "vertex", "--runner", "docker"])
    assert result.exit_code == 2
    assert "not to a run on vertex" in result.stderr


def test_a_step_that_vanished_has_not_succeeded(tmp_path: Path) -> None:
    from slipway.pipelines.platforms.local import launch

    config = configuration()
    folder = runs.create(config, tmp_path / "runs")
    record = launch.new_record(folder, config, runner="docker")
    assert record.steps[0].name == "build_image"
    for step in record.steps:
        step.status = "succeeded"
    record.step("evaluate").status = "pending"
    record.step("register_model").status = "running"
    launch._conclude(folder, record, True, MemoryKills())
    assert record.status == "failed"
    assert record.error is not None
    assert (record.error.step, "killed" in record.error.message) == ("register_model", True)


def test_an_image_of_ones_own_is_started_by_a_process_beside_the_containers(tmp_path: Path) -> None:
    own, steps = f"registry/own@sha256:{'1' * 64}", f"registry/steps@sha256:{'2' * 64}"
    train = {"image": own, "module": "trainer.task", "arguments": ["--lr", "0.1"]}
    config = validate({"name": "own", "train": train}, "the test")
    compiler.Compiler().compile(pipeline(config, image=steps), str(tmp_path / "spec.yaml"))
    specification = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    executors = specification["deploymentSpec"]["executors"]
    images = {name: executor["container"]["image"] for name, executor in executors.items()}
    assert images == {
        "exec-plan-training": steps, "exec-train": HOST, "exec-evaluate": steps, "exec-register-model": steps
    }  # fmt: skip
    plan = specification["root"]["dag"]["tasks"]["plan-training"]["inputs"]["parameters"]
    settings = json.loads(plan["train"]["runtimeValue"]["constant"])
    assert settings["command"] == ["python", "-m", replica.MODULE, replica.COMMAND, own, "python", "-m", "trainer.task"]
    assert (settings["module"], settings["image"], settings["arguments"][0]) == (None, None, "--lr")


def test_a_task_beside_the_containers_uses_this_python(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print(sys.executable); sys.exit(5)"
    assert containers.run_container(None, HOST, ["sh", "-c", f'python3 -c "{code}"'], {}) == 5
    assert Path(capfd.readouterr().out.strip()).parent == Path(sys.executable).parent


class EndlessStream:
    """An output stream that stays open after the container's end, until it is closed."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        assert self._closed.wait(60)

    def close(self) -> None:
        self._closed.set()


def test_a_stream_that_outlives_its_container_does_not_hang_the_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(containers, "OUTPUT_SECONDS", 0.1)
    removed: list[bool] = []
    container: Any = SimpleNamespace(
        start=lambda: None,
        logs=lambda stream=False, follow=False: EndlessStream([b"one\n"]) if follow else b"one\ntwo\n",
        wait=lambda: {"StatusCode": 3},
        remove=lambda force: removed.append(force),
    )
    assert containers.run_to_end(container) == 3
    assert capsys.readouterr().out == "one\ntwo\n"
    assert removed == [True]


def test_a_replica_in_a_container_has_its_exit_code_and_the_variables_of_the_job_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = SimpleNamespace(
        start=lambda: None, logs=lambda **_: iter(()), wait=lambda: {"StatusCode": 3}, remove=lambda force: None
    )
    created: dict[str, Any] = {}
    docker = mock.Mock()
    docker.containers.get.side_effect = errors.NotFound("no such container")
    docker.containers.create = lambda **options: created.update(options) or container
    monkeypatch.setattr(replica, "docker_client", lambda: contextlib.nullcontext(docker))
    monkeypatch.setattr(replica, "run_arguments", lambda _folder, _config: {"working_dir": "/here", "shm_size": "1g"})
    monkeypatch.setattr(replica.signal, "signal", lambda _number, _handler: None)
    folder = runs.create(configuration(), tmp_path / "runs")
    environment = {
        "AIP_MODEL_DIR": str(folder.path / "train/model"),
        "CLUSTER_SPEC": json.dumps({"task": {"type": "workerpool1", "index": 2}}),
        "HOME": "/home/ada",
        "TOKEN": "secret",
    }
    assert replica.main([replica.COMMAND, "own:1", "python", "-m", "task"], environment) == 3
    assert created == {
        "image": "own:1",
        "entrypoint": ["python"],
        "command": ["-m", "task"],
        "name": f"{folder.run_id}-workerpool1-2",
        "network_mode": "host",
        "shm_size": "1g",
        "environment": {name: environment[name] for name in ("AIP_MODEL_DIR", "CLUSTER_SPEC")} | {"HOME": "/tmp"},
    }
