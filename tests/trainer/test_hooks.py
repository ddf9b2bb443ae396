"""Hooks in the configuration: their names, and what the doctor says about the functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.doctor import model_builder
from slipway.trainer.config import TrainSettings
from tests.pipelines.doctor.test_program import subject

MODEL = {"builder": "slipway.trainer.models.digits:build"}


@pytest.mark.parametrize(
    ("train", "problem", "nearest"),
    [
        ({"loss": "mine:loss", "metrics": {"far": "mine:far"}}, None, None),
        ({"loss": "mine:los"}, "The module mine has no los", "mine:loss"),
        ({"metrics": {"far": "mni:far"}}, "There is no Python module mni", None),
        ({"loss": "mine:far"}, r"The function mine:far cannot be called with \(outputs, labels\)", None),
    ],
)
def test_the_doctor_finds_each_function(
    tmp_path: Path, train: dict[str, Any], problem: str | None, nearest: str | None
) -> None:
    far = "values" if problem and "mine:far" in problem else "outputs, labels"
    (tmp_path / "mine.py").write_text(f"def loss(outputs, labels): ...\ndef far({far}): ...\n")
    own = subject(tmp_path, model=MODEL, data={"source": "digits"}, train={"epochs": 1, **train})
    if problem is None:
        found = model_builder.model_builder(own)
        assert f"train.loss in {tmp_path / 'mine.py'}, train.metrics.far in" in found
        return
    with pytest.raises(UserError, match=problem) as error:
        model_builder.model_builder(own)
    assert str(error.value.setting).startswith(f"train.{next(iter(train))}")
    assert error.value.nearest == nearest


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ({"epochs": 1, "metrics": {"loss": "mine:loss"}}, "The name loss is taken"),
        ({"module": "my_program", "loss": "mine:loss"}, "train.loss applies only to Slipway's training loop"),
        ({"epochs": 1, "optimizer": "mine:adam", "weight_decay": 0.1}, "mine:adam sets the weight decay"),
        ({"module": "my_program", "on_epoch_end": "mine:end"}, "train.on_epoch_end applies only to Slipway's"),
        ({"module": "my_program", "metrics": {"far": "mine:far"}}, "train.metrics applies only to Slipway's"),
    ],
)
def test_what_does_not_belong_together_is_refused(train: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        TrainSettings.model_validate(train)
