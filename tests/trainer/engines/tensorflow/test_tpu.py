"""The tensorflow engine on a TPU, with a fake TPU."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.trainer.distributed import accelerators
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.engines import base

pytestmark = pytest.mark.usefixtures("tensorflow")

TPU = {"TPU_CONFIG": json.dumps({"project": "p", "zone": "z", "tpu_node_name": "node-7"})}


class FakeStrategy:
    """The size of a v2-8."""

    num_replicas_in_sync = 8

    def __init__(self, resolver: Any) -> None:
        self.resolver = resolver


class FakeRuntime:
    """A fake libtpu: initializes at the `ready`-th attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready: int = 1) -> None:
        import tensorflow as tf

        self.tries, self.ready = 0, ready
        self.unavailable = tf.errors.UnavailableError(None, None, "TPU is being provisioned")
        version = importlib.metadata.version
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: "2.20.0" if name == "tensorflow-tpu" else version(name)
        )
        monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: f"resolver of {tpu}")
        monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", self.initialize)
        monkeypatch.setattr(tf.distribute, "TPUStrategy", FakeStrategy)

    def initialize(self, resolver: str) -> None:
        assert resolver == "resolver of local"
        self.tries += 1
        if self.tries < self.ready:
            raise self.unavailable


def test_a_tpu_vms_variables_lead_to_a_tpu_strategy_on_the_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime(monkeypatch)
    engine: Any = base.load("tensorflow")
    said = engine.open(clusters.read(TPU))
    assert "TPUStrategy, 8 x TPU on this host" in said
    assert engine._strategy.resolver == "resolver of local"
    assert runtime.tries == 1


def test_a_tpu_that_is_not_there_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(accelerators, "_RETRY_SECONDS", 0.01)
    runtime = FakeRuntime(monkeypatch, ready=4)
    base.load("tensorflow").open(clusters.read(TPU))
    assert runtime.tries == 4
    assert "waiting for the TPU node-7" in caplog.text
    assert "TPU is being provisioned" in caplog.text


def test_one_that_never_comes_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "_RETRY_SECONDS", 0.01)
    monkeypatch.setenv("SLIPWAY_TPU_SECONDS", "0.05")
    FakeRuntime(monkeypatch, ready=10**6)
    with pytest.raises(UserError, match=r"The TPU node-7 did not respond within 0.05 s: TPU is being provisioned"):
        base.load("tensorflow").open(clusters.read(TPU))


def test_a_tensorflow_without_tpu_kernels_is_refused_with_the_command_that_installs_one() -> None:
    with pytest.raises(UserError, match=r"TensorFlow .* as installed cannot use this machine's TPU") as caught:
        base.load("tensorflow").open(clusters.read(TPU))
    assert "pip install tensorflow-tpu==" in str(caught.value.fix)


def test_several_replicas_cannot_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRuntime(monkeypatch)
    cluster = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 0}}
    with pytest.raises(UserError, match="the job has 2 replicas") as caught:
        base.load("tensorflow").open(clusters.read({**TPU, "TF_CONFIG": json.dumps(cluster)}))
    assert caught.value.nearest is None
    assert "jax" in str(caught.value.fix)


def test_under_torchrun_replicas_without_addresses_are_refused() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(UserError, match="torchrun does not have that of worker 1"):
        base.load("tensorflow").open(clusters.read(torchrun))


def test_the_installation_that_is_proposed_is_the_images() -> None:
    from slipway.trainer.engines.tensorflow.tpu import INSTALL

    locked = Path("requirements/trainer-tpu.txt").read_text()
    for name in ("tensorflow-tpu", "libtpu"):
        version = re.search(rf"^{name}==(\S+)", locked, flags=re.MULTILINE)
        assert version is not None
        assert f" {name}=={version[1]}" in INSTALL
