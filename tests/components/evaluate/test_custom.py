"""Evaluation by the user's function, or with the metrics that a program wrote: any format, metric and data."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.components.evaluate.evaluate import evaluate, is_custom
from slipway.components.evaluate.report import render
from slipway.components.evaluate.settings import EvaluateSettings
from slipway.core import integrity
from slipway.core.errors import UserError

RMSE = {"gate": {"metric": "rmse", "maximum": 0.5}}
SCORE = """
from matplotlib.figure import Figure

SEEN = []


def evaluate(model, data):
    SEEN.append((model.name, data))
    error = float((model / "weights.txt").read_text())
    figure = Figure()
    figure.subplots().plot([1, 2, 3])
    page = model / "page.html"
    page.write_text("<p class='x'>interactive & own</p>")
    table = [{"city": "<Bonn>", "error": 0.3}, {"city": "Köln"}]
    plots = {"Residuals": figure, "Map": page}
    return {"metrics": {"rmse": error, "bias": 0}, "plots": plots, "tables": {"Worst": table}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an evaluation, started from its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def model(folder: Path, error: float, **reported: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.txt").write_text(str(error))
    if reported:
        (folder / "metrics.json").write_text(json.dumps(reported))
    return folder


def settings(**values: Any) -> EvaluateSettings:
    return EvaluateSettings.model_validate({**RMSE, **values})


def test_champion_and_challenger_are_measured_by_the_same_function_on_the_same_data(project: Path) -> None:
    (project / "score_both.py").write_text(SCORE)
    challenger, champion = model(project / "model", 0.25), model(project / "models/7", 0.4)
    (champion / "metadata.json").write_text('{"version": 7}')
    lines = [{"kind": "validation", "step": step, "rmse": 1 / step, 'm"$x$': step} for step in (1, 2)]
    (challenger / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = evaluate(settings(module="score_both:evaluate"), challenger, "s3://bucket/rows", champion)
    import score_both  # type: ignore[import-not-found]

    assert score_both.SEEN == [("model", "s3://bucket/rows"), ("7", "s3://bucket/rows")]
    assert found.as_dict()["metrics"] == {"rmse": 0.25, "bias": 0.0}
    assert found.as_dict()["champion_metrics"] == {"rmse": 0.4, "bias": 0.0}
    assert found.verdict.decision == "promote"
    assert "better by 0.1500 than the champion's (version 7)" in found.verdict.reasons[1]
    assert found.verdict.reasons[2].endswith("was trained or selected: there is no record of them (seen.u64).")
    html = render(found)
    assert "The RMSE that score_both:evaluate returned, 0.2500, is within the maximum" in html
    assert 'aria-label="rmse by step' in html
    assert 'aria-label="m&quot;$x$ by step' in html
    (plot,) = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", html)
    assert b"</svg>" in base64.b64decode(plot)
    assert 'srcdoc="&lt;p class=&#39;x&#39;&gt;interactive &amp;amp; own'.replace("&amp;amp;", "&amp;") in html
    assert "&lt;Bonn&gt;" in html
    assert "<small>better</small>" in html


@pytest.mark.parametrize("which", ["challenger", "champion"])
@pytest.mark.parametrize("module", ["score_damaged:evaluate", None])
def test_a_damaged_model_is_not_evaluated(project: Path, which: str, module: str | None) -> None:
    (project / "score_damaged.py").write_text("def evaluate(model, data):\n    return {'rmse': 0.1}\n")
    folders = {name: model(project / name, 0.25, rmse=0.25) for name in ("challenger", "champion")}
    for folder in folders.values():
        integrity.seal(folder, {}, integrity.CHECKSUMS_FILE)
    assert evaluate(settings(module=module), folders["challenger"], None, folders["champion"])
    (folders[which] / "weights.txt").write_text("")
    with pytest.raises(UserError, match=rf"{which} is damaged: weights\.txt has 0 bytes instead of 4"):
        evaluate(settings(module=module), folders["challenger"], None, folders["champion"])


def test_without_a_function_the_metrics_that_the_program_wrote_count(project: Path) -> None:
    challenger = model(project / "model", 0, rmse=0.6, mae=0.1)
    champion = model(project / "champion", 0, rmse=0.4)
    found = evaluate(settings(), challenger, None, champion)
    assert (found.verdict.decision, found.as_dict()["metric"]) == ("reject", "rmse")
    assert found.verdict.reasons[0].startswith("The RMSE that the program reported, 0.6000, is above the maximum")
    assert "worse by 0.2000" in found.verdict.reasons[1]
    assert found.verdict.reasons[2].endswith(
        "was trained or selected: the metrics are those that its program reported."
    )
    assert evaluate(settings(champion="none"), challenger, None, champion).champion is None
    with pytest.raises(UserError, match="The champion, old, has no metric rmse"):
        evaluate(settings(), challenger, None, model(project / "old", 0))


def test_a_metric_may_have_the_prefix_of_hugging_faces_trainer(project: Path) -> None:
    folder = model(project / "1", 0.0, eval_accuracy=0.9, eval_loss=0.3, eval_bleu=20.0)
    found = evaluate(EvaluateSettings(), folder, None, None)
    assert (found.verdict.decision, found.as_dict()["metric"]) == ("promote", "eval_accuracy")
    assert "eval_accuracy 0.9" in render(found)
    loss = settings(gate={"metric": "eval_loss", "maximum": 0.2})
    assert evaluate(loss, folder, None, None).verdict.decision == "reject"


def test_one_message_has_the_metric_and_the_direction_that_it_needs(project: Path) -> None:
    with pytest.raises(UserError, match="There is no metric 'accuracy'") as caught:
        evaluate(EvaluateSettings(), model(project / "1", 0.0, eval_bleu=20.0), None, None)
    metric, direction = "--set evaluate.gate.metric=eval_bleu", "--set evaluate.gate.direction=maximize"
    assert caught.value.fix == f"{metric} {direction} (or minimize)"


def test_what_slipway_evaluates_itself(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", 0)
    assert is_custom(settings(), folder)  # no format that Slipway reads
    (folder / "saved_model.pb").touch()
    assert not is_custom(settings(), folder)
    assert is_custom(settings(module="score:evaluate"), folder)
    (folder / "metrics.json").touch()
    assert is_custom(settings(), folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "The program wrote no metrics.json"),
        ("{rmse: 1", "is not JSON"),
        ("[1]", "has no metric that is a finite number, but the int"),
        ("{}", "has no metric that is a finite number"),
        ('{"rmse": NaN}', "has no metric that is a finite number, but rmse"),
        ('{"rmse": "low"}', "has no metric that is a finite number, but rmse"),
        ('{"rmse": []}', "has no metric that is a finite number, but rmse"),
        ('{"rsme": 0.1}', "There is no metric 'rmse'"),
    ],
)
def test_malformed_metrics_of_a_program_are_told(tmp_path: Path, text: str | None, words: str) -> None:
    folder = model(tmp_path / "model", 0)
    if text is not None:
        (folder / "metrics.json").write_text(text)
    with pytest.raises(UserError) as error:
        evaluate(settings(), folder, None, None)
    assert words in error.value.message
    assert error.value.fix


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"rmse": 0.2, "epoch": 3}', None),
        ('{"rmse": [0.9, 0.2], "lr": [1, 2]}', "of rmse, lr, the last value is taken."),  # Keras' history
        ('[{"epoch": 1, "rmse": 0.9}, {"epoch": 2, "rmse": 0.2}]', "of the list, the last value is taken."),
        (
            '{"rmse": 0.2, "best": NaN, "stopped": null, "model": "x", "ok": true}',
            "no finite numbers are best, stopped, model, ok, which are ignored.",
        ),
        ('{"test": {"rmse": 0.9}, "rmse": 0.2}', None),
    ],
)
def test_the_numbers_that_a_program_wrote_count_and_the_rest_is_named(
    tmp_path: Path, text: str, note: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = model(tmp_path / "model", 0)
    (folder / "metrics.json").write_text(text)
    assert evaluate(settings(), folder, None, None).model.metrics["rmse"] == 0.2
    assert caplog.messages == ([f"metrics.json: {note}"] if note else [])


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "returned nothing"),
        ("0.3", "returned a float, not a mapping"),
        ("{}", "returned no metrics"),
        ("{'rmse': float('inf')}", "returned rmse = inf, which is not finite"),
        ("{'rmse': True}", "rmse = True, which is a bool, not a number"),
        ("{'rmse': [1, 2]}", "which is a list, not a number"),
        ("{'metrics': {'rmse': 1}, 'plot': {}}", "returned the key 'plot' beside metrics"),
        ("{'metrics': {'rmse': 1}, 'plots': {'a': 'missing.png'}}", "a file that does not exist"),
        ("{'metrics': {'rmse': 1}, 'plots': {'a': 'a.txt'}}", "must end with .png"),
        ("{'metrics': {'rmse': 1}, 'tables': {'a': [1]}}", "the table 'a', which is a list, not a list of rows"),
        ("{'rsme': 1}", "There is no metric 'rmse'"),
        ("1 / 0", "raised ZeroDivisionError"),
        ("exit(3)", "raised SystemExit: 3"),
    ],
)
def test_a_wrong_result_of_the_function_is_told(project: Path, returned: str, words: str) -> None:
    name = f"bad_{abs(hash(returned))}"
    (project / f"{name}.py").write_text(f"def evaluate(model, data):\n    return {returned}\n")
    with pytest.raises(UserError) as error:
        evaluate(settings(module=f"{name}:evaluate"), model(project / "model", 0), None, None)
    assert words in error.value.message
    assert error.value.fix
    if returned == "1 / 0":
        assert error.value.traceback is not None
        assert f"{name}.py" in error.value.traceback
        assert "components/evaluate" not in error.value.traceback


def test_numbers_of_other_libraries_are_metrics(project: Path) -> None:
    (project / "numbers_of_others.py").write_text(
        "import numpy as np\n\n\ndef evaluate(model, data):\n    return {'rmse': np.float32(0.5), 'n': np.array(3)}\n"
    )
    found = evaluate(settings(module="numbers_of_others:evaluate"), model(project / "model", 0), None, None)
    assert found.model.metrics == {"rmse": float(np.float32(0.5)), "n": 3.0}
    assert all(type(value) is float and math.isfinite(value) for value in found.model.metrics.values())


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        ("def evaluate(model): ...", "evaluate", "cannot be called with (model, data)"),
        ("def evaluate(model, data): ...", "evalute", "has no function 'evalute'"),
    ],
)
def test_a_function_that_cannot_be_called_is_told_before_it_is(
    project: Path, source: str, name: str, words: str
) -> None:
    module = f"wrong_{name}"
    (project / f"{module}.py").write_text(source)
    with pytest.raises(UserError) as error:
        evaluate(settings(module=f"{module}:{name}"), model(project / "model", 0), None, None)
    assert words in error.value.message
    assert error.value.setting == "evaluate.module"
