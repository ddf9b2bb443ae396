"""The decision threshold of a model of two classes, chosen on the validation split and part of the exported model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.pipelines.prediction import output
from slipway.serving import instances
from slipway.serving.model import Model
from slipway.trainer.checks import check_inputs
from slipway.trainer.export import threshold
from tests.trainer import feature_sets
from tests.trainer.conftest import job
from tests.trainer.feature_sets import Column

ROWS = 400


def rare(folder: Path, classes: int = 2) -> Manifest:
    """Write a set of which a tenth is of the second class, whose x is higher on average."""
    random = np.random.default_rng(6)
    labels = (np.arange(ROWS) % 10 == 0).astype(int)
    x = (random.normal(0, 1, ROWS) + labels).astype(np.float32)
    names = ["healthy", "ill", "other"][:classes]
    return feature_sets.write(folder, "classification", {"x": Column("number", x)}, labels, names, validation=200)


@pytest.mark.parametrize("rule", ["f1", "youden"])
def test_no_other_threshold_is_better(rule: str) -> None:
    from sklearn.metrics import f1_score, recall_score

    random = np.random.default_rng(3)
    positive = random.random(300) < 0.2
    scores = np.round(np.clip(random.normal(0.3 + 0.2 * positive, 0.15), 0, 1), 2)  # many are equal
    found = threshold.best(rule, scores, positive)

    def quality(limit: float) -> float:
        predicted = scores >= limit
        if rule == "f1":
            return float(f1_score(positive, predicted, zero_division=0))
        return float(recall_score(positive, predicted) + recall_score(~positive, ~predicted) - 1)

    assert quality(found) == pytest.approx(max(quality(limit) for limit in np.unique(scores)))
    assert found not in scores


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["f1", 0.25, None])
def test_the_exported_model_and_its_answers_use_it(tmp_path: Path, rule: str | float | None) -> None:
    import tensorflow as tf

    from slipway.trainer.export import saved_model

    about = rare(tmp_path / "data")

    def network(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.stack([tf.zeros_like(inputs["x"]), inputs["x"] - 2.5], axis=1)

    chosen = threshold.choose(rule, tmp_path / "data", about, network)
    assert chosen == rule if not isinstance(rule, str) else 0.05 < chosen < 0.45
    (tmp_path / "model").mkdir()
    saved_model.write(tmp_path / "model", network, [], about, chosen)
    rows = np.linspace(-3, 6, 40, dtype=np.float32)
    answers = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"](x=tf.constant(rows))
    expected = np.where(answers["probabilities"].numpy()[:, 1] >= (chosen or 0.5), b"ill", b"healthy").tolist()
    assert answers["label"].numpy().tolist() == expected
    assert 0 < expected.count(b"ill") < 40
    outputs = {"probabilities": answers["probabilities"].numpy()}
    description = {"threshold": chosen} if chosen else {}
    served = Model(tmp_path, "classification", {}, (), description, lambda _: (None, {}), names=about.classes)
    labels = [label.decode() for label in expected]
    assert [each["label"] for each in instances.in_words(served, outputs)] == labels
    assert output._csv_columns(outputs, served)[0] == labels


def test_it_needs_two_classes(tmp_path: Path) -> None:
    config = job(tmp_path, steps=9, steps_per_epoch=3, threshold="f1")
    check_inputs(config.train, rare(tmp_path / "two"))
    with pytest.raises(UserError, match="decides between two classes; named has 3"):
        check_inputs(config.train, rare(tmp_path / "three", classes=3))
