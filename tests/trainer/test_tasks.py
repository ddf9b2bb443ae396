"""Workers that learn a number from named inputs: on two replicas, resumed, with the task's own metric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.trainer.checks import check_inputs, check_settings
from slipway.trainer.config import TrainSettings
from tests.trainer import feature_sets
from tests.trainer.conftest import Workers, job, manifest_of

BUILDER = "named_networks:mixed"


@pytest.fixture(scope="module")
def data(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets") / "regression"
    feature_sets.every_kind(folder, "regression")
    return folder


@pytest.mark.long
def test_two_replicas_resume_and_export_the_best_mean_absolute_error(
    data: Path, tmp_path: Path, workers: Workers
) -> None:
    common: dict[str, Any] = {
        "steps_per_epoch": 15, "replicas": 2, "builder": BUILDER, "monitor": "mae", "export": "best",
    }  # fmt: skip
    whole = [each.wait() for each in workers.start_two(job(data, steps=45, **common), tmp_path / "whole")]
    assert [each.status for each in whole] == [0, 0], whole[0].errors
    half = [each.wait() for each in workers.start_two(job(data, steps=30, **common), tmp_path / "parts")]
    assert [each.status for each in half] == [0, 0], half[0].errors
    rest = [each.wait() for each in workers.start_two(job(data, steps=45, **common), tmp_path / "parts")]
    assert "resuming from the checkpoint at step 30 of 45" in rest[0].output
    assert {each.checksum for each in whole} == {each.checksum for each in rest}
    lines = [json.loads(line) for line in (tmp_path / "whole" / "logs" / "metrics.jsonl").read_text().splitlines()]
    errors = {line["step"]: line["mae"] for line in lines if line["kind"] == "validation"}
    record = json.loads((tmp_path / "whole" / "model" / "model.json").read_text())
    assert record["weights_step"] == min(errors, key=lambda step: errors[step])
    assert (record["task"], record["inputs"]["age"]["kind"], record["classes"]) == ("regression", "number", [])
    assert record["target"]["mean"][0] > 500
    assert "validation loss" in whole[0].output
    assert "MAE" in whole[0].output


@pytest.mark.parametrize(
    ("settings", "task", "message"),
    [
        ({"monitor": "accuracy"}, "regression", "has no metric accuracy"),
        ({"monitor": "mae"}, "classification", "has no metric mae"),
        ({"class_weights": "balanced"}, "multilabel", "Class weights apply to classes"),
    ],
)
def test_settings_of_another_task_are_refused(settings: Any, task: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check_settings(TrainSettings(epochs=1, **settings), task)
    assert (caught.value.fix or "").startswith("--set train.")


def test_augmentation_needs_an_image_and_names_in_the_signature_differ() -> None:
    number = {"kind": "number", "mean": [0.0], "deviation": [1.0]}
    table = manifest_of((0, 0, 1), inputs={"age": number})
    with pytest.raises(UserError, match="have no image"):
        check_inputs(TrainSettings(epochs=1, augment={"flip": True}), table)
    check_inputs(TrainSettings(epochs=1), table)
    alike = manifest_of((0, 0, 1), inputs={"a b": number, "a/b": number})
    check_inputs(TrainSettings(epochs=1), alike)
    assert len(set(alike.signature.values())) == 2
