"""Training with `train.sharding: fsdp`, compared with the same training in which each device has all variables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.conftest import ENGINE, HERE, Bench
from tests.trainer.conftest import NETWORKS

NETWORK_FOLDERS = {"PYTHONPATH": f"{NETWORKS}:{HERE / 'networks'}"}


def losses(place: Path) -> list[float]:
    lines = [json.loads(line) for line in (place / "model" / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines]


@pytest.mark.engine("pytorch")
@pytest.mark.parametrize("builder", ["sample_networks:wide", "torch_networks:Blocks"], ids=["keras", "torch"])
def test_sharded_layers_train_as_whole_ones_would(bench: Bench, tmp_path: Path, workers: Any, builder: str) -> None:
    settings: dict[str, Any] = {
        "replicas": 2, "steps": 60, "steps_per_epoch": 10, "builder": builder, "accumulation": 2, "clip_norm": 0.5,
        "stages": [{"steps": 20, "trainable": ["head"]}, {"steps": 40}], "optimizer": "sgd", "momentum": 0.9,
    }  # fmt: skip
    checksums = {}
    for sharding in ("replicated", "fsdp"):
        place = tmp_path / sharding
        pair = workers.start_two(bench.job(**settings, sharding=sharding), place, **NETWORK_FOLDERS)
        ends = [worker.wait() for worker in pair]
        assert [end.status for end in ends] == [0, 0], ends
        checksums[sharding] = {end.checksum for end in ends}
        assert (place / "model" / "model.pt2").exists()
        parts = list((place / "checkpoints").glob("step-*/state-00001.npz"))
        assert len(parts) == (3 if sharding == "fsdp" else 0)
    assert len(checksums["fsdp"]) == 1
    assert len(losses(tmp_path / "fsdp")) == 66  # 60 of training, 6 of validation
    np.testing.assert_allclose(losses(tmp_path / "fsdp"), losses(tmp_path / "replicated"), rtol=1e-4)


NETWORKS_OF_ENGINES = ["sample_networks:nested", *(["torch_networks:Blocks"] if ENGINE == "pytorch" else [])]
SHARDINGS = ["replicated", *(["fsdp"] if ENGINE != "tensorflow" else [])]


@pytest.mark.engine("tensorflow", "pytorch")
@pytest.mark.parametrize("builder", NETWORKS_OF_ENGINES)
def test_several_workers_compute_activations_again(bench: Bench, tmp_path: Path, workers: Any, builder: str) -> None:
    """The statistics of all workers' examples, too, for which they communicate in the backward pass."""
    settings: dict[str, Any] = {"replicas": 2, "steps": 20, "steps_per_epoch": 10, "builder": builder}
    for name, train in {"kept": {}, **{each: {"sharding": each, "remat": True} for each in SHARDINGS}}.items():
        pair = workers.start_two(bench.job(**settings, **train), tmp_path / name, **NETWORK_FOLDERS)
        ends = [worker.wait() for worker in pair]
        assert [end.status for end in ends] == [0, 0], ends
        assert len({end.checksum for end in ends}) == 1
    for name in SHARDINGS:
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "kept"), rtol=1e-4)


@pytest.mark.engine("jax", "pytorch")
def test_a_network_that_does_not_fit_is_sharded_and_its_checkpoint_read_on_another_number_of_devices(
    bench: Bench, tmp_path: Path, workers: Any
) -> None:
    """A run that has ended only exports its last checkpoint again."""
    settings: dict[str, Any] = {"steps": 30, "steps_per_epoch": 10, "export": "best"}
    settings["builder"] = "sample_networks:wide_on_a_small_machine"
    pair = workers.start_two(bench.job(**settings, replicas=2), tmp_path, **NETWORK_FOLDERS)
    ends = [worker.wait() for worker in pair]
    assert [end.status for end in ends] == [0, 0], ends
    assert "sharding the variables over 2 devices (train.sharding: auto)" in ends[0].output
    assert (tmp_path / "checkpoints" / "step-00000030" / "state-00001.npz").exists()
    assert list((tmp_path / "checkpoints" / "best").glob("step-*/state-00001.npz"))
    for sharding, devices in (("auto", "4"), ("replicated", "1")):
        shutil.rmtree(tmp_path / "model")
        end = workers.start(
            bench.job(**settings, sharding=sharding), tmp_path, **NETWORK_FOLDERS, SLIPWAY_VIRTUAL_DEVICES=devices
        ).wait()
        assert end.status == 0, end
        assert "resuming from the checkpoint at step 30 of 30" in end.output
        assert end.checksum == ends[0].checksum
