"""The training step, compiled by Google's compiler for TPUs that are not there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.pipelines.hardware import compiled, profile
from slipway.pipelines.hardware.choice import choices
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.engines.jax.ahead import ENVIRONMENT, Request

pytestmark = pytest.mark.engine("jax")
HARDWARE = "tpu-v5e-2x4"
# Of the digits' step on eight chips of v5e, as first compiled with libtpu 0.0.42.1.
PEAK_BYTES = 3_659_776
OPEN_ALL = """
import json, sys
from jax.experimental import topologies
for name, options in json.load(sys.stdin):
    found = topologies.get_topology_desc(topology_name=name, platform="tpu", **options)
    print(len(found.devices), len({device.process_index for device in found.devices}))
"""


@pytest.fixture
def job(tmp_path: Path) -> JobConfig:
    data = prepare(DataSettings(source="digits", store=str(tmp_path)), 1).folder
    train = TrainSettings.model_validate({"engine": "jax", "batch_size": 128, "steps": 100})
    return compiled.job_of(ModelSettings(builder="slipway.trainer.models.digits:build"), train, data)


def with_batch(job: JobConfig, batch: int) -> JobConfig:
    return job.model_copy(update={"train": job.train.model_copy(update={"batch_size": batch})})


def test_every_tpu_of_the_catalogue_has_a_topology_of_its_size() -> None:
    tpus = [choice for choice in choices() if choice.is_tpu and compiled.missing(choice, "jax") is None]
    asked = [compiled.topology(choice).model_dump(include={"name", "options"}) for choice in tpus]
    told = json.dumps([list(one.values()) for one in asked])
    ended = subprocess.run(
        [sys.executable, "-c", OPEN_ALL], input=told, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    expected = [f"{choice.accelerators_per_replica} {choice.machines_per_replica}" for choice in tpus]
    assert ended.stdout.splitlines() == expected
    assert len(expected) > 50


def test_the_step_is_compiled_and_a_batch_that_does_not_fit_is_refused(job: JobConfig) -> None:
    """Both at once: libtpu would let only one process of a machine use it."""
    with ThreadPoolExecutor(2) as pool:
        fits = pool.submit(compiled.compiled, parse(HARDWARE), job)
        too_large = pool.submit(compiled.compiled, parse(HARDWARE), with_batch(job, 2**24))
        answer = fits.result()
        with pytest.raises(UserError, match="Ran out of memory on HBM") as caught:
            too_large.result()
    assert (answer.devices, answer.kind, answer.fits) == (8, "TPU v5 lite", True)
    assert answer.peak_bytes == pytest.approx(PEAK_BYTES, rel=0.1)
    assert answer.collectives["all-reduce"] >= 1
    assert answer.flops and answer.traffic_bytes > answer.flops / 1e3 and answer.kernels
    most = int(str(caught.value.nearest))
    assert 2**20 < most < 2**24
    assert most % 8 == 0


def test_the_step_is_compiled_for_gpus_that_are_not_there(job: JobConfig) -> None:
    answer = compiled.compiled(parse("t4x2"), job)
    assert (answer.devices, answer.kind, answer.fits) == (2, "Tesla T4", True)
    assert answer.peak_bytes
    assert answer.collectives["all-reduce"] >= 1
    assert answer.flops and answer.traffic_bytes and answer.kernels
    made = compiled.estimated(parse("t4x2"), job, answer)
    assert made and made.step.low < made.step.middle < made.step.high
    assert made.parts["compute"] < made.step.middle
    too_large = compiled.compiled(parse("t4x2"), with_batch(job, 2**24))
    assert not too_large.fits
    assert too_large.largest_batch and 2**18 < too_large.largest_batch < 2**24


@pytest.mark.parametrize(("platform", "memory"), [("cuda", 2**31), ("tpu", 2**31)])
def test_the_costs_of_a_step_are_compiled_once_and_kept(
    platform: compiled.Platform, memory: int, job: JobConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    known = profile.profile(platform, job, said.append)
    assert (known.unknown, len(said), known.devices) == ("", 1, 1)
    costs = known.costs
    assert costs is not None and costs.batch == 128
    assert costs.flops > 128 * 1e6 and costs.kernels > 20
    assert costs.traffic_bytes > 10 * known.trainable
    assert known.trainable * 3 < costs.peak_bytes < memory
    assert known.kept_bytes == 1438 * (64 + 4)  # of 8x8 pixels and a label
    elsewhere = {"seed": 7, "steps": 3, "learning_rate": 0.1}
    other = job.model_copy(update={"train": job.train.model_copy(update=elsewhere)})
    assert profile.profile(platform, other, said.append) == known
    assert profile.known(platform, other) == known
    assert len(said) == 1
    wider = job.model_copy(update={"train": job.train.model_copy(update={"optimizer": "sgd"})})
    assert profile.known(platform, wider) is None


def test_a_kind_of_tpu_stands_for_others(job: JobConfig) -> None:
    """v5p is what is compiled for all; see `slipway.pipelines.hardware.profile`."""
    known = profile.profile("tpu", job, print)
    exact, costs = compiled.compiled(parse("tpu-v5e-1x1"), job), known.costs
    assert costs is not None
    assert exact.flops == pytest.approx(costs.flops, rel=0.05)
    assert exact.traffic_bytes == pytest.approx(costs.traffic_bytes, rel=0.1)


def test_the_compiler_ends_with_the_process_that_waits_for_it(job: JobConfig) -> None:
    request = Request(job=job, topology=compiled.topology(parse(HARDWARE)), memory=2**34).model_dump_json()
    program = "import sys\nfrom slipway.pipelines.hardware import compiled\n" + (
        "from slipway.pipelines.hardware.rules import parse\nfrom slipway.trainer.engines.jax.ahead import Request\n"
        "compiled.compiled(parse(sys.argv[1]), Request.model_validate_json(sys.argv[2]).job)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, HARDWARE, request])
    children: list[psutil.Process] = []
    while not children:
        assert parent.poll() is None
        time.sleep(0.05)
        children = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGTERM)
    parent.wait()
    _, left = psutil.wait_procs(children, timeout=180)
    assert not left


VAST = """
import keras
from keras import layers, ops


class Kept(layers.Layer):
    def build(self, shape):
        self.kept = ops.arange(shape[-1], dtype="float32") / 2  # not a variable

    def call(self, x):
        return x * self.kept


def vast(image_shape, classes):
    return keras.Sequential([keras.Input(image_shape), layers.Flatten(), layers.Dense(2**19), layers.Dense(2**19),
                             layers.Dense(classes)])


def keeping(image_shape, classes):
    return keras.Sequential([keras.Input(image_shape), layers.Flatten(), Kept(), layers.Dense(classes)])


def deep(image_shape, classes, blocks, again, width=4096):
    x = inputs = keras.Input(image_shape)
    x = layers.Dense(width)(layers.Flatten()(x))
    with keras.RematScope(mode="full" if again else None):
        for _ in range(blocks):
            x = layers.Dense(width, activation="gelu")(x)
    return keras.Model(inputs, layers.Dense(classes)(x))


def long(image_shape, classes, blocks):
    x = inputs = keras.Input(image_shape)
    x = layers.Dense(1024)(layers.Flatten()(x))
    for _ in range(blocks):
        x = layers.Dropout(0.1)(layers.BatchNormalization()(layers.Dense(1024, activation="gelu")(x)))
    return keras.Model(inputs, layers.Dense(classes)(x))
"""


@pytest.fixture
def own_networks(job: JobConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobConfig]:
    """Return jobs of the networks of `VAST`."""
    (tmp_path / "own_networks.py").write_text(VAST)
    monkeypatch.chdir(tmp_path)

    def with_network(
        name: str, sharding: str = "replicated", batch_size: int = 128, *, remat: bool = False, **arguments: object
    ) -> JobConfig:
        model = ModelSettings(builder=f"own_networks:{name}", arguments=arguments)
        changes = {"sharding": sharding, "batch_size": batch_size, "remat": remat}
        train = job.train.model_copy(update=changes)
        return job.model_copy(update={"model": model, "train": train})

    return with_network


def test_a_network_larger_than_this_machine_is_compiled(own_networks: Callable[..., JobConfig]) -> None:
    """Of a terabyte of parameters."""
    with pytest.raises(UserError, match="does not fit") as caught:
        compiled.compiled(parse("tpu-v5e-1x1"), own_networks("vast"))
    assert caught.value.nearest is None


def test_a_network_that_keeps_what_it_computed_while_it_was_built(own_networks: Callable[..., JobConfig]) -> None:
    assert compiled.compiled(parse("tpu-v5e-1x1"), own_networks("keeping")).peak_bytes


def test_a_network_that_fits_only_sharded_is_refused_with_that_setting(own_networks: Callable[..., JobConfig]) -> None:
    """Of 10.7 GB of parameters and their two states in Adam: 32 GB on each of eight chips, or 4 GB."""
    with pytest.raises(UserError, match="does not fit") as caught:
        compiled.compiled(parse(HARDWARE), own_networks("deep", "replicated", blocks=10, again=True, width=2**14))
    taken = re.search(r"--set train\.sharding=fsdp, which takes ([\d.]+) GiB per device", caught.value.fix or "")
    assert taken and 4 < float(taken[1]) < 8


def test_less_memory_for_activations_that_are_computed_again(own_networks: Callable[..., JobConfig]) -> None:
    """On a GPU: the compiler for TPUs does that by itself if a step would not fit."""
    kept, again = (
        compiled.compiled(parse("l4x1"), own_networks("long", remat=remat, batch_size=2**15, blocks=8)).peak_bytes or 0
        for remat in (False, True)
    )
    assert again < 0.7 * kept, (again, kept)


# In how many copies of a layer's gathered variables the peak grows by a layer, beside its part of them.
@pytest.mark.parametrize(("again", "copies"), [(True, 0.2), (False, 2.1)])
def test_sharded_variables_are_not_kept_once_they_were_gathered(
    own_networks: Callable[..., JobConfig], *, again: bool, copies: float
) -> None:
    """Of layers that compute their activations again for the gradient, only one is gathered at a time."""
    few, many = (
        compiled.compiled(parse(HARDWARE), own_networks("deep", "fsdp", blocks=blocks, again=again)).peak_bytes or 0
        for blocks in (4, 12)
    )
    part, gathered = (1 + 2) * 4 * 4096**2 / 8, 2 * 4096**2  # float32 with Adam's two states on 8 chips, and bfloat16
    assert (many - few) / 8 < part + copies * gathered
