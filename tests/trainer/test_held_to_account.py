"""Real tasks: the trainer reaches what a plain Keras script with the same network and hyperparameters reaches.

The script standardizes, shuffles and fits as Keras's documentation shows; it shares no code with the trainer. Both
train with several seeds, so that the difference of their means can be compared with the noise of a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core import manifest as manifests
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed import cluster as clusters
from tests.trainer.conftest import job
from tests.trainer.feature_sets import Column, write

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")
SEEDS = (0, 1)
BATCH = 32


@dataclass(frozen=True)
class Case:
    """A task on real data: the metric that a good network reaches at least or at most, and its training."""

    task: str
    columns: dict[str, Column]
    labels: Any
    classes: list[str]
    epochs: int
    good: Callable[[float], bool]


def _table(task: str, found: Any, epochs: int, good: Callable[[float], bool]) -> Case:
    order = np.random.default_rng(1).permutation(len(found.target))
    values = found.data[order].astype(np.float32)
    columns = {str(name): Column("number", values[:, index]) for index, name in enumerate(found.feature_names)}
    classes = [] if task == "regression" else [str(name) for name in found.target_names]
    return Case(task, columns, found.target[order], classes, epochs, good)


def diabetes() -> Case:
    from sklearn.datasets import load_diabetes

    return _table("regression", load_diabetes(scaled=False), 40, lambda mae: mae < 50)


def wine() -> Case:
    from sklearn.datasets import load_wine

    return _table("classification", load_wine(), 30, lambda accuracy: accuracy > 0.9)


def shapes() -> Case:
    """Synthetic images with any of three shapes: a bar on top, a bar on the left, a dot."""
    random = np.random.default_rng(2)
    labels = random.integers(0, 2, (800, 3))
    images = random.integers(0, 60, (800, 8, 8))
    images[labels[:, 0] == 1, 1, :] += 90
    images[labels[:, 1] == 1, :, 1] += 90
    images[labels[:, 2] == 1, 4:7, 4:7] += 90
    return Case(
        "multilabel", {"image": Column("image", images.astype(np.uint8))}, labels, ["top", "left", "dot"], 8,
        lambda accuracy: accuracy > 0.95,
    )  # fmt: skip


def digits() -> Case:
    """The digits with a second input: whether the image shows the digit of its label, or of another class."""
    from sklearn.datasets import load_digits

    found = load_digits()
    shift = np.random.default_rng(3).integers(0, 2, len(found.target))
    columns = {
        "image": Column("image", (found.images * 255 / 16).astype(np.uint8)),
        "shift": Column("number", shift.astype(np.float32)),
    }
    # The label is the digit plus `shift`: neither input alone tells it.
    return Case("classification", columns, (found.target + shift) % 10, list("0123456789"), 12, lambda a: a > 0.8)


def of_trainer(data: Path, case: Case, seed: int) -> float:
    from slipway.trainer.data import inputs
    from slipway.trainer.engines import base

    manifest = manifests.read(data)
    per_epoch = manifest.splits["train"].examples // BATCH
    steps = per_epoch * case.epochs
    config = job(
        data, steps=steps, steps_per_epoch=per_epoch, batch=BATCH, builder=builder_of(case), learning_rate=0.005,
        seed=seed,
    )  # fmt: skip
    engine = base.load("tensorflow")
    engine.open(clusters.read({}))
    engine.build(config, manifest)
    assignment = ShardAssignment(data, manifest, 0, 1)
    engine.run(inputs.training(assignment, BATCH, per_epoch, seed), 0, np.full(steps, 0.005, np.float32))
    return float(engine.evaluate(inputs.evaluation(assignment, "validation", BATCH)).metric)


def builder_of(case: Case) -> str:
    return f"named_networks:{'images_only' if list(case.columns) == ['image'] else 'mixed'}"


def of_keras(data: Path, case: Case, seed: int, validation: int) -> float:
    """Train with Keras alone; the builder is called as a script would call it."""
    import keras
    import named_networks

    manifest = manifests.read(data)
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    known = slice(0, len(case.labels) - validation)
    arrays = {}
    for name, column in case.columns.items():
        values = np.asarray(column.values, np.float32)
        if column.kind == "image":
            arrays[name] = values[..., None] / 255
        else:
            arrays[name] = (values - values[known].mean()) / (values[known].std() or 1)
    mean, deviation = case.labels[known].mean(), case.labels[known].std()
    if case.task == "regression":
        loss: Any = "mse"
        targets = (case.labels - mean) / deviation
    elif case.task == "multilabel":
        loss, targets = keras.losses.BinaryCrossentropy(from_logits=True), case.labels
    else:
        loss, targets = keras.losses.SparseCategoricalCrossentropy(from_logits=True), case.labels
    if list(arrays) == ["image"]:
        network, inputs = named_networks.images_only((8, 8, 1), manifest.outputs), arrays["image"]
        first, last = inputs[known], inputs[-validation:]
    else:
        network = named_networks.mixed(manifest.all_inputs, manifest.outputs)
        first = {name: values[known] for name, values in arrays.items()}
        last = {name: values[-validation:] for name, values in arrays.items()}
    network.compile(keras.optimizers.Adam(0.005), loss, jit_compile=False, steps_per_execution=16)
    network.fit(first, targets[known], batch_size=BATCH, epochs=case.epochs, verbose=0)
    outputs = network.predict(last, verbose=0)
    wanted = case.labels[-validation:]
    if case.task == "regression":
        return float(np.abs(outputs[:, 0] * deviation + mean - wanted).mean())
    if case.task == "multilabel":
        return float(((outputs > 0) == wanted).mean())
    return float((outputs.argmax(1) == wanted).mean())


@pytest.mark.long
@pytest.mark.parametrize("make", [diabetes, wine, shapes, digits])
def test_it_reaches_what_a_plain_keras_script_reaches(make: Callable[[], Case], tmp_path: Path) -> None:
    case = make()
    validation = len(case.labels) // 4
    write(tmp_path / "data", case.task, case.columns, case.labels, case.classes, validation=validation)
    ours = np.array([of_trainer(tmp_path / "data", case, seed) for seed in SEEDS])
    scripts = np.array([of_keras(tmp_path / "data", case, seed, validation) for seed in SEEDS])
    print(f"{make.__name__}: trainer {ours.round(4).tolist()}, script {scripts.round(4).tolist()}")
    assert case.good(ours.mean())
    noise = max(ours.std(), scripts.std(), abs(scripts.mean()) * 0.01)
    assert abs(ours.mean() - scripts.mean()) <= 3 * noise
