"""Named inputs and the tasks classification, multilabel and regression on the engine tensorflow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed import cluster as clusters
from tests.trainer import feature_sets
from tests.trainer.conftest import job

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")
TASKS = ["classification", "multilabel", "regression"]


@pytest.fixture(scope="module")
def sets(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    for task in TASKS:
        feature_sets.every_kind(folder / task, task)
    return {task: folder / task for task in TASKS}


def built(data: Path, **settings: Any) -> Any:
    from slipway.trainer.engines import base

    engine = base.load("tensorflow")
    engine.open(clusters.read({}))
    config = job(data, **{"steps": 60, "steps_per_epoch": 15, "builder": "named_networks:mixed", **settings})
    engine.build(config, manifests.read(data))
    return engine, config


@functools.cache
def data_of(data: Path, budget: int = 10**9) -> tuple[Any, Any]:
    from slipway.trainer.data import inputs

    assignment = ShardAssignment(data, manifests.read(data), 0, 1)
    return inputs.training(assignment, 8, 15, 0, budget=budget), inputs.evaluation(
        assignment, "validation", 16, budget=budget
    )


def raw(data: Path, split: str = "validation") -> tuple[dict[str, Any], Any]:
    """Return the split's raw values by their names in the serving signature, and its raw labels."""
    import tensorflow as tf

    from slipway.trainer.data.features import Features

    manifest = manifests.read(data)
    paths = [str(data / shard.file) for shard in manifest.splits[split].shards]
    kinds = {"number": tf.float32, "integer": tf.int64}
    described = {
        name: tf.io.FixedLenFeature(one.stored_shape, kinds.get(one.kind, tf.string))
        for name, one in manifest.all_inputs.items()
    }
    shape = (3,) if manifest.task == "multilabel" else ()
    described["label"] = tf.io.FixedLenFeature(shape, tf.float32 if manifest.target else tf.int64)
    found = tf.io.parse_example(list(tf.data.TFRecordDataset(paths).as_numpy_iterator()), described)
    labels = found.pop("label").numpy()
    assert set(Features(manifest).requests()) == {*manifest.signature.values()}
    return {served: found[name] for name, served in manifest.signature.items()}, labels


def served(folder: Path, requests: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    return {name: value.numpy() for name, value in loaded.signatures["serving_default"](**requests).items()}


def expected(task: str, answer: dict[str, Any], labels: Any) -> tuple[float, float]:
    """Return the loss and the figure that belong to a served model's answers, written down independently."""
    if task == "regression":
        return float("nan"), float(np.abs(answer["prediction"] - labels).mean())
    chances = answer["probabilities"].astype(np.float64)
    if task == "multilabel":
        loss = -(labels * np.log(chances) + (1 - labels) * np.log(1 - chances)).mean()
        return float(loss), float(((chances > 0.5) == labels).mean())
    return float(-np.log(chances[np.arange(len(labels)), labels]).mean()), float((chances.argmax(1) == labels).mean())


@pytest.mark.parametrize(
    ("task", "builder"), [("classification", "mixed"), ("multilabel", "in_order"), ("regression", "mixed")]
)
def test_the_exported_model_predicts_from_raw_values_what_was_validated(
    sets: dict[str, Path], tmp_path: Path, task: str, builder: str
) -> None:
    data = sets[task]
    engine, config = built(data, builder=f"named_networks:{builder}", steps_per_call=20)
    training, validation = data_of(data)
    losses = engine.run(training, 0, np.full(60, 0.01, np.float32)).losses
    assert losses[-10:].mean() < losses[:10].mean()
    measured = engine.evaluate(validation)
    engine.export(tmp_path, config, manifests.read(data))
    requests, labels = raw(data)
    answer = served(tmp_path, requests)
    loss, metric = expected(task, answer, labels)
    assert measured.metric == pytest.approx(metric, rel=1e-4)
    if task == "regression":
        assert answer["prediction"].shape == (40,)
        target = manifests.read(data).target
        assert target is not None
        residuals = (answer["prediction"] - labels) / target.deviation[0]
        assert measured.loss == pytest.approx(float(np.square(residuals).mean()), rel=1e-3)
        return
    assert measured.loss == pytest.approx(loss, rel=1e-3)
    names = answer["labels" if task == "multilabel" else "classes"]
    assert [name.decode() for name in names[0]] == manifests.read(data).classes


def test_a_category_unseen_in_training_is_position_0(sets: dict[str, Path]) -> None:
    _, validation = data_of(sets["classification"])
    zones = np.concatenate([inputs["area (m²)"][weights > 0] for inputs, _, weights in validation.batches()])
    assert (zones[-5:] == 0).all()
    assert (zones[:-5] > 0).all()


def test_numbers_are_standardized_over_the_training_split(sets: dict[str, Path]) -> None:
    training, _ = data_of(sets["regression"])
    for values in (training.inputs["age"], training.inputs["track"], training.labels):
        np.testing.assert_allclose(values.mean(axis=0), 0.0, atol=1e-4)
        np.testing.assert_allclose(values.std(axis=0), 1.0, atol=1e-3)
    income = training.inputs["income"]  # every fifth is missing
    assert income[income[:, 1] == 1, 0].tolist() == [0.0] * 24
    assert set(income[:, 1].tolist()) == {0.0, 1.0}
    assert income[income[:, 1] == 0, 0].mean() == pytest.approx(0, abs=1e-5)
    assert training.inputs["image"].dtype == np.uint8
    assert training.inputs["tokens"].dtype == np.int32


def test_streamed_accumulated_and_compiled_it_is_the_same_training(sets: dict[str, Path]) -> None:
    data, rates = sets["multilabel"], np.full(6, 0.01, np.float32)
    plain = built(data, xla=False)[0].run(data_of(data, budget=0)[0], 0, rates)
    other = built(data, xla=True, accumulation=4)[0].run(data_of(data, budget=0)[0], 0, rates)
    np.testing.assert_allclose(other.losses, plain.losses, rtol=1e-4)
    np.testing.assert_allclose(other.values, plain.values, rtol=1e-4)


def test_mixed_precision_and_the_work_of_a_step(sets: dict[str, Path]) -> None:
    engine, _ = built(sets["regression"], precision="mixed_bfloat16")
    training, validation = data_of(sets["regression"])
    losses = engine.run(training, 0, np.full(60, 0.01, np.float32)).losses
    assert losses[-10:].mean() < losses[:10].mean()
    assert np.isfinite(engine.evaluate(validation).loss)
    assert engine.work().step_flops > 0
    assert engine.graph()


@pytest.mark.parametrize(
    ("task", "builder", "message"),
    [
        ("regression", "too_wide", r"returns \[batch, 2\]; the target is a number: regression needs one number"),
        ("multilabel", "too_wide", r"the data set has 3 labels: multilabel needs one logit per label, \[batch, 3\]"),
        ("regression", "squashed", "ends in a sigmoid; it must return standardized values"),
        ("multilabel", "squashed", "ends in a sigmoid; it must return logits"),
        (
            "regression",
            "images_only",
            r"accepts image_shape, but is called with \(inputs, outputs\), because the inputs",
        ),
        ("regression", "without_age", "cannot process the inputs image"),
    ],
)
def test_a_network_of_another_form_is_refused(sets: dict[str, Path], task: str, builder: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        built(sets[task], builder=f"named_networks:{builder}")
    assert (caught.value.setting, bool(caught.value.fix)) == ("model.builder", True)


def test_a_builder_of_named_inputs_is_refused_for_images_alone(tiny: Path) -> None:
    with pytest.raises(UserError, match=r"accepts inputs, but is called with \(image_shape, classes\)"):
        built(tiny, builder="named_networks:mixed")
