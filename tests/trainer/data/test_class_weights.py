"""Class weights from the settings and a data set's class counts."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Split
from slipway.trainer.config import TrainSettings
from slipway.trainer.data.class_weights import class_weights


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
