"""Evaluation of model folders on prepared data sets, and the component around it."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference

from slipway.components.evaluate import report
from slipway.components.evaluate.evaluate import evaluate
from slipway.components.evaluate.served_model import ServedModel
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.core.errors import UserError
from slipway.trainer.engines.table import ENGINES

DEFAULT = EvaluateSettings()


def as_version(source: Path, folder: Path, number: int) -> Path:
    """A model's folder as it stands in the registry."""
    target = folder / str(number)
    shutil.copytree(source, target)
    (target / "metadata.json").write_text(json.dumps({"model": "digits", "version": number}))
    return target


def test_metrics_are_those_of_the_model_on_the_test_split(
    data_set: Path, model_folder: Path, digits: Any, regression: Any
) -> None:
    evaluation = evaluate(EvaluateSettings(batch_size=64), model_folder, data_set, None)  # 360 images: a partial batch
    probabilities = regression.probabilities(digits.test_pixels / 255)
    predicted = probabilities.argmax(axis=1)
    metrics = evaluation.model.metrics
    assert metrics["accuracy"] == pytest.approx(reference.accuracy_score(digits.test_labels, predicted))
    assert metrics["accuracy"] > 0.93
    assert metrics["loss"] == pytest.approx(reference.log_loss(digits.test_labels, probabilities), rel=1e-3)
    assert metrics["macro_f1"] == pytest.approx(reference.f1_score(digits.test_labels, predicted, average="macro"))
    assert metrics["examples"] == 360
    wrong = np.flatnonzero(predicted != digits.test_labels)
    surest = wrong[np.argsort(-probabilities[wrong].max(axis=1))]
    worst = evaluation.model.measures.worst.examples
    assert [int(example.key[2:7]) for example in worst] == surest[:24].tolist()
    assert worst[0].image == digits.test_images[surest[0]]
    assert evaluation.verdict.decision == "promote"
    assert evaluation.verdict.reasons[1:] == ["There is no champion yet."]
    assert evaluation.champion is None


def test_batches_are_predicted_at_once_and_measured_in_order(
    data_set: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, predict = EvaluateSettings(batch_size=64, worst_examples=5), ServedModel.predict
    monkeypatch.setattr("slipway.components.evaluate.evaluate.available_cores", lambda: 1)
    alone = evaluate(settings, model_folder, data_set, None)
    both, calls = threading.Barrier(2), itertools.count()

    def predict_with_another(self: ServedModel, batch: Any) -> Any:
        if next(calls) < 2:
            both.wait(timeout=180)
        return predict(self, batch)

    monkeypatch.setattr(ServedModel, "predict", predict_with_another)
    monkeypatch.setattr("slipway.components.evaluate.evaluate.available_cores", lambda: 2)
    together = evaluate(settings, model_folder, data_set, None)
    assert together.as_dict() == alone.as_dict()
    assert together.model.measures.worst.examples == alone.model.measures.worst.examples
    assert (together.model.measures.correct == alone.model.measures.correct).all()


def test_champion_and_model_are_measured_on_the_same_images(
    data_set: Path, model_folder: Path, weak_folder: Path, weak_regression: Any, digits: Any, tmp_path: Path
) -> None:
    champion = as_version(weak_folder, tmp_path, 3)
    evaluation = evaluate(DEFAULT, model_folder, data_set, champion)
    predicted = weak_regression.probabilities(digits.test_pixels / 255).argmax(axis=1)
    assert evaluation.champion.metrics["accuracy"] == pytest.approx((predicted == digits.test_labels).mean())
    assert evaluation.verdict.decision == "promote"
    assert "version 3" in evaluation.verdict.reasons[0]
    reverse = evaluate(DEFAULT, weak_folder, data_set, as_version(model_folder, tmp_path, 4))
    assert reverse.verdict.decision == "reject"


def test_a_model_does_not_beat_itself(data_set: Path, model_folder: Path, tmp_path: Path) -> None:
    champion = as_version(model_folder, tmp_path, 2)
    settings = EvaluateSettings(gate=GateSettings(margin=-0.5))
    evaluation = evaluate(settings, model_folder, data_set, champion)
    assert evaluation.verdict.decision == "unchanged"
    assert "the same weights as the champion, version 2" in evaluation.verdict.reasons[-1]
    page = report.render(evaluation)
    assert '<span class="verdict unchanged">Unchanged</span>' in page
    assert "Reject" not in page


def test_the_champion_is_excluded_on_demand(data_set: Path, model_folder: Path, tmp_path: Path) -> None:
    evaluation = evaluate(EvaluateSettings(champion="none"), model_folder, data_set, tmp_path / "broken")
    assert evaluation.champion is None
    assert evaluation.verdict.reasons[1:] == ["Not compared with a champion (evaluate.champion=none)."]


def test_a_champion_with_other_classes_is_compared_by_name(
    data_set: Path, model_folder: Path, make_model: Callable[..., Path], regression: Any, digits: Any, tmp_path: Path
) -> None:
    order = [9, 8, 7, 6, 5, 4, 3, 2, 1]  # turned round, without 0
    names = [str(digit) for digit in order]
    weights = np.concatenate([regression.weights[:, order], regression.weights[:, :1]], axis=1)
    bias = np.append(regression.bias[order], regression.bias[0])
    champion = make_model(tmp_path / "5", weights, bias, classes=[*names, "letter O"])
    evaluation = evaluate(DEFAULT, model_folder, data_set, champion)
    predicted = regression.probabilities(digits.test_pixels / 255).argmax(axis=1)
    right = (predicted == digits.test_labels) & (digits.test_labels != 0)
    assert evaluation.champion.metrics["accuracy"] == pytest.approx(right.mean())
    assert np.isfinite(evaluation.champion.metrics["loss"])
    taken = evaluation.champion.measures.confusion
    assert taken[0, -1] == ((predicted == 0) & (digits.test_labels == 0)).sum()
    assert any("does not have the class 0" in reason for reason in evaluation.verdict.reasons)
    assert any("letter O" in reason for reason in evaluation.verdict.reasons)


def test_a_champion_with_only_other_classes_is_not_comparable(
    data_set: Path, model_folder: Path, make_model: Callable[..., Path], regression: Any, tmp_path: Path
) -> None:
    letters = make_model(tmp_path / "5", regression.weights, regression.bias, classes=list("abcdefghij"))
    found = evaluate(DEFAULT, model_folder, data_set, as_version(letters, tmp_path, 6))
    assert found.champion is None
    assert found.verdict.decision == "not comparable"
    assert found.verdict.reasons[-1].startswith(
        "The champion, version 6, has none of the data set's classes, but a, b, c and 7 more: "
    )
    assert '<span class="verdict not comparable">Not comparable</span>' in report.render(found)


def test_an_image_that_only_the_champion_cannot_read_names_the_champion(
    make_data_set: Callable[..., Path], model_folder: Path, digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = digits.test_labels[:20].tolist()
    folder = make_data_set(tmp_path / "data", digits.test_images[:20], labels, [str(digit) for digit in range(10)])
    champion = as_version(model_folder, tmp_path, 4)

    def serve_one_less(self: Any, features: Any) -> Any:
        if self.model.folder == champion and digits.test_images[11] in features["image_bytes"].numpy().tolist():
            raise ValueError("no pixels")
        return serve(self, features)

    serve = ServedModel._serve
    monkeypatch.setattr(ServedModel, "_serve", serve_one_less)
    with pytest.raises(UserError) as caught:
        evaluate(DEFAULT, model_folder, folder, champion)
    example = f"{labels[11]}/00011.png"
    assert (
        caught.value.message
        == f"The champion in {champion} cannot read the image {example} of the test split: no pixels."
    )
    assert "repair" not in str(caught.value.fix)
    assert "--set evaluate.champion=none" in str(caught.value.fix)


def test_a_model_with_its_classes_in_another_order_is_read_by_name(
    data_set: Path, make_model: Callable[..., Path], regression: Any, digits: Any, tmp_path: Path
) -> None:
    order = np.roll(np.arange(10), 3)
    turned = make_model(tmp_path / "turned", regression.weights[:, order], regression.bias[order], order.astype(str))
    predicted = regression.probabilities(digits.test_pixels / 255).argmax(axis=1)
    accuracy = evaluate(DEFAULT, turned, data_set, None).model.metrics["accuracy"]
    assert accuracy == pytest.approx((predicted == digits.test_labels).mean())


def test_a_model_for_other_classes_is_refused(
    data_set: Path, make_model: Callable[..., Path], regression: Any, tmp_path: Path
) -> None:
    names = [*(str(digit) for digit in range(9)), "nine"]
    other = make_model(tmp_path / "other", regression.weights, regression.bias, names)
    with pytest.raises(UserError, match="has other classes than the data set small: it lacks 9, it has nine instead"):
        evaluate(DEFAULT, other, data_set, None)


@pytest.mark.parametrize("damage", ["missing", "no graph", "cut graph", "cut weights"])
def test_a_champion_that_no_longer_loads_is_named_with_the_ways_out(
    data_set: Path, model_folder: Path, tmp_path: Path, damage: str
) -> None:
    champion = as_version(model_folder, tmp_path, 7)
    if damage == "missing":
        shutil.rmtree(champion)
    elif damage == "no graph":
        (champion / "saved_model.pb").unlink()
    elif damage == "cut graph":
        graph = (champion / "saved_model.pb").read_bytes()
        (champion / "saved_model.pb").write_bytes(graph[: len(graph) // 2])
    else:
        weights = next((champion / "variables").glob("*.data*"))
        weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError) as caught:
        evaluate(DEFAULT, model_folder, data_set, champion)
    assert str(champion) in caught.value.message
    assert "does not load" in caught.value.message
    assert "--set evaluate.champion=none" in caught.value.fix
    assert f"restore {champion}" in caught.value.fix
    assert len(str(caught.value).splitlines()) < 10


def test_a_champion_of_an_engine_that_is_not_here_is_named_with_the_ways_out(
    data_set: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion = as_version(model_folder, tmp_path, 8)
    (champion / "saved_model.pb").rename(champion / "model.pt2")
    monkeypatch.setitem(ENGINES, "pytorch", replace(ENGINES["pytorch"], modules=("no_such_library",)))
    with pytest.raises(UserError, match=r"cannot be run here\. The engine pytorch needs no_such_library") as caught:
        evaluate(DEFAULT, model_folder, data_set, champion)
    assert str(champion) in caught.value.message
    assert (
        caught.value.fix == "--set evaluate.champion=none to evaluate without it, or pip install 'slipway-ml[pytorch]'"
    )


def test_a_model_that_does_not_load_is_refused(data_set: Path, model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / "saved_model.pb").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=rf"The model in {folder} does not load"):
        evaluate(DEFAULT, folder, data_set, None)


def test_a_saved_model_without_the_signature_is_refused(data_set: Path, tmp_path: Path) -> None:
    import tensorflow as tf

    tf.saved_model.save(tf.Module(), str(tmp_path / "bare"))
    with pytest.raises(UserError, match="no signature 'serving_default'"):
        evaluate(DEFAULT, tmp_path / "bare", data_set, None)


def test_probabilities_that_are_not_numbers_are_refused(
    data_set: Path, make_model: Callable[..., Path], regression: Any, tmp_path: Path
) -> None:
    broken = make_model(tmp_path / "broken", regression.weights * np.nan, regression.bias)
    with pytest.raises(UserError, match="NaN or infinite probabilities"):
        evaluate(DEFAULT, broken, data_set, None)


def test_an_image_that_cannot_be_decoded_is_named(
    make_data_set: Callable[..., Path], model_folder: Path, digits: Any, tmp_path: Path
) -> None:
    images = digits.test_images[:20]
    images[11] = images[11][:40]
    labels = digits.test_labels[:20].tolist()
    folder = make_data_set(tmp_path / "data", images, labels, [str(digit) for digit in range(10)])
    with pytest.raises(UserError, match=f"The image {labels[11]}/00011.png of the test split cannot be decoded"):
        evaluate(DEFAULT, model_folder, folder, None)


def test_an_empty_or_missing_test_split_is_refused(
    make_data_set: Callable[..., Path], model_folder: Path, tmp_path: Path
) -> None:
    folder = make_data_set(tmp_path / "data", [], [], [str(digit) for digit in range(10)], shards=1)
    with pytest.raises(UserError, match="its split 'test' is empty"):
        evaluate(DEFAULT, model_folder, folder, None)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"] = {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="its split 'test' does not exist"):
        evaluate(DEFAULT, model_folder, folder, None)


def test_a_damaged_shard_is_named(data_set: Path, model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data_set, folder)
    shard = sorted(folder.glob("*.tfrecord-*"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=f"{shard.name} is damaged"):
        evaluate(DEFAULT, model_folder, folder, None)


@pytest.fixture
def artifacts(data_set: Path, model_folder: Path, tmp_path: Path) -> dict[str, Any]:
    """The component's artifacts, as kfp hands them in."""
    from kfp import dsl

    return {
        "model": dsl.Model(uri=str(model_folder)),
        "dataset": dsl.Dataset(uri=str(data_set)),
        "metrics": dsl.Metrics(uri=str(tmp_path / "metrics")),
        "classification": dsl.ClassificationMetrics(uri=str(tmp_path / "classification")),
        "report": dsl.HTML(uri=str(tmp_path / "out" / "report")),
    }


def test_the_component_gives_the_verdict_and_fills_its_artifacts(
    artifacts: dict[str, Any], weak_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway.components.evaluate.component import evaluate as component

    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events.jsonl"))
    champion = as_version(weak_folder, tmp_path, 1)
    settings = EvaluateSettings(gate=GateSettings(minimum=0.9)).model_dump_json()
    decision = component.python_func(settings=settings, champion=str(champion), **artifacts)
    assert decision == "promote"
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events][:: len(events) - 1] == ["started", "finished"]
    assert [event["text"] for event in events if event["event"] == "phase"] == [
        "loading TensorFlow",
        "loading the model",
        "compiling the model",
        "looking at the most confident errors",
        "writing the report",
    ]
    progress = [event for event in events if event["event"] == "progress"][-1]
    assert (progress["done"], progress["total"], progress["unit"]) == (360, 360, "examples")
    outputs = events[-1]["outputs"]
    assert outputs["verdict"]["decision"] == "promote"
    assert outputs["metrics"]["accuracy"] > outputs["champion_metrics"]["accuracy"]
    assert all(isinstance(value, float) for value in outputs["metrics"].values())
    assert artifacts["metrics"].metadata == {**outputs["metrics"], "intervals": outputs["intervals"]}
    low, high = outputs["intervals"]["accuracy"]
    assert low < outputs["metrics"]["accuracy"] < high
    assert {"accuracy", "top_5_accuracy", "macro_f1", "macro_auc", "macro_average_precision"} <= set(
        outputs["intervals"]
    )
    assert Path(outputs["report"]).read_text().startswith("<!doctype html>")
    logged = json.dumps(artifacts["classification"].metadata, allow_nan=False)
    assert len(json.loads(logged)["confidenceMetrics"]) > 5
    rows = artifacts["classification"].metadata["confusionMatrix"]["rows"]
    assert sum(sum(row["row"]) for row in rows) == 360


def test_a_verdict_that_compared_nothing_goes_along_with_the_metrics(artifacts: dict[str, Any]) -> None:
    from slipway.components.evaluate.component import evaluate as component

    assert component.python_func(settings='{"gate": {"baseline": false}}', champion="", **artifacts) == "promote"
    assert artifacts["metrics"].metadata["unchecked"].startswith("No minimum is set")
    assert artifacts["report"].metadata["checked"] is False


def test_the_component_ends_with_one_screen_on_a_users_mistake(
    artifacts: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from slipway.components.evaluate.component import evaluate as component

    with pytest.raises(SystemExit) as caught:
        component.python_func(settings="{}", champion=str(tmp_path / "missing"), **artifacts)
    assert caught.value.code == 1
    assert "--set evaluate.champion=none" in capfd.readouterr().err
    assert not Path(artifacts["report"].path).exists()
