"""The jax engine's step."""

from __future__ import annotations

import pytest

from slipway.trainer.engines.quick_import import import_tensorflow
from tests.trainer.conftest import NETWORKS

pytestmark = pytest.mark.engine("jax")


def test_which_networks_certainly_look_at_one_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(NETWORKS))
    import_tensorflow("jax")
    import keras
    import sample_networks
    from keras import layers, ops

    from slipway.trainer.engines.jax.step import looks_at_one_example

    inputs = keras.Input((8,))

    def is_known(*chain: keras.layers.Layer) -> bool:
        return looks_at_one_example(keras.Sequential([inputs, *chain]))

    assert is_known(layers.Dense(3, kernel_regularizer="l2"), layers.ReLU(), layers.LayerNormalization())
    assert is_known(layers.Reshape((2, 4)), layers.Conv1D(3, 2), layers.Softmax(axis=-1))
    assert is_known(layers.Reshape((2, 4)), layers.Softmax(axis=1), layers.Flatten())
    assert not is_known(layers.Softmax(axis=0))
    assert not is_known(layers.UnitNormalization(axis=[0, 1]))
    assert not is_known(layers.BatchNormalization())
    assert not is_known(layers.Dropout(0.1))
    assert not is_known(layers.Dense(3, activity_regularizer="l2"))
    assert not is_known(layers.Lambda(lambda values: values - ops.mean(values)))
    assert not is_known(keras.Sequential([layers.Dense(3), layers.Dropout(0.1)]))
    assert not looks_at_one_example(keras.Model(inputs, inputs - ops.mean(inputs, axis=0)))
    assert not looks_at_one_example(sample_networks.called((8, 8, 1), 3))
