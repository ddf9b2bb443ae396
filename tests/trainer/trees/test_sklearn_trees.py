"""Boosted trees of scikit-learn as a SavedModel: their own predictions, from rows as they are in the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.serving import model as served
from slipway.trainer.export.export import export_custom
from tests.trainer.trees.tables import CLASSES, requests, write

pytestmark = pytest.mark.usefixtures("tensorflow")


def estimator(outputs: str) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if CLASSES[outputs] else HistGradientBoostingRegressor
    return kind(max_iter=15, min_samples_leaf=5, random_state=0)


@pytest.mark.parametrize("outputs", CLASSES)
def test_the_exported_trees_predict_from_rows_what_they_learned(tmp_path: Path, outputs: str) -> None:
    data, rows = write(tmp_path / "data", outputs)
    assert data.manifest is not None
    x, y = data.table("train")
    held_out, expected = data.table("validation")
    assert x.shape == (240, 1 + 2 + 4 + 8)
    fitted = estimator(outputs).fit(x, y)
    assert fitted.score(held_out, expected) > 0.7
    export_custom(tmp_path / "model", fitted, tmp_path / "data", data.manifest, 1 / 255, from_logits=True, steps=None)
    model = served.load(tmp_path / "model")
    arrays = requests(rows, 60)
    answers = model.predict(arrays)[model.values]
    if data.manifest.target is not None:
        own = fitted.predict(held_out) * data.manifest.target.deviation[0] + data.manifest.target.mean[0]
        np.testing.assert_allclose(answers, own, rtol=1e-5)
    else:
        np.testing.assert_allclose(answers, fitted.predict_proba(held_out), atol=1e-6)
        assert model.names == CLASSES[outputs]


def test_an_estimator_of_something_else_is_refused(tmp_path: Path) -> None:
    data, _ = write(tmp_path / "data", "two")
    assert isinstance(data.manifest, Manifest)
    x, _ = data.table("train")
    other = estimator("three").fit(x, np.arange(len(x)) % 3)
    with pytest.raises(UserError, match="The estimator has 3 outputs, but the data set has 2"):
        export_custom(tmp_path / "model", other, tmp_path / "data", data.manifest, 1, from_logits=True, steps=None)
    assert not (tmp_path / "model").exists()


def test_the_threshold_of_a_program_is_chosen_on_the_validation_split(tmp_path: Path) -> None:
    """And is part of the served model: its labels are those of the threshold, not of the more probable class."""
    from slipway.trainer.export import threshold

    data, rows = write(tmp_path / "data", "two")
    x, y = data.table("train")
    held_out, expected = data.table("validation")
    assert data.manifest is not None
    fitted = estimator("two").fit(x, y)
    options: Any = {"from_logits": True, "steps": None, "threshold": "youden"}
    export_custom(tmp_path / "model", fitted, tmp_path / "data", data.manifest, 1, **options)
    model = served.load(tmp_path / "model")
    best = threshold.best("youden", fitted.predict_proba(held_out)[:, 1], np.asarray(expected) == 1)
    assert model.threshold == pytest.approx(best, abs=1e-6)
    arrays = requests(rows, 300)
    probabilities = model.predict(arrays)[model.values]
    assert (model.best(probabilities) == (probabilities[:, 1] >= np.float32(model.threshold))).all()
    with pytest.raises(UserError, match="decides between two classes") as error:
        three, _ = write(tmp_path / "three", "three")
        export_custom(tmp_path / "other", fitted, tmp_path / "three", three.manifest, 1, **options)
    assert error.value.fix == "threshold=None"


@pytest.mark.parametrize("threshold", ["f2", 0.0, 1, 1.5])
def test_a_threshold_that_is_neither_a_rule_nor_a_probability_is_refused(tmp_path: Path, threshold: Any) -> None:
    data, _ = write(tmp_path / "data", "two")
    fitted = estimator("two").fit(*data.table("train"))
    options: Any = {"from_logits": True, "steps": None, "threshold": threshold}
    with pytest.raises(UserError, match="is not a decision threshold"):
        export_custom(tmp_path / "model", fitted, tmp_path / "data", data.manifest, 1, **options)
    assert not (tmp_path / "model").exists()
