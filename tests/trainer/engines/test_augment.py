"""Augmentation: its effect on images, and reproducibility."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer.augmentation import AugmentSettings
from slipway.trainer.config import TrainSettings

pytestmark = pytest.mark.usefixtures("tensorflow")

ALL = AugmentSettings(flip=True, shift=2, brightness=0.2, contrast=0.5, crop=0.3, rotation=20, erase=0.5, mixup=0.2)


@pytest.fixture(scope="module")
def images() -> Any:
    """64 asymmetric float32 images of 6x8 pixels in two colors."""
    return np.random.default_rng(5).uniform(0.3, 0.7, (64, 6, 8, 2)).astype(np.float32)


def augmented(images: Any, settings: AugmentSettings, seed: int = 1, step: int = 7, replica: int = 0) -> Any:
    from slipway.trainer.engines.tensorflow import step as training_step

    train = TrainSettings(epochs=1, seed=seed, augment=settings)
    return np.asarray(training_step.augmented(images, np.arange(len(images)), train, step, replica)[0])


def test_nothing_is_on_by_default(images: Any) -> None:
    assert not AugmentSettings().is_on
    np.testing.assert_array_equal(augmented(images, AugmentSettings()), images)
    for name, value in {**ALL.model_dump(), "function": "mine:noise"}.items():
        assert AugmentSettings(**{name: value}).is_on


def test_the_same_seed_step_and_replica_give_the_same_images(images: Any) -> None:
    import tensorflow as tf

    from slipway.trainer.engines.tensorflow import step as training_step

    first = augmented(images, ALL)
    train = TrainSettings(epochs=1, seed=1, augment=ALL)
    np.testing.assert_array_equal(augmented(images, ALL), first)
    labels = np.arange(len(images))
    in_graph = tf.function(lambda step: training_step.augmented(images, labels, train, step, 0)[0])(tf.constant(7))
    np.testing.assert_allclose(in_graph, first, atol=1e-6)
    for other in ({"seed": 2}, {"step": 8}, {"replica": 1}):
        assert (augmented(images, ALL, **other) != first).any(axis=(1, 2, 3)).mean() > 0.9
    assert first.min() >= 0
    assert first.max() <= 1


def test_flipping_exchanges_left_and_right_of_about_half_of_them(images: Any) -> None:
    found = augmented(images, AugmentSettings(flip=True))
    same = (found == images).all(axis=(1, 2, 3))
    flipped = (found == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (same ^ flipped).all()
    assert 16 < flipped.sum() < 48


def test_shifting_moves_each_image_by_its_own_way_in_every_direction(images: Any) -> None:
    found = augmented(images, AugmentSettings(shift=2))
    padded = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)])
    moves = []
    for number in range(64):
        moves += [
            (down, right)
            for down in range(5)
            for right in range(5)
            if np.array_equal(found[number], padded[number, down : down + 6, right : right + 8])
        ]
    assert len(moves) == 64
    assert {down for down, _ in moves} == {right for _, right in moves} == {0, 1, 2, 3, 4}


def test_brightness_adds_to_an_image_and_contrast_scales_it(images: Any) -> None:
    added = (augmented(images, AugmentSettings(brightness=0.2)) - images).reshape(64, -1)
    np.testing.assert_allclose(added, added[:, :1].repeat(added.shape[1], axis=1), atol=1e-6)
    assert -0.2 <= added.min() < -0.1
    assert 0.1 < added.max() <= 0.2
    found = augmented(images, AugmentSettings(contrast=0.5)).reshape(64, -1)
    before = images.reshape(64, -1)
    np.testing.assert_allclose(found.mean(axis=1), before.mean(axis=1), atol=1e-5)
    factors = found.std(axis=1) / before.std(axis=1)
    assert 0.5 <= factors.min() < 0.7
    assert 1.3 < factors.max() <= 1.5


def test_a_crop_is_a_part_of_the_image_at_the_full_size() -> None:
    """In an image of a plane, a crop is a plane with smaller slopes."""
    rows, columns = np.mgrid[0:6, 0:8].astype(np.float32)
    plane = np.stack([rows / 10, columns / 10], axis=-1)[None].repeat(64, axis=0)
    found = augmented(plane, AugmentSettings(crop=0.4))
    down, right = found[:, 1:, :, 0] - found[:, :-1, :, 0], found[:, :, 1:, 1] - found[:, :, :-1, 1]
    kept = 10 * down.mean(axis=(1, 2))
    np.testing.assert_allclose(10 * down, kept[:, None, None] + 0 * down, atol=1e-5)
    np.testing.assert_allclose(10 * right, kept[:, None, None] + 0 * right, atol=1e-5)
    assert 0.6 <= kept.min() < 0.7
    assert 0.9 < kept.max() <= 1
    first, last = found[:, 0, 0], found[:, -1, -1]  # the corners stay inside of the image, at different places
    assert first.min() >= -1e-6
    assert (last.max(axis=0) <= plane[0, -1, -1] + 1e-6).all()
    assert (first.std(axis=0) > 0.02).all()


def test_an_image_is_rotated_around_its_center() -> None:
    from slipway.trainer.engines.keras import augment

    square = np.random.default_rng(5).uniform(size=(4, 7, 7, 2)).astype(np.float32)
    angles = np.radians([0, 90, -90, 180]).astype(np.float32)
    found = np.asarray(augment.apply(square, AugmentSettings(rotation=180), lambda *_: angles, lambda *_: None))
    for number, quarters in enumerate((0, -1, 1, 2)):
        np.testing.assert_allclose(found[number], np.rot90(square[number], quarters), atol=1e-5)
    turned = augmented(square.repeat(16, axis=0) + 1, AugmentSettings(rotation=45))
    assert (turned[:, 3, 3] > 1).all()  # the center stays
    assert (turned[:, 0, 0] < 0.5).any()  # an uncovered corner is black


def test_erasing_blackens_a_rectangle_of_each_image(images: Any) -> None:
    found = augmented(images, AugmentSettings(erase=0.5))
    erased = (found == 0).all(axis=-1)
    np.testing.assert_array_equal(found[~erased], images[~erased])
    sizes = []
    for each in erased:
        rows, columns = each.any(axis=1), each.any(axis=0)
        assert (each == rows[:, None] & columns).all()
        sizes.append((rows.sum(), columns.sum()))
    assert np.max(sizes, axis=0).tolist() == [3, 4]  # half of 6 and 8
    assert len(set(sizes)) > 4


def test_moving_an_image_out_of_sight_is_refused() -> None:
    from slipway.trainer.engines.keras.augment import verify

    verify(AugmentSettings(shift=3), (6, 8, 1))
    with pytest.raises(UserError, match="6 x 8") as caught:
        verify(AugmentSettings(shift=4), (6, 8, 1))
    assert (caught.value.setting, caught.value.nearest) == ("train.augment.shift", "3")
