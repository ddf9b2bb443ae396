"""The baseline's metrics are those of scikit-learn's dummy models, fitted on the training split."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as reference

from slipway.components.evaluate.measures import Baseline
from slipway.core.manifest import Input, Manifest, Split, TaskName


def described(task: TaskName, names: list[str], counts: dict[str, int], examples: int) -> Manifest:
    return Manifest(
        name="homes",
        fingerprint="f" * 64,
        source="csv:homes.csv",
        settings={},
        task=task,
        classes=names,
        target=Input(kind="number", mean=(5.0,), deviation=(2.0,)) if task == "regression" else None,
        inputs={},
        image_size=(0, 0),
        channels=1,
        resize=False,
        encodings=[],
        splits={"train": Split(examples=examples, classes=counts, shards=[])} if examples else {},
    )


def metrics_of(data: Manifest, labels: np.ndarray) -> dict[str, float]:
    baseline = Baseline(data, len(labels))
    for part in np.array_split(labels, 3):
        baseline.update(part)
    return baseline.metrics()


def test_of_classes_the_most_frequent_one_is_predicted() -> None:
    labels = np.repeat([0, 1], [944, 56])
    found = metrics_of(described("classification", ["no", "yes"], {"no": 900, "yes": 100}, 1000), labels)
    assert found["accuracy"] == 0.944
    assert found["macro_auc"] == 0.5
    assert found["macro_average_precision"] == 0.5
    assert found["loss"] == pytest.approx(reference.log_loss(labels, np.tile([0.9, 0.1], (1000, 1))))
    assert "expected_calibration_error" not in found


def test_of_labels_those_of_most_examples_are_predicted() -> None:
    labels = (np.random.default_rng(0).random((200, 2)) < [0.7, 0.2]).astype(np.int64)
    found = metrics_of(described("multilabel", ["sky", "sea"], {"sky": 70, "sea": 20}, 100), labels)
    predicted = np.tile([1, 0], (200, 1))
    assert found["macro_recall"] == 0.5
    assert found["label_accuracy"] == pytest.approx((labels == predicted).mean())


def test_f1_and_precision_of_rare_labels_are_those_of_all_labels() -> None:
    labels = (np.random.default_rng(0).random((200, 2)) < [0.4, 0.2]).astype(np.int64)
    found = metrics_of(described("multilabel", ["sky", "sea"], {"sky": 40, "sea": 20}, 100), labels)
    of_all = np.ones_like(labels)
    assert found["macro_f1"] == pytest.approx(reference.f1_score(labels, of_all, average="macro"))
    assert found["micro_f1"] == pytest.approx(reference.f1_score(labels, of_all, average="micro"))
    assert found["macro_precision"] == pytest.approx(reference.precision_score(labels, of_all, average="macro"))
    assert found["macro_recall"] == 0
    assert found["loss"] == pytest.approx(reference.log_loss(labels.ravel(), np.tile([0.4, 0.2], 200)))


def test_of_targets_the_mean_is_predicted() -> None:
    targets = np.random.default_rng(0).normal(5, 2, 100).astype(np.float32)
    found = metrics_of(described("regression", [], {}, 100), targets)
    assert found["rmse"] == pytest.approx(np.sqrt(((targets - 5.0) ** 2).mean()))
    assert found["r2"] <= 0


def test_without_a_training_split_there_is_no_baseline() -> None:
    assert metrics_of(described("classification", ["no", "yes"], {}, 0), np.array([0, 1, 1])) == {}
