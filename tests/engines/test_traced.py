"""The pytorch engine's step, traced for GPUs that are not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import manifest as manifests
from slipway.pipelines.hardware import compiled, profile
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.engines.ahead import Answer

pytestmark = pytest.mark.engine("pytorch")
NETWORKS = """
import keras
import torch
from keras import layers


def deep(image_shape, classes, width=256):
    x = inputs = keras.Input(image_shape)
    x = layers.Flatten()(x)
    for _ in range(4):
        x = layers.Dropout(0.1)(layers.BatchNormalization()(layers.Dense(width, activation="relu")(x)))
    return keras.Model(inputs, layers.Dense(classes)(x))


class Module(torch.nn.Module):
    def __init__(self, decides):
        super().__init__()
        self.first, self.second, self.decides = torch.nn.Linear(64, 512), torch.nn.Linear(512, 10), decides

    def forward(self, images):
        hidden = torch.relu(self.first(images.flatten(1)))
        if self.decides and hidden.mean() > 1e9:
            hidden = hidden / 2
        return self.second(torch.nn.functional.dropout(hidden, 0.1, self.training))


def module(image_shape, classes):
    return Module(False)


def deciding(image_shape, classes):
    return Module(True)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobConfig]:
    """Return jobs of the networks of `NETWORKS`."""
    data = prepare(DataSettings(source="digits", store=str(tmp_path)), 1).folder
    (tmp_path / "own_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)

    def of(name: str, **train: Any) -> JobConfig:
        values = {"engine": "pytorch", "batch_size": 512, "steps": 10, "precision": "float32", **train}
        model = ModelSettings(builder=name if ":" in name else f"own_networks:{name}")
        return compiled.job_of(model, TrainSettings.model_validate(values), data)

    return of


def traced(choice: str, job: JobConfig, *, largest: bool = False) -> Answer:
    answer = compiled.compiled(parse(choice), job, largest=largest)
    assert not answer.unknown
    return answer


# Prints the most bytes that PyTorch's allocator holds in a step of the engine on this CPU.
MEASURE = """
import sys
from pathlib import Path
from slipway.trainer.engines.quick_import import import_tensorflow
import_tensorflow("pytorch")
import torch
from slipway.core import manifest as manifests
from slipway.trainer.config import JobConfig
from slipway.trainer.data.features import blank, each
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.engines.pytorch.engine import PyTorchEngine, _labels
from slipway.trainer.engines.pytorch.tensors import tensors
job = JobConfig.model_validate_json(sys.argv[1])
engine, manifest = PyTorchEngine(), manifests.read(Path(job.data))
engine.open(clusters.read({}))
engine.build(job, manifest)
engine._network.train()
inputs, labels = blank(manifest, job.train.batch_size)
inputs, labels = tensors(inputs), _labels(labels)
engine._step.run(inputs, labels, 0, 1e-3)
states = [tensor for state in engine._step.optimizer.state.values() for tensor in state.values()]
held = [*engine._network.parameters(), *engine._network.buffers(), *states, labels]
each(held.append, inputs)
now = peak = sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}.values())
with torch.profiler.profile(profile_memory=True) as profile:
    engine._step.run(inputs, labels, 1, 1e-3)
events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
for event in sorted(events, key=lambda event: event.start_ns()):
    now += event.nbytes()
    peak = max(peak, now)
print(peak)
"""


def held_by_the_allocator(job: JobConfig) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, job.model_dump_json()], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("network", "train"),
    [
        ("deep", {}),
        ("module", {"optimizer": "sgd", "momentum": 0.9, "clip_norm": 1.0}),
        ("module", {"accumulation": 4, "augment": {"shift": 1}}),
    ],
)
def test_a_traced_step_takes_what_the_allocator_holds(
    job: Callable[..., JobConfig], network: str, train: dict[str, Any]
) -> None:
    given = job(network, **train)
    manifest = manifests.read(Path(given.data))
    examples = manifest.splits["train"].examples * manifest.decoded_bytes  # kept on the GPU, but not in this step
    peak = traced("l4x1", given).peak_bytes or 0
    assert peak - examples == pytest.approx(held_by_the_allocator(given), rel=0.02)


def test_the_largest_batch_fits_and_a_larger_one_does_not(
    job: Callable[..., JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU of 64 MiB."""
    monkeypatch.setattr(compiled, "device_bytes", lambda _hardware: 2**26)
    assert traced("l4x1", job("deep", batch_size=2**10), largest=True).largest_batch == 1438, "all training examples"
    too_large = job("deep", batch_size=2**14)
    answer = traced("l4x1", too_large)
    assert not answer.fits
    assert answer.largest_batch is not None and 2**10 < answer.largest_batch < 2**14
    assert f"--set train.batch_size={answer.largest_batch}" in compiled.fixes(parse("l4x1"), too_large, answer)


def test_activations_that_are_computed_again_take_less(
    job: Callable[..., JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, again = (traced("l4x1", job("deep", batch_size=2**13, remat=remat)) for remat in (False, True))
    assert (again.peak_bytes or 0) < 0.8 * (kept.peak_bytes or 0)
    monkeypatch.setattr(compiled, "device_bytes", lambda _hardware: int(1.2 * (again.peak_bytes or 0)))
    too_large = job("deep", batch_size=2**13)
    answer = traced("l4x1", too_large)
    assert answer.savings == {"train.remat=true": pytest.approx(again.peak_bytes, rel=0.05)}
    assert "--set train.remat=true, which takes" in compiled.fixes(parse("l4x1"), too_large, answer)


def test_gradients_are_copied_to_be_reduced(job: Callable[..., JobConfig]) -> None:
    alone, two = traced("t4x1", job("deep")), traced("t4x2", job("deep", batch_size=1024))
    assert (two.devices, two.flops) == (2, alone.flops)
    manifest = manifests.read(Path(job("deep").data))
    examples = manifest.splits["train"].examples * manifest.decoded_bytes
    variables = 4 * (64 * 256 + 3 * 256 * 256 + 256 * 10 + 4 * 256 * 3 + 10)
    assert (two.peak_bytes or 0) - (alone.peak_bytes or 0) == pytest.approx(variables - examples / 2, rel=0.01)


def test_the_convolutional_digits_are_traced(job: Callable[..., JobConfig]) -> None:
    answer = traced("a100x1", job("slipway.trainer.models.digits:build", batch_size=128))
    assert answer.flops == pytest.approx(282_525_696, rel=0.01)
    assert answer.traffic_bytes > 1e7 and answer.kernels > 50


@pytest.mark.parametrize(("name", "train"), [("deciding", {}), ("module", {"sharding": "fsdp"})])
def test_a_step_that_cannot_be_traced_is_no_error(
    job: Callable[..., JobConfig], name: str, train: dict[str, Any]
) -> None:
    given = job(name, **train)
    answer = compiled.compiled(parse("l4x2"), given)
    assert answer.fits
    (sentence,) = compiled.sentences(parse("l4x2"), given, answer)
    assert sentence.startswith("the step was not traced: ")


def test_the_costs_of_a_step_are_traced_once_and_kept(
    job: Callable[..., JobConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    known = profile.profile("cuda", job("deep", batch_size=64), said.append)
    assert (known.unknown, said) == ("", ["tracing the step for GPUs, up to a minute"])
    costs = known.costs
    assert costs is not None and costs.batch == 64
    assert costs.flops == pytest.approx(6 * 64 * (64 * 256 + 3 * 256 * 256 + 256 * 10), rel=0.1)
    assert costs.kernels > 30 and costs.traffic_bytes > 10 * known.trainable
    assert profile.profile("cuda", job("deep", batch_size=64, seed=3), said.append) == known
    assert len(said) == 1
    Path("own_networks.py").write_text(NETWORKS.replace("width=256", "width=128"))  # the project's module has changed
    assert profile.known("cuda", job("deep", batch_size=64)) is None
