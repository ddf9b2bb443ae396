"""Learning rates (schedules compared with their formulas), class weights and the compute precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Split
from slipway.trainer.config import Plan, TrainSettings
from slipway.trainer.hyperparameters import choose_precision, class_weights, rates

PLAN = Plan(replicas=1, batch_per_replica=10, steps_per_epoch=20, steps=100)


def all_rates(plan: Plan = PLAN, **schedule: Any) -> list[float]:
    train = TrainSettings(steps=plan.steps, batch_size=10, learning_rate=0.4, schedule=schedule)
    return rates(train, plan, 0, plan.steps).tolist()


def test_without_a_schedule_it_is_constant() -> None:
    assert all_rates() == pytest.approx([0.4] * 100)


@pytest.mark.parametrize("warmup", [{"steps": 20}, {"epochs": 1}, {"examples": 200}])
def test_it_rises_linearly_during_the_warm_up_whatever_its_unit(warmup: dict[str, int]) -> None:
    found = all_rates(warmup=warmup)
    assert found[:20] == pytest.approx([0.4 * (step + 1) / 21 for step in range(20)])
    assert found[20:] == pytest.approx([0.4] * 80)


def test_each_shape_is_its_formula_after_the_warm_up() -> None:
    over = [(step - 20) / 80 for step in range(20, 100)]
    common = {"warmup": {"steps": 20}, "final": 0.1}
    assert all_rates(shape="linear", **common)[20:] == pytest.approx([0.4 - 0.3 * x for x in over])
    cosine = [0.1 + 0.3 * (1 + math.cos(math.pi * x)) / 2 for x in over]
    assert all_rates(shape="cosine", **common)[20:] == pytest.approx(cosine)
    assert all_rates(shape="exponential", **common)[20:] == pytest.approx([0.4 * 0.25**x for x in over])


def test_it_falls_to_nothing_unless_told_where_to() -> None:
    assert all_rates(shape="linear")[-1] == pytest.approx(0.004)
    assert all_rates(shape="cosine")[-1] == pytest.approx(0.4 * (1 + math.cos(math.pi * 0.99)) / 2)


def test_a_piecewise_one_drops_at_each_milestone_and_not_below_the_final_value() -> None:
    found = all_rates(shape="piecewise", milestones=[{"steps": 70}, {"epochs": 1.5}], factor=0.5, final=0.15)
    assert found == pytest.approx([0.4] * 30 + [0.2] * 40 + [0.15] * 30)
    assert all_rates(shape="piecewise", milestones=[{"examples": 995}])[99:] == pytest.approx([0.4])
    assert all_rates(shape="piecewise", milestones=[{"examples": 985}])[99:] == pytest.approx([0.04])


@given(
    shape=st.sampled_from(["constant", "linear", "cosine", "exponential", "piecewise"]),
    warmup=st.integers(1, 150),
    cut=st.integers(0, 100),
)
def test_a_step_has_the_same_rate_in_any_call_and_none_is_above_the_peak(shape: str, warmup: int, cut: int) -> None:
    schedule: dict[str, Any] = {"shape": shape, "warmup": {"steps": warmup}}
    if shape == "piecewise":
        schedule["milestones"] = [{"steps": 50}]
    if shape == "exponential":
        schedule["final"] = 0.001
    train = TrainSettings(steps=100, batch_size=10, learning_rate=0.4, schedule=schedule)
    whole = rates(train, PLAN, 0, 100)
    assert whole.dtype == np.float32
    parts = np.concatenate([rates(train, PLAN, 0, cut), rates(train, PLAN, cut, 100 - cut)])
    assert parts.tolist() == whole.tolist()
    assert 0 < whole.min() <= whole.max() <= np.float32(0.4)


@pytest.mark.parametrize(
    ("train", "setting"),
    [
        ({"schedule": {"final": 0.1}}, "train.schedule.final"),
        ({"schedule": {"shape": "exponential"}}, "train.schedule.final"),
        ({"schedule": {"shape": "cosine", "final": 0.4}}, "train.schedule.final"),
        ({"schedule": {"shape": "piecewise"}}, "train.schedule.milestones"),
        ({"schedule": {"shape": "linear", "milestones": [{"steps": 3}]}}, "train.schedule.milestones"),
        ({"schedule": {"shape": "linear", "factor": 0.1}}, "train.schedule.factor"),
        ({"momentum": 0.9}, "train.momentum"),
        ({"optimizer": "adamw", "nesterov": True}, "train.nesterov"),
        ({"optimizer": "sgd", "nesterov": True}, "train.momentum"),
        ({"weight_decay": 0.1}, "train.weight_decay"),
        ({"arguments": ["--fast"]}, "train.arguments"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(train: dict[str, Any], setting: str) -> None:
    with pytest.raises(UserError) as caught:
        TrainSettings(**{"steps": 10, "learning_rate": 0.4} | train)
    assert caught.value.setting == setting
    assert caught.value.allowed
    assert caught.value.fix


def test_a_warm_up_of_two_units_is_refused() -> None:
    with pytest.raises(ValidationError, match="exactly one of epochs, steps and examples"):
        all_rates(warmup={"steps": 3, "epochs": 1})


def test_a_module_of_ones_own_takes_no_other_settings() -> None:
    own = TrainSettings(module="my.training", arguments=["--epochs", "3"])
    assert TrainSettings.model_validate_json(own.model_dump_json(exclude_none=True)) == own
    with pytest.raises(UserError) as caught:
        TrainSettings(module="my.training", epochs=3)
    assert caught.value.setting == "train.epochs"


def weights(setting: Any, **counts: int) -> list[float] | None:
    split = Split(examples=sum(counts.values()), classes=counts, shards=[])
    manifest = Manifest(
        name="d", fingerprint="f", source="s", settings={}, classes=list(counts), image_size=(8, 8), channels=1,
        resize=False, encodings=["png"], splits={"train": split},
    )  # fmt: skip
    found = class_weights(TrainSettings(steps=1, class_weights=setting), manifest)
    return None if found is None else found.tolist()


def test_balanced_gives_every_class_the_same_sum_and_an_example_1_on_average() -> None:
    found = weights("balanced", rose=10, tulip=30, daisy=60)
    assert found == pytest.approx([100 / 30, 100 / 90, 100 / 180])
    sums = [weight * count for weight, count in zip(found, [10, 30, 60], strict=True)]
    assert sums == pytest.approx([100 / 3] * 3)


def test_a_class_without_examples_does_not_matter() -> None:
    assert weights("balanced", rose=10, tulip=0, daisy=30) == pytest.approx([2.0, 1.0, 40 / 60])


def test_named_classes_are_weighted_and_the_others_count_once() -> None:
    assert weights({"daisy": 2.5}, rose=1, tulip=1, daisy=1) == [1.0, 1.0, 2.5]
    assert weights(None, rose=1, tulip=1) is None


def test_a_class_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        weights({"rosa": 2.0}, rose=1, tulip=1)
    assert caught.value.nearest == "rose"
    assert caught.value.setting == "train.class_weights.rosa"


@pytest.mark.parametrize(
    ("device", "capability", "precision"),
    [
        ("CPU", None, "float32"),
        ("TPU", None, "mixed_bfloat16"),
        ("GPU", (9, 0), "mixed_bfloat16"),  # H100
        ("GPU", (8, 0), "mixed_bfloat16"),  # A100
        ("GPU", (7, 5), "mixed_float16"),  # T4
        ("GPU", (7, 0), "mixed_float16"),  # V100
        ("GPU", (6, 1), "float32"),  # P4
        ("GPU", None, "float32"),
    ],
)
def test_auto_is_what_the_device_is_fast_in(device: str, capability: tuple[int, int] | None, precision: str) -> None:
    assert choose_precision(TrainSettings(steps=1), device, capability) == precision


def test_what_is_asked_for_is_taken() -> None:
    assert choose_precision(TrainSettings(steps=1, precision="float32"), "GPU", (9, 0)) == "float32"
    assert choose_precision(TrainSettings(steps=1, precision="mixed_float16"), "CPU") == "mixed_float16"
