"""The report: self-contained, complete, and safe for any class names and keys."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slipway.components.evaluate.charts import POINTS, History, learning_curves, read_history
from slipway.components.evaluate.evaluate import Evaluation, evaluate
from slipway.components.evaluate.measures.significance import proportion_interval
from slipway.components.evaluate.report import _data_uri, render
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.core.manifest import Checked


class Page(HTMLParser):
    """What the tests look at: elements' names, addresses, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += " ".join(data.split()) + " "


@pytest.fixture(scope="module")
def evaluation(data_set: Path, model_folder: Path, weak_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    champion = tmp_path_factory.mktemp("registry") / "3"
    shutil.copytree(weak_folder, champion)
    (champion / "metadata.json").write_text(json.dumps({"version": 3}))
    settings = EvaluateSettings(gate=GateSettings(minimum=0.9), worst_examples=5)
    return evaluate(settings, model_folder, data_set, champion)


@pytest.fixture(scope="module")
def html(evaluation: Evaluation) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)  # takes longer to import than the report to render
        return render(evaluation)


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    page = Page(html)
    assert not {"script", "iframe"} & set(page.tags)
    assert page.addresses
    assert all(address.startswith(("data:image/", "#")) for address in page.addresses)
    assert "@import" not in html
    assert not re.search(r"url\((?!['\"]?#)", html)


def test_the_page_says_the_verdict_its_reasons_and_both_models_metrics(html: str, evaluation: Evaluation) -> None:
    text = Page(html).text
    assert "Promote" in text
    for reason in evaluation.verdict.reasons:
        assert reason in text
    for measured in (evaluation.model, evaluation.champion):
        for name in ("accuracy", "loss", "macro_f1", "macro_auc", "expected_calibration_error"):
            assert f"{measured.metrics[name]:.4f}" in text
    assert "Champion, version 3" in text
    low, high = proportion_interval(int(evaluation.model.measures.averages.hits.sum()), 360)
    assert f"95% confidence interval of the accuracy: {low:.1%} to {high:.1%}" in text
    assert "No interval of Loss, Expected calibration error: one confident error more changes it too much." in text
    assert "Predicted class" in text
    assert "True class" in text
    assert "slipway.trainer.models.digits:build" in text
    assert evaluation.manifest.fingerprint in text
    assert str(evaluation.model.weights_checksum) in text


def test_the_page_names_its_run_with_commands_and_links_to_what_is_beside_it(
    html: str, evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "This run" not in html
    found = render(evaluation, "digits-1")
    assert "<title>digits-1: promote, accuracy " in found
    assert "slipway predict digits-1 FOLDER -o predictions.csv\nslipway serve digits-1\n" in found
    assert "slipway run -c runs/digits-1/config.yaml" in found
    beside = ["statistics.html", "config.yaml", "logs/evaluate.log"]
    assert not any(f'href="{address}"' in found for address in beside), "elsewhere, there is no run's folder"
    (tmp_path / "digits-0").mkdir()
    (tmp_path / "digits-0" / "report.html").touch()
    monkeypatch.setenv("SLIPWAY_LOGS", str(tmp_path / "digits-1" / "logs"))
    registered = dataclasses.replace(evaluation.champion)
    registered.__dict__["registration"] = {"version": 3, "run_id": "digits-0"}
    page = Page(render(dataclasses.replace(evaluation, champion=registered), "digits-1"))
    assert [address for address in page.addresses if not address.startswith(("data:", "#"))] == [
        *beside,
        "../digits-0/report.html",
    ]


def test_only_significant_differences_are_in_color(evaluation: Evaluation) -> None:
    html = render(evaluation)
    assert '<td class="better">' in html
    same = dataclasses.replace(
        evaluation.champion, measures=evaluation.model.compared, metrics=evaluation.model.metrics
    )
    small = dict(same.metrics) | {"accuracy": same.metrics["accuracy"] - 0.0003}
    html = render(dataclasses.replace(evaluation, champion=dataclasses.replace(same, metrics=small)))
    assert "+0.0003<small>better, not significantly</small>" in html
    assert not re.search(r'<td class="(better|worse)">', html)


def test_without_a_champion_the_gate_does_not_speak_of_one(evaluation: Evaluation) -> None:
    alone = dataclasses.replace(evaluation, champion=None, opponent=None)
    assert "Gate: accuracy at least 0.9." in Page(render(alone)).text
    text = Page(render(evaluation)).text
    assert "Gate: accuracy at least 0.9, at least as good as the champion’s, significantly better on a test" in text


def test_the_baseline_is_beside_each_metric_that_it_has(html: str, evaluation: Evaluation) -> None:
    text = Page(render(dataclasses.replace(evaluation, baseline={"accuracy": 0.1234}))).text
    assert "0.1234" in text
    assert "predicts the training split’s class frequencies for every image" in text
    assert "Baseline" not in html


def test_the_headline_is_the_gates_metric_and_the_validation_that_of_the_exported_weights(
    evaluation: Evaluation,
) -> None:
    history = read_history(evaluation.model.folder / "metrics.jsonl").records
    first, *_, last = (record for record in history if record["kind"] == "validation")
    assert first["loss"] > last["loss"]
    gated = evaluation.settings.model_copy(update={"gate": GateSettings(metric="macro_auc")})
    exported = dataclasses.replace(evaluation.model, description={"weights_step": first["step"]})
    html = render(dataclasses.replace(evaluation, settings=gated, model=exported))
    macro_auc = evaluation.model.metrics["macro_auc"]
    assert f"promote, macro AUC {macro_auc:.4f}</title>" in html
    assert f"at step {first['step']:,}: loss {first['loss']:.4f}, accuracy {first['accuracy']:.4f}." in Page(html).text


def test_the_number_of_damaged_images_is_in_the_provenance(html: str, evaluation: Evaluation) -> None:
    checked = Checked(check="decode", images=9_000, decoded=9_000, undecodable=0, damaged=1_234)
    manifest = evaluation.manifest.model_copy(update={"checked": checked})
    assert "Damaged images 1,234 " in Page(render(dataclasses.replace(evaluation, manifest=manifest))).text
    assert "Damaged images" not in html


def test_an_older_checkpoint_that_was_used_is_in_the_provenance(html: str, evaluation: Evaluation) -> None:
    sentence = "the checkpoint of step 30 is damaged; training resumes from the one of step 20"
    model = dataclasses.replace(evaluation.model, description={**evaluation.model.description, "went_back": [sentence]})
    assert f"Older checkpoint used {sentence}" in Page(render(dataclasses.replace(evaluation, model=model))).text
    assert "Older checkpoint" not in html


def test_where_the_time_of_the_training_went_is_in_the_provenance(
    html: str, evaluation: Evaluation, tmp_path: Path
) -> None:
    folder = shutil.copytree(evaluation.model.folder, tmp_path / "model")
    (folder / "spent.json").write_text(
        json.dumps({"seconds": {"steps": 2.0}, "text": "the training took 2.0 s: steps 100%"})
    )
    model = dataclasses.replace(evaluation.model, folder=folder)
    html_of_timed = render(dataclasses.replace(evaluation, model=model))
    assert "Time the training took 2.0 s: steps 100%" in Page(html_of_timed).text
    assert "the training took" not in html


def test_the_notes_on_the_data_and_the_skipped_images_are_on_the_page(evaluation: Evaluation) -> None:
    noted = evaluation.manifest.model_copy(
        update={"notes": ["2 images have several labels."], "skipped_count": 3, "skipped_reasons": {"it is empty": 2}}
    )
    html = render(dataclasses.replace(evaluation, manifest=noted))
    total = 3 + sum(split.examples for split in noted.splits.values())
    assert "<li>2 images have several labels.</li>" in html
    assert f"3 of {total:,} (it is empty: 2; other reasons: 1)" in html


def test_the_most_confidently_wrong_images_are_shown_as_they_are(html: str, evaluation: Evaluation) -> None:
    examples, text = evaluation.model.measures.worst.examples, Page(html).text
    assert len(examples) == 5
    for example in examples:
        assert f'src="data:image/png;base64,{base64.b64encode(example.image).decode()}"' in html
        assert example.key in html
        assert f"predicted: {example.predicted} true: {example.true} " in text


@pytest.mark.parametrize(("losses", "is_log"), [([2.0, 0.01], True), ([2.0, 0.0], False), ([-1.0, -2.0], False)])
def test_a_loss_of_zero_or_less_is_plotted_on_a_linear_scale(losses: list[float], is_log: bool) -> None:
    records = [{"kind": "train", "step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    (curve,) = learning_curves(History(records), {})
    assert ("log scale" in curve) is is_log


def test_the_charts_take_the_pages_colors(html: str) -> None:
    charts = re.findall(r'<svg class="chart".*?</svg>', html, flags=re.DOTALL)
    assert len(charts) == 5  # loss, accuracy, calibration, ROC, precision-recall
    for chart in charts:
        assert "var(--accent)" in chart
        assert not re.findall(r"#[0-9a-f]{6}\b", chart)


def test_names_are_text_and_not_markup(
    make_data_set: Callable[..., Path], make_model: Callable[..., Path], digits: Any, regression: Any, tmp_path: Path
) -> None:
    names = ["<script>alert(1)</script>", 'a"b', "c&d", "$e$", *"456789"]
    # Every image's label is off by one: each is confidently wrong, and its key and classes are shown.
    labels = ((digits.test_labels[:40] + 1) % 10).tolist()
    data = make_data_set(tmp_path / "data", digits.test_images[:40], labels, names)
    model = make_model(tmp_path / "model", regression.weights, regression.bias, names)
    page = Page(render(evaluate(EvaluateSettings(worst_examples=40), model, data, None)))
    assert "script" not in page.tags
    assert "true: <script>alert(1)</ script>" in page.text  # where a slash is, it may be wrapped


def test_without_history_description_and_mistakes_the_page_says_so(
    make_data_set: Callable[..., Path], make_model: Callable[..., Path], digits: Any, regression: Any, tmp_path: Path
) -> None:
    predicted = regression.probabilities(digits.test_pixels / 255).argmax(axis=1)
    right = np.flatnonzero(predicted == digits.test_labels)[:50]
    images, labels = [digits.test_images[index] for index in right], digits.test_labels[right].tolist()
    data = make_data_set(tmp_path / "data", images, labels, [str(digit) for digit in range(10)])
    model = make_model(tmp_path / "model", regression.weights, regression.bias)
    (model / "model.json").unlink()
    (model / "metrics.jsonl").unlink()
    text = Page(render(evaluate(EvaluateSettings(), model, data, None))).text
    assert "has no training history" in text
    assert "has no description" in text
    assert text.count("every test image is classified correctly") == 2


def test_of_many_classes_the_confused_ones_are_a_matrix_and_the_weakest_come_first(
    make_data_set: Callable[..., Path], make_model: Callable[..., Path], digits: Any, regression: Any, tmp_path: Path
) -> None:
    """120 classes, of which the model tells ten apart; the others have no test images."""
    names = [f"class {index:03d}" for index in range(120)]
    weights = np.concatenate([regression.weights, np.zeros((64, 110))], axis=1)
    bias = np.concatenate([regression.bias, np.full(110, -30.0)])
    data = make_data_set(tmp_path / "data", digits.test_images, digits.test_labels.tolist(), names)
    model = make_model(tmp_path / "model", weights, bias, names)
    evaluation = evaluate(EvaluateSettings(), model, data, None)
    html = render(evaluation)
    page = Page(html)
    top = evaluation.model.metrics["top_5_accuracy"]
    assert evaluation.model.metrics["accuracy"] < top <= 1
    assert "The 20 classes with the lowest F1, of 120." in page.text
    assert f"among the five most probable {top:.4f}" in " ".join(page.text.split())
    assert "The other 100 classes" in page.text
    weakest = int(evaluation.model.measures.averages.f1[:10].argmin())
    rows = re.findall(r'<th scope="row" class="break">(class \d+)</th>', html)
    assert len(rows) == 120
    assert rows[0] == names[weakest]
    wrong = evaluation.model.measures.confusion[:, :-1].copy()
    np.fill_diagonal(wrong, 0)
    confused = {names[index] for index in np.argwhere(wrong).ravel()}
    assert set(re.findall(r'class="name" title="(class \d+)"', html)) == confused
    assert f"The {len(confused)} of 120 classes that are confused most often." in page.text
    true, predicted = np.unravel_index(wrong.argmax(), wrong.shape)
    assert f'title="{names[true]}, predicted as {names[predicted]}: {wrong.max()}"' in html


@pytest.mark.parametrize(("minimum", "trainable", "state"), [(None, 0, "unchecked"), (0.5, 8, "promote")])
def test_a_verdict_that_compared_nothing_and_an_untrained_network_are_not_in_green(
    data_set: Path, model_folder: Path, tmp_path: Path, minimum: float | None, trainable: int, state: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    about = json.loads((model / "model.json").read_text()) | {"variables_bytes": 8, "trainable_bytes": trainable}
    (model / "model.json").write_text(json.dumps(about))
    html = render(evaluate(EvaluateSettings(gate=GateSettings(minimum=minimum, baseline=False)), model, data_set, None))
    assert f'<span class="verdict {state}">' in html
    assert f'<ul class="notes {state}">' in html
    assert ("No minimum is set" in html) == (minimum is None)
    assert ("The network has no trainable weights" in html) == (trainable == 0)


def test_large_images_are_embedded_smaller() -> None:
    generator = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(generator.integers(0, 255, (1200, 800, 3), dtype=np.uint8)).save(buffer, "PNG")
    address, pixelated = _data_uri(buffer.getvalue())
    assert len(address) < 60_000
    assert not pixelated
    small = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert small.size == (128, 192)


def test_a_history_is_thinned_and_its_broken_line_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"kind": "train", "step": step, "loss": step / 2}) for step in range(10_000)]
    lines.insert(5, json.dumps({"kind": "train", "step": 5, "loss": float("nan")}))
    path.write_text("\n".join([*lines, '{"kind": "train", "st']))
    steps, values = read_history(path).series("train", "loss")
    assert len(steps) == POINTS
    np.testing.assert_allclose(values, steps / 2)
    assert steps[0] == pytest.approx(12)  # the mean of the first 25 steps
    assert read_history(tmp_path / "none").records == []
