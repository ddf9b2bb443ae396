"""Boosters of LightGBM as TensorFlow's operations and as a SavedModel: their own predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipway import training
from slipway.core.errors import UserError
from slipway.serving import model as served
from slipway.trainer.export.export import export_custom
from slipway.trainer.trees import boosters, table
from slipway.trainer.trees.forest import Forest
from tests.trainer.trees import tables

pytestmark = pytest.mark.usefixtures("tensorflow")
OBJECTIVES = ["regression", "binary", "multiclass", "poisson", "quantile"]
MAX_CATEGORY = 70  # more than two words of bits


@st.composite
def rows(draw: st.DrawFn) -> tuple[NDArray[np.float32], list[int]]:
    """Columns of numbers with gaps and of categories, and which are categories."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, gaps = draw(st.integers(30, 200)), draw(st.sampled_from([0, 0.3]))
    columns = []
    kinds = draw(st.lists(st.sampled_from(["number", "integer", "category"]), min_size=1, max_size=4))
    for kind in kinds:
        if kind == "number":
            values = random.normal(0, 1, count)
        else:
            values = random.integers(-3 * (kind == "integer"), MAX_CATEGORY if kind == "category" else 3, count) * 1.0
        columns.append(np.where(random.random(count) < gaps, np.nan, values))
    return np.stack(columns, axis=1).astype(np.float32), [
        index for index, kind in enumerate(kinds) if kind == "category"
    ]


def fitted(x: NDArray[Any], categories: list[int], objective: str, rounds: int = 8, **more: Any) -> Any:
    random = np.random.default_rng(1)
    y = np.nan_to_num(x).sum(axis=1) + random.normal(0, 0.1, len(x))
    parameters = {
        "objective": objective, "min_data_in_leaf": 1, "min_data_per_group": 1, "cat_smooth": 0, "num_threads": 1,
        "max_cat_to_onehot": 4, "verbosity": -1, "deterministic": True, **more,
    }  # fmt: skip
    if objective in ("binary", "multiclass"):
        y = np.digitize(y, np.quantile(y, [0.5] if objective == "binary" else [0.3, 0.6]))
    if objective == "multiclass":
        parameters["num_class"] = 3
    if objective == "poisson":
        y = np.exp(y / 100)
    return lightgbm.train(parameters, lightgbm.Dataset(x, y, categorical_feature=categories), rounds)


@given(rows(), st.sampled_from(OBJECTIVES), st.sampled_from([{}, {"extra_trees": True}, {"use_missing": False}]))
@settings(deadline=None)
def test_trees_have_the_boosters_own_raw_scores(
    made: tuple[NDArray[np.float32], list[int]], objective: str, more: dict[str, Any]
) -> None:
    x, categories = made
    booster = fitted(x, categories, objective, **more)
    unseen = np.full((6, x.shape[1]), [[np.nan], [0.0], [-0.0], [MAX_CATEGORY + 40], [1e9], [-np.inf]])
    rows = np.concatenate([x, unseen, np.random.default_rng(2).permutation(x)]).astype(np.float32)
    forest = Forest(boosters.nodes_of([booster.dump_model()]), x.shape[1], booster.num_model_per_iteration())
    expected = booster.predict(rows, raw_score=True).reshape(len(rows), -1)
    np.testing.assert_allclose(forest.raw_scores(rows).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_many_rows_are_evaluated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(0, 1, (50, 3)).astype(np.float32)
    booster = fitted(x, [], "multiclass")
    nodes = boosters.nodes_of([booster.dump_model()] * 2)
    monkeypatch.setattr("slipway.trainer.trees.forest.MAX_POSITIONS", 7 * len(nodes.roots))
    scores = Forest(nodes, 3, 3, models=2).raw_scores
    np.testing.assert_allclose(scores(x).numpy(), booster.predict(x, raw_score=True), rtol=1e-12)
    assert scores(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("outputs", tables.CLASSES)
def test_the_exported_boosters_predict_from_rows_what_they_learned(tmp_path: Path, outputs: str) -> None:
    """The mean of several boosters, with categories that the training split does not have, and gaps."""
    data, columns = tables.write(tmp_path / "data", outputs)
    assert data.manifest is not None
    split = table.read(data.files("train"), data.manifest)
    held_out = table.read(data.files("validation"), data.manifest)
    assert split.x.shape == (240, 1 + 1 + 1 + 7)
    assert (split.categories, np.isnan(split.x).any(axis=0).tolist()) == ([2], [False, True] + [False] * 8)
    classes = len(tables.CLASSES[outputs])
    objective = {0: "regression", 2: "binary", 3: "multiclass"}[classes]
    parameters = {
        "objective": objective,
        "min_data_in_leaf": 5,
        "verbosity": -1,
        "num_threads": 1,
        "min_data_per_group": 9,
    }
    if classes == 3:
        parameters["num_class"] = 3
    rows = lightgbm.Dataset(split.x, split.y, categorical_feature=split.categories, free_raw_data=False)
    models = [lightgbm.train({**parameters, "seed": seed, "extra_trees": seed > 0}, rows, 10) for seed in range(2)]
    export_custom(tmp_path / "model", models, tmp_path / "data", data.manifest, 1 / 255, from_logits=True, steps=None)
    model = served.load(tmp_path / "model")
    arrays = tables.requests(columns, 60)
    answers = model.predict(arrays)[model.values]
    raw = np.mean([booster.predict(held_out.x, raw_score=True) for booster in models], axis=0)
    if data.manifest.target is not None:
        own = raw * data.manifest.target.deviation[0] + data.manifest.target.mean[0]
        np.testing.assert_allclose(answers, own, rtol=1e-5)
    else:
        logits = np.stack([0 * raw, raw], axis=1) if classes == 2 else raw
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        np.testing.assert_allclose(answers, odds / odds.sum(axis=1, keepdims=True), atol=1e-6)
    arrays["city"][:] = b"Chur"  # is 0 among the columns, as at training's end
    unknown = held_out.x.copy()
    unknown[:, 2] = 0
    assert not np.allclose(model.predict(arrays)[model.values], answers)
    raw_unknown = np.mean([booster.predict(unknown, raw_score=True) for booster in models], axis=0)
    if classes == 0:
        own = raw_unknown * data.manifest.target.deviation[0] + data.manifest.target.mean[0]  # type: ignore[union-attr]
        np.testing.assert_allclose(model.predict(arrays)[model.values], own, rtol=1e-5)


def refused(tmp_path: Path, outputs: str, model: Any) -> UserError:
    data, _ = tables.write(tmp_path / "data", outputs)
    assert data.manifest is not None
    with pytest.raises(UserError) as error:
        export_custom(tmp_path / "model", model, tmp_path / "data", data.manifest, 1, from_logits=True, steps=None)
    assert not (tmp_path / "model").exists()
    return error.value


X = np.random.default_rng(0).normal(0, 1, (80, 10))


@pytest.mark.parametrize(
    ("objective", "more", "outputs", "says"),
    [
        ("multiclass", {}, "two", "The booster has 3 outputs, but the data set has 2 classes"),
        ("regression", {"reg_sqrt": True}, "target", "Trees of the objective regression sqrt cannot be exported"),
        ("regression", {"zero_as_missing": True}, "target", "zeros that are missing values, which cannot"),
        ("regression", {"linear_tree": True}, "target", "linear models in its leaves, which cannot"),
        ("regression", {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}, "target", "a random forest"),
    ],
)
def test_boosters_that_cannot_be_exported_are_refused(
    tmp_path: Path, objective: str, more: dict[str, Any], outputs: str, says: str
) -> None:
    assert says in refused(tmp_path, outputs, fitted(X, [], objective, 2, **more)).message


def test_boosters_of_other_columns_or_of_different_objectives_are_refused(tmp_path: Path) -> None:
    error = refused(tmp_path / "a", "target", fitted(X[:, :4], [], "regression", 1))
    assert error.message == "The booster has 4 features, but the data set has 10 columns."
    mixed = [fitted(X, [], objective, 1) for objective in ("regression", "poisson")]
    assert "different objectives" in refused(tmp_path / "b", "target", mixed).message


def test_an_estimator_of_the_matrix_is_exported_too(tmp_path: Path) -> None:
    """LightGBM's scikit-learn interface, fitted to the columns of slipway.training.data().table."""
    data, columns = tables.write(tmp_path / "data", "two")
    assert isinstance(data, training.Data)
    assert data.manifest is not None
    x, y = data.table("train")
    model = lightgbm.LGBMClassifier(n_estimators=5, verbosity=-1, n_jobs=1).fit(x, y)
    export_custom(tmp_path / "model", model, tmp_path / "data", data.manifest, 1, from_logits=True, steps=None)
    loaded = served.load(tmp_path / "model")
    held_out, _ = data.table("validation")
    answers = loaded.predict(tables.requests(columns, 60))[loaded.values]
    np.testing.assert_allclose(answers, model.predict_proba(held_out), atol=1e-6)
