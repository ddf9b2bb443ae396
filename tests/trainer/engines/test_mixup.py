"""Mixup: the distribution of its factors, and the loss for two labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer.augmentation import AugmentSettings
from slipway.trainer.checks import check_inputs, check_settings
from slipway.trainer.config import TrainSettings
from slipway.trainer.data.assignment import check_even_split
from tests.trainer.conftest import manifest_of

NUMBER = {"kind": "number", "mean": [0.0], "deviation": [1.0]}


def training(**settings: Any) -> TrainSettings:
    return TrainSettings(epochs=1, seed=1, augment=AugmentSettings(mixup=0.4), **settings)


def test_null_and_zero_are_off() -> None:
    for value in (None, 0, 0.0):
        assert not AugmentSettings(mixup=value).is_on
    assert AugmentSettings(mixup=0.2).is_on


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.4, 1.0, 2.0, 32.0])
def test_a_factor_is_the_larger_part_of_a_beta_draw(tensorflow: None, alpha: float) -> None:
    from scipy import stats

    from slipway.trainer.engines.keras import augment

    draws = np.random.default_rng(3).random((2, 200_000), np.float32)
    draws[0, :2], draws[1, :2] = (0.0, 1.0 - 2.0**-24), 0.5  # the ends of the interval, where a cosine vanishes
    found = np.asarray(augment.factors(draws[0], draws[1], alpha))
    assert found.dtype == np.float32
    assert 0.5 <= found.min() < found.max() <= 1
    for value in np.linspace(0.51, 0.9999, 40):
        expected = 2 * stats.beta.cdf(value, alpha, alpha) - 1
        assert (found <= value).mean() == pytest.approx(expected, abs=0.005)  # over 4 standard deviations


def test_every_image_and_label_has_another_ones_part(tensorflow: None) -> None:
    from slipway.trainer.engines.tensorflow.step import augmented

    images = np.eye(16, dtype=np.float32).reshape(16, 2, 4, 2)  # the pixels of a blend are its weights
    labels = np.arange(16, dtype=np.int32)
    distances = set()
    for step in range(20):
        blended, found = augmented(images, labels, training(), step, 0)
        weights, factor, partner = (
            np.reshape(blended, (16, 16)),
            np.asarray(found["factor"]),
            np.asarray(found["partner"]),
        )
        np.testing.assert_array_equal(found["own"], labels)
        np.testing.assert_allclose(weights[labels, labels], factor)
        np.testing.assert_allclose(weights[labels, partner], 1 - factor)
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
        assert (partner != labels).all()
        assert sorted(partner) == labels.tolist()
        assert len(set(factor.tolist())) > 8  # a factor for each example
        distances.add(int(partner[0]))
    assert len(distances) > 8
    again = augmented(images, labels, training(), step, 0)[0]
    np.testing.assert_array_equal(again, blended)
    assert (np.asarray(augmented(images, labels, training(), step, 1)[0]) != np.asarray(blended)).any()
    unchanged = augmented(images, labels, TrainSettings(epochs=1), 0, 0)
    assert unchanged[0] is images and unchanged[1] is labels


def test_labels_blend_if_an_example_has_several(tensorflow: None) -> None:
    """The cross-entropy of labels 0 and 1 is linear in them."""
    from keras import ops

    from slipway.trainer.engines.keras import augment
    from slipway.trainer.engines.keras.objective import Objective, objective
    from slipway.trainer.engines.tensorflow.step import CLASSIFICATION

    of: Objective = objective(manifest_of((8, 8, 1), task="multilabel"), CLASSIFICATION, training())
    chance = np.random.default_rng(4)
    logits, factor = chance.normal(size=(5, 3)).astype(np.float32), chance.random(5, np.float32)
    own, partner = chance.integers(0, 2, (2, 5, 3)).astype(np.float32)
    labels = {"own": own, "partner": partner, "factor": factor}
    blended = factor[:, None] * own + (1 - factor[:, None]) * partner
    expected = (np.logaddexp(0, logits) - logits * blended).mean(axis=1)
    found = augment.losses(lambda one: of.losses(ops.convert_to_tensor(logits), one), labels)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("task", "inputs", "message", "fix"),
    [
        ("regression", {}, "the task regression has neither", "--set train.augment.mixup=0"),
        ("classification", {"age": NUMBER}, "inputs other than one image: age", "--set data.inputs='[image]'"),
    ],
)
def test_mixing_what_cannot_be_mixed_is_refused(task: Any, inputs: Any, message: str, fix: str) -> None:
    target = {"target": NUMBER} if task == "regression" else {}
    manifest = manifest_of((8, 8, 1), task=task, inputs=inputs, **target)
    with pytest.raises(UserError, match=message) as caught:
        check_inputs(training(), manifest)
    assert caught.value.setting == "train.augment.mixup"
    assert fix in (caught.value.fix or "")
    check_settings(training(), "multilabel")
    check_inputs(training(), manifest_of((8, 8, 1)))


def test_a_device_with_one_example_has_nothing_to_mix() -> None:
    check_even_split(training(batch_size=8), 2, 2)
    with pytest.raises(UserError, match="each device has one example per step") as caught:
        check_even_split(training(batch_size=4), 2, 2)
    assert (caught.value.setting, caught.value.nearest) == ("train.batch_size", "8")
    check_even_split(TrainSettings(epochs=1, batch_size=4), 2, 2)
