"""Evaluation of models with named inputs on tables: regression, multilabel, and classification without an image."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference

from slipway.components.evaluate.evaluate import Evaluation, UnseenValues, evaluate
from slipway.components.evaluate.measured import Batch, Unseen
from slipway.components.evaluate.measures import EVALUATED
from slipway.components.evaluate.report import render
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.core.errors import UserError
from slipway.core.manifest import Input, TaskName
from slipway.trainer.tasks import TASKS
from tests.components.evaluate.tables import CITIES, price, prices_of, rows, write_model, write_price_model, write_table
from tests.trainer.conftest import manifest_of

ALL = ("size", "place", "tokens", "city")
LABELS = ["garden", "garage", "lift"]
KINDS = ["flat", "house"]


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return rows(250)


@pytest.fixture(scope="module")
def prices(table: dict[str, Any]) -> np.ndarray:
    return prices_of(table)


@pytest.fixture(scope="module")
def homes(table: dict[str, Any], prices: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("data") / "homes", "regression", table, prices)


@pytest.fixture(scope="module")
def regression_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_price_model(tmp_path_factory.mktemp("model") / "regression")


@pytest.fixture(scope="module")
def smaller_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An earlier model, which knows the size only."""
    folder = tmp_path_factory.mktemp("model") / "7"
    write_model(folder, lambda values: {"prediction": values["size"] * 3 + 9}, ["size"], task="regression")
    (folder / "metadata.json").write_text(json.dumps({"version": 7}))
    return folder


SETTINGS = EvaluateSettings(batch_size=64, worst_examples=5)


@pytest.fixture(scope="module")
def evaluation(homes: Path, regression_model: Path, smaller_model: Path) -> Evaluation:
    settings = EvaluateSettings(batch_size=64, worst_examples=5, gate={"metric": "rmse"})
    return evaluate(settings, regression_model, homes, smaller_model)


def test_a_regression_reads_raw_values_by_name(evaluation: Evaluation, table: dict[str, Any], prices: Any) -> None:
    predicted = price(table) + 20 * (table["city"] == "Bern")
    metrics = evaluation.model.metrics
    assert metrics["rmse"] == pytest.approx(reference.root_mean_squared_error(prices, predicted), rel=1e-4)
    assert metrics["mae"] == pytest.approx(reference.mean_absolute_error(prices, predicted), rel=1e-4)
    assert metrics["r2"] == pytest.approx(reference.r2_score(prices, predicted), rel=1e-4)
    assert metrics["loss"] == pytest.approx(metrics["mse"] / prices.var(), rel=1e-4)
    low, high = evaluation.model.intervals["rmse"]
    assert low < 12 < high
    order = np.argsort(-np.abs(predicted - prices))[:5]
    worst = evaluation.model.measures.worst.examples
    assert [example.key for example in worst] == [f"row {index}" for index in order]
    assert worst[0].values["city"] == table["city"][order[0]]
    assert worst[0].values["tokens"] == ", ".join(map(str, table["tokens"][order[0]]))


def test_a_champion_that_uses_a_part_of_the_inputs_is_measured_on_the_same_examples(
    evaluation: Evaluation, table: dict[str, Any], prices: Any
) -> None:
    expected = reference.root_mean_squared_error(prices, table["size"] * 3 + 9)
    assert evaluation.champion.metrics["rmse"] == pytest.approx(expected, rel=1e-4)
    assert evaluation.verdict.decision == "promote"
    assert "The RMSE, 1" in evaluation.verdict.reasons[0]


def test_unseen_categories_are_counted_and_named(evaluation: Evaluation, table: dict[str, Any]) -> None:
    [unseen] = evaluation.unseen
    count = int((table["city"] == "Wil").sum())
    assert (unseen.input, unseen.examples, unseen.values) == ("city", count, [("Wil", count)])
    assert f"Wil ({count})" in render(evaluation)


def test_unseen_texts_are_counted(evaluation: Evaluation) -> None:
    import tensorflow as tf

    about = manifest_of(inputs={"review": Input(kind="text", shape=(4,), vocabulary=("good", "bad", "film"))})
    unseen = UnseenValues(about)
    texts = np.array([b"a good film", b"", b"schlechter Film, gut", b"schlechter Film, gut"], object)
    unseen.update(Batch({about.signature["review"]: tf.constant(texts)}, np.zeros(4), [b""] * 4))
    assert unseen.counted() == [Unseen("review", 3, [("schlechter Film, gut", 2), ("", 1)], is_text=True)]
    html = render(replace(evaluation, unseen=unseen.counted()))
    assert "a text in review that is empty, or mostly" in html
    assert "schlechter Film, gut (2), (empty) (1)" in html


def test_the_report_of_a_regression_has_its_sections(evaluation: Evaluation) -> None:
    html = render(evaluation)
    for text in ("– RMSE 1", "Residuals", "Largest residuals", "R²", "mean squared error of the standardized target"):
        assert text in html
    for text in ("Confusion matrix", "accuracy", "Encodings", "Image size", "image"):
        assert text not in html.partition("<body>")[2].replace("data:image", "")
    assert html.count('<svg class="chart"') == 3
    assert evaluation.model.measures.worst.examples[0].key in html


def test_a_multilabel_model_is_measured_by_label(table: dict[str, Any], tmp_path: Path) -> None:
    import tensorflow as tf

    generator = np.random.default_rng(2)
    scores = np.stack([table["size"] / 20 - 2.5, table["place"][:, 0], table["place"][:, 1]], axis=1)
    labels = (scores + generator.normal(0, 0.7, scores.shape) > [0.2, 0.5, 1.0]).astype(np.int64)
    data = write_table(tmp_path / "data", "multilabel", table, labels, LABELS)

    def predict(values: dict[str, Any]) -> dict[str, Any]:
        logits = tf.stack([values["place"][:, 1] - 1, values["size"] / 20 - 2.7, values["place"][:, 0] - 0.5], axis=1)
        names = tf.tile(tf.constant([["lift", "garden", "garage"]]), [tf.shape(logits)[0], 1])
        return {"labels": names, "probabilities": tf.sigmoid(logits * 3)}

    model = write_model(tmp_path / "model", predict, ["size", "place"], task="multilabel")
    evaluation = evaluate(EvaluateSettings(batch_size=64, gate={"metric": "macro_f1"}), model, data, None)
    probabilities = 1 / (1 + np.exp(-3 * (scores - [0.2, 0.5, 1.0])))
    metrics = evaluation.model.metrics
    assert metrics["macro_f1"] == pytest.approx(reference.f1_score(labels, probabilities >= 0.5, average="macro"))
    assert metrics["macro_auc"] == pytest.approx(reference.roc_auc_score(labels, probabilities), abs=1e-3)
    html = render(evaluation)
    for text in (*LABELS, "Best threshold", "Per-label metrics", "Worst predictions", "macro F1 0."):
        assert text in html
    assert "Confusion matrix" not in html
    worst = evaluation.model.measures.worst.examples[0]
    assert set(f"{worst.true}, {worst.predicted}".split(", ")) <= {*LABELS, "no label"}


@pytest.fixture(scope="module")
def kinds(table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = (table["size"] + np.random.default_rng(3).normal(0, 10, 250) > 60).astype(np.int64)
    return write_table(tmp_path_factory.mktemp("data") / "kinds", "classification", table, labels, KINDS)


def classifier(folder: Path, **description: Any) -> Path:
    import tensorflow as tf

    def predict(values: dict[str, Any]) -> dict[str, Any]:
        house = tf.sigmoid((values["size"] - 60) / 5)
        names = tf.tile(tf.constant([KINDS]), [tf.shape(house)[0], 1])
        return {"classes": names, "probabilities": tf.stack([1 - house, house], axis=1)}

    return write_model(folder, predict, ["size"], classes=KINDS, **description)


def test_a_classification_without_an_image_lists_its_errors_with_their_values(kinds: Path, tmp_path: Path) -> None:
    evaluation = evaluate(SETTINGS, classifier(tmp_path / "model"), kinds, None)
    html = render(evaluation)
    worst = evaluation.model.measures.worst.examples[0]
    assert {worst.true, worst.predicted} == set(KINDS)
    assert worst.values["city"] in (*CITIES, "Wil")
    assert worst.key in html
    assert "misclassified test example" in html
    assert '<ul class="images">' not in html
    assert "top_5_accuracy" not in evaluation.model.metrics


def test_a_model_of_another_task_is_refused_and_a_champion_not_comparable(
    homes: Path, regression_model: Path, tmp_path: Path
) -> None:
    other = classifier(tmp_path / "other")
    words = "was trained for the task classification; the task of the data set homes is regression"
    with pytest.raises(UserError, match=words):
        evaluate(SETTINGS, other, homes, None)
    found = evaluate(SETTINGS, regression_model, homes, other).verdict
    assert found.decision == "not comparable"
    assert f"The champion, other, {words}: the models are not comparable" in found.reasons[-1]


def test_inputs_that_the_data_set_does_not_have_are_named(
    table: dict[str, Any], prices: Any, regression_model: Path, smaller_model: Path, tmp_path: Path
) -> None:
    part = {name: table[name] for name in ("place", "tokens")}
    data = write_table(tmp_path / "part", "regression", part, prices)
    with pytest.raises(UserError, match=r"The model in .* has the input .*, which the data set homes does not have: "):
        evaluate(SETTINGS, regression_model, data, None)
    fitting = write_model(tmp_path / "fits", lambda values: {"prediction": values["place"][:, 0]}, ["place"])
    gate = GateSettings(baseline=False)
    found = evaluate(SETTINGS.model_copy(update={"gate": gate}), fitting, data, smaller_model).verdict
    assert found.decision == "not comparable"
    assert "has the input size, which the data set homes does not have: place, tokens" in " ".join(found.reasons)


def test_an_input_of_another_type_is_refused(
    table: dict[str, Any], prices: Any, smaller_model: Path, tmp_path: Path
) -> None:
    data = write_table(tmp_path / "data", "regression", {"size": table["size"]}, prices)
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["inputs"]["size"] = {"kind": "category", "vocabulary": ["1"]}
    (data / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="reads the input size as float32, but it is string in the data set homes"):
        evaluate(SETTINGS, smaller_model, data, None)


def test_outputs_of_another_task_and_of_another_shape_are_refused(homes: Path, tmp_path: Path) -> None:
    import tensorflow as tf

    wrong = write_model(tmp_path / "name", lambda values: {"price": values["size"]}, ["size"])
    with pytest.raises(UserError, match="has no output 'prediction', which the task regression needs; it has price"):
        evaluate(SETTINGS, wrong, homes, None)
    pairs = write_model(tmp_path / "pairs", lambda values: {"prediction": values["place"]}, ["place"])
    with pytest.raises(UserError, match=r"returned prediction of the shape \[250, 2\], not \[250\]"):
        evaluate(EvaluateSettings(), pairs, homes, None)
    column = write_model(tmp_path / "column", lambda values: {"prediction": values["size"][:, None]}, ["size"])
    assert evaluate(SETTINGS, column, homes, None).model.metrics["rmse"] > 0
    broken = write_model(tmp_path / "nan", lambda values: {"prediction": tf.math.log(values["size"] - 50)}, ["size"])
    with pytest.raises(UserError, match="returned NaN or infinite predictions"):
        evaluate(SETTINGS, broken, homes, None)


def test_a_test_split_with_equal_targets_has_no_r2_to_decide_by(
    table: dict[str, Any], smaller_model: Path, tmp_path: Path
) -> None:
    data = write_table(tmp_path / "data", "regression", table, np.full(250, 7.0))
    with pytest.raises(UserError, match="The test split does not define the R²") as caught:
        evaluate(EvaluateSettings(gate={"metric": "r2"}), smaller_model, data, None)
    assert "rmse" in caught.value.allowed


def test_the_component_stores_intervals_and_logs_no_classification(
    homes: Path, regression_model: Path, smaller_model: Path, tmp_path: Path
) -> None:
    from kfp import dsl

    from slipway.components.evaluate.component import evaluate as component

    metrics, classification = dsl.Metrics(uri=str(tmp_path / "m")), dsl.ClassificationMetrics(uri=str(tmp_path / "c"))
    decision = component.python_func(
        settings=EvaluateSettings(gate={"significance": 0.05}).model_dump_json(),
        model=dsl.Model(uri=str(regression_model)),
        champion=str(smaller_model),
        metrics=metrics,
        classification=classification,
        report=dsl.HTML(uri=str(tmp_path / "report")),
        dataset=dsl.Dataset(uri=str(homes)),
    )
    assert decision == "promote"
    low, high = metrics.metadata["intervals"]["rmse"]
    assert low < metrics.metadata["rmse"] < high
    assert classification.metadata == {}
    json.dumps(metrics.metadata, allow_nan=False)


@pytest.mark.parametrize("task", TASKS)
def test_every_metric_is_measured_and_has_an_interval_or_a_reason_for_none(task: TaskName) -> None:
    draws, examples, names = np.random.default_rng(0), 2000, [str(number) for number in range(7)]
    measures: Any = EVALUATED[task].of(manifest_of(classes=len(names)), examples)
    labels: Any = draws.integers(0, 7, examples)
    values = np.full((examples, 7), 1 / 10)
    values[np.arange(examples), np.where(draws.random(examples) < 0.7, labels, (labels + 1) % 7)] = 0.4
    if task == "multilabel":
        labels = (draws.random((examples, 7)) < values + 0.2).astype(np.int64)
    if task == "regression":
        labels = draws.normal(size=examples)
        values = labels + draws.normal(size=examples)
    measures.update(measures.predictions(labels, values, np.arange(7)))
    assert TASKS[task].metrics.keys() <= measures.metrics().keys()
    assert TASKS[task].metrics.keys() <= measures.intervals().keys() | measures.without().keys()
