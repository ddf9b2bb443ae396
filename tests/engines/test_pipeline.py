"""The command line with --set train.engine=…"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.components.evaluate.conftest import png
from tests.end_to_end.bit_flips import check_every_file_is_verified
from tests.end_to_end.workspace import Workspace, steps
from tests.engines.conftest import ENGINE, Bench
from tests.engines.test_engine import check_agreement
from tests.serving.client import ask, health, logged, process, until


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def test_the_digits_are_learnt_and_served(workspace: Workspace) -> None:
    result = workspace.slipway("run", "--set", f"train.engine={ENGINE}")
    assert result.returncode == 0, result.stdout + result.stderr
    record = workspace.record()
    assert record["metrics"]["accuracy"] >= 0.97
    assert steps(record)["train"]["outputs"]["engine"] == ENGINE
    assert Path(record["model"] if Path(record["model"]).is_absolute() else workspace.path / record["model"]).is_dir()


def test_the_digits_exported_model_is_the_trained_one(workspace: Workspace, bench: Bench) -> None:
    """The checkpoint in the engine and the registered model agree on the test split to 1e-4."""
    from slipway.components.evaluate import served_model
    from slipway.trainer.checkpoint import store

    (data,) = [path.parent for path in workspace.path.glob("datasets/digits/*/manifest.json")]
    (run,) = workspace.runs()
    (saved,) = {path.parent for path in run.rglob("checkpoints/latest")}
    own = Bench(data)
    own._engine = bench.engine(bench.job()) and bench._engine
    config = own.job(batch=64, builder="slipway.trainer.models.digits:build")
    engine = own.engine(config)
    newest = store.Checkpoints(saved, 3).newest()
    assert newest is not None
    engine.load_state(newest.state)
    check_agreement(
        own, served_model.load(workspace.path / "models" / "digits" / "1", own.manifest), own.assignment, "test"
    )


def test_the_registered_model_is_served_over_http(workspace: Workspace) -> None:
    from slipway.serving import instances, model

    folder = workspace.path / "models" / "digits" / "1"
    image = png(np.random.default_rng(0).integers(0, 256, (8, 8)))
    loaded = model.load(folder)
    outputs = loaded.predict(instances.arrays(loaded, [image, image]))
    expected = instances.predictions(loaded, outputs)[0]["probabilities"]
    with process(folder) as (server, port):
        until(lambda: health(port) == 200 or server.poll() is not None, 120)
        assert server.poll() is None, logged(server)
        status, found = ask(port, "/predict", image, "image/png")
    assert status == 200
    assert found["predictions"][0]["probabilities"] == pytest.approx(expected, abs=1e-4)


def test_a_model_with_a_flipped_bit_is_refused_by_every_command(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.path)
    check_every_file_is_verified(workspace)


def test_two_replicas_end_with_the_same_weights(workspace: Workspace) -> None:
    result = workspace.slipway("rehearse", "--hardware", "cpu*2", "--steps", "6", "--set", f"train.engine={ENGINE}")
    assert result.returncode == 0, result.stdout + result.stderr
    checksums = dict(re.findall(r"\[(workerpool\d-\d)\] .*weights checksum ([0-9a-f]+)", workspace.log("train")))
    assert set(checksums) == {"workerpool0-0", "workerpool1-0"}
    assert len(set(checksums.values())) == 1


def test_a_cloud_layout_is_rehearsed_with_virtual_devices(workspace: Workspace) -> None:
    result = workspace.slipway("rehearse", "--hardware", "t4x2*2", "--steps", "4", "--set", f"train.engine={ENGINE}")
    assert result.returncode == 0, result.stdout + result.stderr
    on = {"jax": "2 x CPU on this host, 4 in 2 processes", "pytorch": "one CPU, one of 4 processes"}[ENGINE]
    assert workspace.log("train").count(on) == 2
    assert len(set(re.findall(r"weights checksum ([0-9a-f]+)", workspace.log("train")))) == 1


@pytest.mark.engine("jax")
def test_a_slice_of_two_machines_is_rehearsed_with_a_process_per_host(workspace: Workspace) -> None:
    settings = ("--hardware", "tpu-v5e-2x4@ct5lp-hightpu-4t", "--steps", "4", "--set", "train.engine=jax")
    result = workspace.slipway("rehearse", *settings)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 hosts of 4 devices each trained 4 steps" in result.stdout
    log = workspace.log("train")
    assert log.count("4 x CPU on this host, 8 in 2 processes") == 2
    checksums = dict(re.findall(r"\[workerpool0-0-(host\d)\] .*weights checksum ([0-9a-f]+)", log))
    assert set(checksums) == {"host0", "host1"}
    assert len(set(checksums.values())) == 1


@pytest.mark.engine("pytorch")
def test_a_run_trains_on_all_devices_of_this_machine(workspace: Workspace) -> None:
    settings = ("--set", "train.engine=pytorch", "--set", "train.epochs=2", "--set", "evaluate.champion=none")
    result = workspace.slipway("run", *settings, SLIPWAY_VIRTUAL_DEVICES="4")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "one CPU, one of 4 processes" in workspace.log("train")
    (data,) = [path for path in workspace.path.glob("datasets/digits/*/manifest.json") if len(shards(path)) >= 4]
    assert str(data.parent) == steps(workspace.record())["prepare_data"]["outputs"]["dataset"]


def shards(manifest: Path) -> list[dict[str, object]]:
    return json.loads(manifest.read_text())["splits"]["train"]["shards"]
