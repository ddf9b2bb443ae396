"""Backbones of keras.applications: given what Keras' own preprocessing makes of the pixels, and weights of a file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer import weights


@pytest.fixture
def pretrained(tensorflow: None) -> Any:
    """The module, which imports Keras: not while tests are collected."""
    from slipway.trainer.models import pretrained

    return pretrained


def small(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a backbone of keras.applications by a small network with its preprocessing."""
    import keras

    def build(*, include_top: bool, weights: None, input_shape: tuple[int, int, int]) -> keras.Model:
        del include_top, weights
        layers = [keras.layers.Conv2D(4, 8, strides=8), keras.layers.BatchNormalization()]
        return keras.Sequential([keras.Input(input_shape), *layers])

    build.__module__ = function.__module__
    monkeypatch.setattr(keras.applications, function.__name__, build)


@pytest.mark.parametrize(
    ("name", "channels", "is_small"),
    [("MobileNetV2", 3, False), ("VGG16", 1, True), ("DenseNet121", 3, True), ("MobileNetV3Small", 3, False)],
    ids=["-1 to 1", "gray to BGR", "standardized", "pixels"],
)
def test_a_backbone_receives_what_keras_prepares(
    pretrained: Any,
    name: str,
    channels: int,
    is_small: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import keras

    if is_small:
        small(getattr(keras.applications, name), monkeypatch)
    made = pretrained.build((32, 32, channels), 5, backbone=name, dropout=0.5)
    images = np.random.default_rng(0).random((2, 32, 32, channels), np.float32)
    (backbone,) = (layer for layer in made.layers if isinstance(layer, keras.Model))
    function = getattr(keras.applications, name)
    pixels = np.broadcast_to(images, (2, 32, 32, 3)) * np.float32(255.0)
    prepared = inspect.getmodule(function).preprocess_input(pixels.copy())  # type: ignore[union-attr]
    features = np.asarray(backbone(prepared)).mean((1, 2))
    expected = made.get_layer("head")(features)
    found = made(images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    made.layers[-2].rate = 0
    np.testing.assert_array_equal(made(images, training=True), found)  # not by the statistics of these two images
    made.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(images), found)


def test_weights_that_keras_saved_are_those_of_the_backbone(pretrained: Any, tmp_path: Path) -> None:
    import keras

    saved = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(32, 32, 3))
    saved.save_weights(tmp_path / "backbone.weights.h5")
    made = pretrained.build((32, 32, 3), 5, backbone="MobileNetV2")
    weights.load_keras(made, weights.WeightsSettings(file=str(tmp_path / "backbone.weights.h5")))
    (backbone,) = (layer for layer in made.layers if isinstance(layer, keras.Model))
    for ours, theirs in zip(backbone.get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "setting", "closest", "fix"),
    [
        ("ResNet50v2", "model.arguments.backbone", "ResNet50V2", None),
        # Its weights need a layer that Keras adds only when it downloads them itself.
        ("EfficientNetB0", "model.arguments.backbone", "EfficientNetV2B0", None),
        ("InceptionV3", "data.image_size", None, "--set 'data.image_size=[224, 224]'"),
    ],
)
def test_another_backbone_or_size_is_refused(
    pretrained: Any, name: str, setting: str, closest: str | None, fix: str | None
) -> None:
    with pytest.raises(UserError) as error:
        pretrained.build((32, 32, 3), 5, backbone=name)
    assert (error.value.setting, error.value.nearest) == (setting, closest)
    assert fix is None or error.value.fix == fix


def test_weights_that_cannot_be_downloaded_are_an_error_of_a_few_lines(
    pretrained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from keras.src.utils import file_utils

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_utils.config, "keras_home", lambda: str(tmp_path))
    monkeypatch.setattr("sys.argv", ["pretrained", "MobileNetV2"])

    def unreachable(*_: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(file_utils, "urlretrieve", unreachable)
    assert pretrained.main() == 2
    said = capsys.readouterr().err
    assert "error: Keras cannot download the weights of MobileNetV2: URL fetch failure on https://" in said
    assert "fix:      repeat the command on a machine with access to the internet" in said
    assert not list(tmp_path.glob("*.weights.h5"))


def test_weights_are_saved_under_the_name_of_the_backbone(
    pretrained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    monkeypatch.chdir(tmp_path)
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    monkeypatch.setattr(keras.applications, "VGG16", lambda **asked: made if asked["weights"] == "imagenet" else None)
    assert pretrained.save_weights("VGG16") == Path("VGG16.weights.h5")
    assert (tmp_path / "VGG16.weights.h5").is_file()
