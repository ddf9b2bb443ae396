"""The check of the training engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.doctor import configuration
from slipway.pipelines.platforms.base import Context, NotApplicableError
from slipway.pipelines.platforms.table import platform_of
from tests.trainer.conftest import manifest_of


def subject(name: str, hardware: str, target: Literal["local", "vertex"] = "vertex", **train: object) -> Context:
    config = RunConfig.model_validate(
        {
            "name": "digits",
            "data": {"source": "digits"},
            "model": {"builder": "slipway.trainer.models.digits:build"},
            "train": {"engine": name, **({} if "stages" in train else {"epochs": 1}), **train},
            "hardware": hardware,
        }
    )
    return Context(config, platform_of(target), rehearsal=True, folder=Path.cwd())


@pytest.mark.parametrize(
    ("name", "hardware"),
    [("tensorflow", "t4x2"), ("jax", "tpu-v5e-4x4"), ("jax", "l4x8*4"), ("pytorch", "l4x4*2"), ("pytorch", "cpu*2")],
)
@pytest.mark.extension("vertex")
def test_an_engine_on_its_hardware_passes(name: str, hardware: str) -> None:
    assert name in configuration.training_engine(subject(name, hardware))


@pytest.mark.extension("vertex")
def test_hardware_that_the_engine_does_not_run_on_is_refused() -> None:
    with pytest.raises(UserError, match=r"tensorflow does not run on .*v6e") as caught:
        configuration.training_engine(subject("tensorflow", "tpu-v6e-2x4"))
    assert "train.engine=jax" in (caught.value.fix or "")


@pytest.mark.extension("vertex")
def test_a_slice_of_several_machines_is_refused_where_each_would_take_itself_for_the_chief() -> None:
    with pytest.raises(UserError, match="trains on TPU slices of one machine") as caught:
        configuration.training_engine(subject("tensorflow", "tpu-v5e-4x4"))
    assert caught.value.allowed == "jax"


@pytest.mark.extension("vertex")
def test_pytorch_is_refused_on_tpus() -> None:
    with pytest.raises(UserError, match="pytorch does not train on TPUs") as caught:
        configuration.training_engine(subject("pytorch", "tpu-v5e-1x1"))
    assert caught.value.allowed == "jax or tensorflow"


@pytest.mark.extension("vertex")
def test_a_setting_that_the_engine_does_not_support_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        configuration.training_engine(subject("jax", "cpu", xla=False))
    assert caught.value.setting == "train.xla"


@pytest.mark.extension("vertex")
def test_only_a_local_run_needs_it_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise UserError(f"{name} is not installed")

    monkeypatch.setattr(configuration.installed, "verify", refuse)
    configuration.training_engine(subject("jax", "cpu"))
    with pytest.raises(UserError, match="jax is not installed"):
        configuration.training_engine(subject("jax", "cpu", "local"))


@pytest.mark.extension("vertex")
def test_the_patterns_of_stages_match_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = {"epochs": 1, "trainable": ["dense"]}, {"epochs": 1, "trainable": ["dens"]}
    with pytest.raises(NotApplicableError):
        configuration.stages(subject("tensorflow", "cpu"))
    monkeypatch.setattr(configuration, "prepared_data", lambda _config: manifest_of((8, 8, 1), 10))
    assert configuration.stages(subject("tensorflow", "cpu", stages=[first])) == "every pattern matches a layer"
    with pytest.raises(UserError, match="No layer of the network matches 'dens'") as caught:
        configuration.stages(subject("tensorflow", "cpu", stages=[first, second]))
    assert (caught.value.setting, caught.value.nearest) == ("train.stages.1.trainable", "dense")
