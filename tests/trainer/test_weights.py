"""Initial weights from a file: matched by layer name, refused by layer name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer import weights
from slipway.trainer.weights import WeightsSettings

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def classifier(classes: int = 3, *, nested: bool = True) -> Any:
    """A classifier with two convolutions of the name `backbone`, and an attention layer with layers inside of it."""
    import keras

    inputs = keras.Input((8, 8, 1))
    hidden = keras.layers.Conv2D(4, 3, name="conv1")(inputs)
    hidden = keras.layers.BatchNormalization(name="bn1")(hidden)
    hidden = keras.layers.Reshape((36, 4), name="rows")(hidden)
    hidden = keras.layers.MultiHeadAttention(2, 2, name="attention")(hidden, hidden)
    if nested:
        hidden = keras.Model(inputs, hidden, name="backbone")(inputs)
    hidden = keras.layers.Flatten(name="flat")(hidden)
    return keras.Model(inputs, keras.layers.Dense(classes, name="head")(hidden))


def filled(model: Any) -> Any:
    """Set all weights to different numbers."""
    random = np.random.default_rng(7)
    for variable in model.variables:
        variable.assign(random.normal(size=variable.shape).astype(variable.dtype))
    return model


def values(model: Any, *, head: bool) -> list[Any]:
    return [
        variable.numpy() for variable in model.weights if head or variable.path.split("/")[-2] != "head"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["whole.weights.h5", "whole.keras", "whole.h5"])
def test_all_layers_of_the_same_network_are_loaded(name: str) -> None:
    saved = filled(classifier())
    saved.save_weights(name) if name.endswith(".weights.h5") else saved.save(name)
    model = classifier()
    weights.load_keras(model, WeightsSettings(file=name))
    for own, other in zip(values(model, head=True), values(saved, head=True), strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("is_file_nested", [True, False])
def test_a_backbones_layers_are_found_inside_of_another_network(is_file_nested: bool, capfd: Any, caplog: Any) -> None:
    caplog.set_level("INFO")
    if is_file_nested:
        saved, model = filled(classifier()), classifier(nested=False)
        saved.save_weights("backbone.weights.h5")
    else:
        saved, model = filled(classifier().get_layer("backbone")), classifier()
        saved.save_weights("backbone.weights.h5")
    settings = WeightsSettings(file="backbone.weights.h5", skip=("head*",))
    before = model.get_layer("head").kernel.numpy()
    weights.load_keras(model, settings)
    for own, other in zip(values(model, head=False), values(saved, head=False), strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(model.get_layer("head").kernel.numpy(), before)
    assert "weights of 6 of 7 layers read from backbone.weights.h5; keeping their own: head" in caplog.text


def test_another_shape_is_refused_with_the_layers_name_unless_it_is_skipped() -> None:
    filled(classifier(classes=1000)).save_weights("all.weights.h5")
    model, settings = classifier(), WeightsSettings(file="all.weights.h5")
    before = [variable.numpy() for variable in model.weights]
    with pytest.raises(UserError, match=r"layer head has weights of the shapes \[144, 3\]") as caught:
        weights.load_keras(model, settings)
    assert "--set model.weights.skip='[head]'" in (caught.value.fix or "")
    for own, other in zip(model.weights, before, strict=True):  # nothing has been loaded
        np.testing.assert_array_equal(own.numpy(), other)
    weights.load_keras(model, WeightsSettings(file="all.weights.h5", skip=("head",)))


def test_the_published_weights_of_keras_applications_are_read() -> None:
    """Their files have the format of Keras 2: groups of layers, with the weights' names as attributes."""
    arrays = {name: np.random.default_rng(3).normal(size=(4,)) for name in ("gamma", "beta", "mean", "variance")}
    with h5py.File("published.h5", "w") as file:
        file.attrs["layer_names"] = [b"input_1", b"bn1"]
        file.create_group("input_1").attrs["weight_names"] = []
        group = file.create_group("bn1")
        group.attrs["weight_names"] = [f"bn1/{name}:0".encode() for name in arrays]
        for name, array in arrays.items():
            group[f"bn1/{name}:0"] = array
    model = classifier()
    weights.load_keras(model, WeightsSettings(file="published.h5"))
    for own, other in zip(model.get_layer("backbone").get_layer("bn1").weights, arrays.values(), strict=True):
        np.testing.assert_allclose(own.numpy(), other, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"file": "nothing.weights.h5"}, "There is no file nothing.weights.h5"),
        ({"file": "broken.weights.h5"}, "cannot be read: OSError"),
        ({"file": "weights.txt"}, "not a file of weights"),
        ({"file": "other.weights.h5"}, "has no weights for the network's layers"),
        ({"file": "other.weights.h5", "sha256": "0" * 64}, "has the SHA-256"),
    ],
)
def test_an_unsuitable_file_is_refused(settings: dict[str, Any], message: str) -> None:
    import keras

    Path("broken.weights.h5").write_bytes(b"nothing")
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="elsewhere")]).save_weights("other.weights.h5")
    with pytest.raises(UserError, match=message):
        weights.load_keras(classifier(), weights.with_checksum(WeightsSettings.model_validate(settings)))


def test_a_run_resumes_only_with_the_file_that_it_began_with(tiny: Path, make_job: Any) -> None:
    from slipway.trainer.__main__ import _with_checksum
    from slipway.trainer.checkpoint.resume import identity

    def begun() -> object:
        config = make_job(tiny, steps=1, steps_per_epoch=75)
        model = config.model.model_copy(update={"weights": WeightsSettings(file="first.weights.h5")})
        return identity(_with_checksum(config.model_copy(update={"model": model})), "data")["model.weights"]

    Path("first.weights.h5").write_bytes(b"one")
    first = begun()
    assert begun() == first
    Path("first.weights.h5").write_bytes(b"two")
    assert begun() != first
