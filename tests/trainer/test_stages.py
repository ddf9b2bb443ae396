"""Stages of the training on the tensorflow engine, and their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.trainer.config import JobConfig, TrainSettings
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.export.export import _record
from slipway.trainer.hyperparameters import rates
from slipway.trainer.plan import whole_length
from slipway.trainer.stages import shortened
from tests.trainer.staged_runs import STAGES, check

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")
BUILDER = "sample_networks:fine_tuned"


@pytest.fixture(scope="module")
def engine(tensorflow: None) -> Any:
    from slipway.trainer.engines import base

    engine = base.load("tensorflow")
    engine.open(clusters.read({}))
    return engine


def test_each_stage_trains_its_layers_and_resumes_exactly(
    tiny: Path, make_job: Any, engine: Any, tmp_path: Path
) -> None:
    check(engine, make_job(tiny, builder=BUILDER, **STAGES), tmp_path)


def test_the_schedule_applies_to_each_stage(tiny: Path, make_job: Any) -> None:
    config = make_job(tiny, builder=BUILDER, **STAGES)
    first, second = (rates(config.train, config.plan, *where) for where in ((0, 5), (5, 6)))
    half = (1 + np.cos(np.pi * np.arange(5) / 5)) / 2
    np.testing.assert_allclose(first, 0.01 * half, rtol=1e-6)
    np.testing.assert_allclose(second[:2], [0.002, 0.002 * (1 + np.cos(np.pi / 6)) / 2], rtol=1e-6)
    np.testing.assert_array_equal(rates(config.train, config.plan, 7, 2), second[2:4])


def test_the_length_is_the_sum_of_all_stages() -> None:
    train = TrainSettings.model_validate(
        {"stages": [{"epochs": 1.5, "trainable": ["head"]}, {"steps": 7}, {"examples": 33}]}
    )
    assert whole_length(train, batch_size=8, steps_per_epoch=10) == 15 + 7 + 5
    few = shortened(train.stages, 20)
    assert few == [{"steps": 6, "trainable": ["head"]}, {"steps": 6}, {"steps": 6}]


@pytest.mark.parametrize(
    ("patterns", "arguments", "message", "near"),
    [
        (["head", "backbon"], {}, "No layer of the network matches 'backbon'.", "backbone"),
        (["backbone/conf"], {}, "No layer of the network matches 'backbone/conf'.", "backbone/conv"),
        (["conv"], {"frozen": True}, "The builder froze all layers that match 'conv'.", None),
    ],
)
def test_a_pattern_that_matches_no_layer_is_refused(
    tiny: Path, make_job: Any, engine: Any, patterns: list[str], arguments: Any, message: str, near: str | None
) -> None:
    stages = [{"steps": 5}, {"steps": 6, "trainable": patterns}]
    config = make_job(tiny, builder=BUILDER, arguments=arguments, **{**STAGES, "stages": stages})
    with pytest.raises(UserError) as caught:
        engine.build(config, manifests.read(tiny))
    error = caught.value
    assert (error.message, error.setting, error.nearest) == (message, "train.stages.1.trainable", near)


def test_a_layer_that_the_builder_froze_stays_frozen(tiny: Path, make_job: Any, engine: Any) -> None:
    config: JobConfig = make_job(tiny, builder=BUILDER, arguments={"frozen": True}, **STAGES)
    engine.build(config, manifests.read(tiny))
    engine.begin(5)
    assert all("head" in variable.path for variable in engine._model.trainable_variables)
    assert not any(layer.trainable for layer in engine._model.get_layer("backbone").layers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 3, "stages": [{"epochs": 1}]}, "got epochs and stages"),
        ({"stages": [{"trainable": ["head"]}]}, "set exactly one of epochs, steps and examples"),
        ({"stages": [{"epochs": 1, "trainable": []}]}, "at least 1 item"),
    ],
)
def test_contradictory_lengths_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainSettings.model_validate(settings)


def test_the_final_rate_is_below_that_of_every_stage() -> None:
    stages = [{"epochs": 1}, {"epochs": 1, "learning_rate": 1e-5}]
    with pytest.raises(UserError) as caught:
        TrainSettings.model_validate({"stages": stages, "schedule": {"shape": "linear", "final": 1e-4}})
    assert caught.value.setting == "train.schedule.final"
    assert "train.stages = 1e-05" in (caught.value.allowed or "")


def test_the_models_record_has_the_stages(tiny: Path, make_job: Any) -> None:
    data = manifests.read(tiny)
    staged, plain = (
        make_job(tiny, builder=BUILDER, **STAGES),
        make_job(tiny, builder=BUILDER, steps=6, steps_per_epoch=3),
    )
    record: Any = _record(staged, data, "checksum", 6, 6)
    assert [stage["trainable"] for stage in record["stages"] if "trainable" in stage] == [
        list(stage.trainable) for stage in staged.train.stages if stage.trainable
    ]
    assert len(record["stages"]) == len(staged.train.stages) > 1
    assert "stages" not in _record(plain, data, "checksum", 6, 6)
