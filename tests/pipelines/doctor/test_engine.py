"""The check of the training engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.doctor import engine
from slipway.pipelines.doctor.check import Subject


def subject(name: str, hardware: str, target: Literal["local", "vertex"] = "vertex", **train: object) -> Subject:
    config = RunConfig.model_validate(
        {
            "name": "digits",
            "data": {"source": "digits"},
            "model": {"builder": "slipway.trainer.models.digits:build"},
            "train": {"epochs": 1, "engine": name, **train},
            "hardware": hardware,
        }
    )
    return Subject(config, target, rehearsal=True, folder=Path.cwd())


@pytest.mark.parametrize(
    ("name", "hardware"),
    [("tensorflow", "t4x2"), ("jax", "tpu-v5e-2x4"), ("jax", "l4x8*4"), ("pytorch", "l4x4*2"), ("pytorch", "cpu*2")],
)
def test_an_engine_on_its_hardware_passes(name: str, hardware: str) -> None:
    assert name in engine.TrainingEngine().look(subject(name, hardware))


def test_hardware_that_the_engine_does_not_run_on_is_refused() -> None:
    with pytest.raises(UserError, match=r"tensorflow does not run on .*v6e") as caught:
        engine.TrainingEngine().look(subject("tensorflow", "tpu-v6e-2x4"))
    assert "train.engine=jax" in (caught.value.fix or "")


def test_several_tpu_chips_per_replica_are_refused_for_pytorch() -> None:
    with pytest.raises(UserError, match="one TPU chip per replica; tpu-v6e-2x2 has 4"):
        engine.TrainingEngine().look(subject("pytorch", "tpu-v6e-2x2"))


def test_a_setting_that_the_engine_does_not_support_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        engine.TrainingEngine().look(subject("jax", "cpu", xla=False))
    assert caught.value.setting == "train.xla"


def test_only_a_local_run_needs_it_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise UserError(f"{name} is not installed")

    monkeypatch.setattr(engine.installed, "verify", refuse)
    engine.TrainingEngine().look(subject("jax", "cpu"))
    with pytest.raises(UserError, match="jax is not installed"):
        engine.TrainingEngine().look(subject("jax", "cpu", "local"))
