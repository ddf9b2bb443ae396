"""The contract test: a model that answers otherwise when it is served is not promoted."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway.components.evaluate.evaluate import Evaluation, evaluate
from slipway.components.evaluate.report import render
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.serving import instances
from slipway.serving.kinds import BadRequest
from slipway.trainer.export.examples import EXAMPLES, FILE_NAME

SETTINGS = EvaluateSettings(gate=GateSettings(minimum=0.9))


def judged(folder: Path, data_set: Path) -> Evaluation:
    return evaluate(SETTINGS, folder, data_set, None)


@pytest.fixture
def keys(data_set: Path) -> list[str]:
    import tensorflow as tf

    shard = data_set / manifest.read(data_set).splits["test"].shards[0].file
    records = tf.data.TFRecordDataset(str(shard)).take(EXAMPLES)
    found = [tf.train.Example.FromString(record.numpy()) for record in records]
    return [each.features.feature["key"].bytes_list.value[0].decode() for each in found]


@pytest.mark.parametrize(("shift", "decision"), [(0.0, "promote"), (5e-5, "promote"), (1e-3, "reject")])
def test_the_served_model_is_compared_with_the_trained_network(
    data_set: Path, model_folder: Path, digits: Any, regression: Any, keys: list[str], tmp_path: Path,
    shift: float, decision: str,
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    values = regression.probabilities(digits.test_pixels[:EXAMPLES] / 255)
    values[2, 3] += shift
    (folder / FILE_NAME).write_text(json.dumps({"split": "test", "keys": keys, "values": values.tolist()}))
    evaluation = judged(folder, data_set)
    assert evaluation.verdict.decision == decision
    if decision == "reject":
        reason = evaluation.verdict.reasons[0]
        assert f"with {keys[2]} differs by 0.001 from the trained network's prediction, more than 0.0001" in reason
        assert "The model cannot be served" in render(evaluation)


def test_a_model_whose_requests_fail_is_rejected(
    data_set: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged(model_folder, data_set).verdict.decision == "promote"

    def failing(*_: object) -> None:
        raise BadRequest("The value is missing", 0, "image_bytes")

    monkeypatch.setattr(instances, "arrays", failing)
    verdict = judged(model_folder, data_set).verdict
    assert verdict.decision == "reject"
    assert verdict.reasons[0].startswith("The model cannot be served: a request with ")


def test_without_the_networks_predictions_the_evaluations_are_compared(
    data_set: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions = instances.predictions

    def shuffled(*arguments: Any) -> Any:
        return predictions(*arguments)[::-1]

    monkeypatch.setattr(instances, "predictions", shuffled)
    verdict = judged(model_folder, data_set).verdict
    assert verdict.decision == "reject"
    assert "from the evaluation's prediction" in verdict.reasons[0]


FUNCTION = """
import json

def load(folder):
    factor = json.loads((folder / "factor.json").read_text())
    return lambda instances: [{"price": factor * each["area"]} for each in instances]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A custom program's model that `own_serving:load` loads."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_serving", raising=False)
    (tmp_path / "own_serving.py").write_text(FUNCTION)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "factor.json").write_text("2.5")
    (folder / "metrics.json").write_text('{"rmse": 0.1}')
    return folder


@pytest.mark.parametrize(
    ("examples", "fault"),
    [
        ({}, None),
        ({"instances": [{"area": 2}, {"area": 4}]}, None),
        ({"instances": [{"area": 2}], "predictions": [{"price": 5.00001}]}, None),
        ({"instances": [{"area": 2}], "predictions": [{"price": 5.1}]}, 'returns {"price": 5.0}, not {"price": 5.1}'),
        ({"instances": [{"area": 2}], "predictions": [{"price": [5.0]}]}, "does not return the prediction 0"),
        ({"instances": [{"area": 2}], "predictions": [{"price": 5.0}, 3]}, "does not return the prediction 1"),
        ({"instances": [{"size": 2}]}, "own_serving:load fails with the instances in examples.json: KeyError: 'area'"),
    ],
)
def test_a_custom_model_is_loaded_by_its_function_and_predicts_its_programs_examples(
    own: Path, examples: dict[str, Any], fault: str | None
) -> None:
    (own / FILE_NAME).write_text(json.dumps(examples))
    settings = EvaluateSettings(gate=GateSettings(metric="rmse", maximum=1.0))
    verdict = evaluate(settings, own, None, None, "own_serving:load").verdict
    assert verdict.decision == ("promote" if fault is None else "reject")
    if fault is not None:
        assert verdict.reasons[0].startswith("The model cannot be served: ")
        assert fault in verdict.reasons[0]


def test_a_function_that_fails_ends_the_step_with_what_to_fix(own: Path) -> None:
    (own / "factor.json").unlink()
    settings = EvaluateSettings(gate=GateSettings(metric="rmse", maximum=1.0))
    with pytest.raises(UserError, match="own_serving:load raised FileNotFoundError") as error:
        evaluate(settings, own, None, None, "own_serving:load")
    assert error.value.setting == "serve.module"


def test_a_function_replaces_slipways_own_serving_code(
    own: Path, data_set: Path, model_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(model_folder, folder)
    (folder / "factor.json").write_text("2.5")
    (folder / FILE_NAME).write_text(json.dumps({"instances": [{"area": 2}], "predictions": [{"price": 6}]}))
    verdict = evaluate(SETTINGS, folder, data_set, None, "own_serving:load").verdict
    assert verdict.decision == "reject"
    assert verdict.reasons[0].startswith("The model cannot be served: own_serving:load does not return")
