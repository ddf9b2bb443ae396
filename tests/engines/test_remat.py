"""Functions and networks whose intermediate values are computed again for their gradient."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from slipway.trainer.config import ModelSettings
from slipway.trainer.engines.quick_import import import_tensorflow
from tests.engines.conftest import ENGINE

if ENGINE == "jax":
    import_tensorflow("jax")
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax._src.ad_checkpoint import saved_residuals  # jax.ad_checkpoint only prints them

    from slipway.trainer.engines.jax.remat import rematerialized


def chain(blocks: int):
    def function(weights, x, key):
        for number in range(blocks):
            hidden = jax.nn.gelu(x @ weights[number])
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.9, hidden.shape)
            x = x + jnp.where(kept, hidden, 0.0)
        return jnp.sum(x**2), {"mean": jnp.mean(x), "given": weights, "constant": 3.0}

    return function


@pytest.mark.engine("jax")
def test_values_and_gradients_are_those_of_the_function() -> None:
    function, key = chain(12), jax.random.key(1)
    weights, x = jax.random.normal(key, (12, 8, 8)) / 8, jax.random.normal(key, (4, 8))
    expected, actual = (
        jax.jit(jax.value_and_grad(each, argnums=(0, 1), has_aux=True))(weights, x, key)
        for each in (function, rematerialized(function))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


@pytest.mark.engine("jax")
def test_the_values_that_a_function_keeps_grow_with_the_root_of_its_length() -> None:
    """Counted in what the backward pass reads of the forward pass, without the arguments."""

    def kept(blocks: int) -> int:
        weights, x = jnp.zeros((blocks, 64, 64)), jnp.zeros((256, 64))

        def loss(weights, x):
            return rematerialized(chain(blocks))(weights, x, jax.random.key(0))[0]

        saved = saved_residuals(loss, weights, x)
        return sum(aval.size for aval, source in saved if "argument" not in source)

    assert kept(64) < 3 * kept(16)


@pytest.mark.engine("tensorflow", "pytorch")
def test_the_values_that_a_network_keeps_grow_with_the_root_of_its_depth() -> None:
    import_tensorflow(ENGINE)
    import keras

    from slipway.trainer.engines.keras.remat import Rematerialization

    def kept(blocks: int) -> int:
        x = inputs = keras.Input((32,))
        for _ in range(blocks):
            x = keras.layers.add([x, keras.layers.Dropout(0.1)(keras.layers.Dense(32, activation="gelu")(x))])
        read: dict[int, Any] = {}

        def checkpoint(function: Any, tensors: Any) -> Any:
            read.update({id(each): each for each in tensors})
            return function(*tensors)

        network = keras.Model(inputs, x)
        with Rematerialization(ModelSettings(builder="own:build"), network, checkpoint, explicit=False)():
            network(keras.ops.ones((4, 32)), training=True)
        return len(read)

    assert 2 < kept(16) < kept(64) < 3 * kept(16) < 48


@pytest.mark.engine("tensorflow", "pytorch")
def test_segments_of_whole_numbers_and_of_tokens_have_the_same_gradients() -> None:
    """A network of text: what it reads first has no gradient, and what it masks is handed on."""
    import_tensorflow(ENGINE)
    import keras
    import numpy as np
    from keras import layers

    from slipway.trainer.engines.keras.remat import Rematerialization

    keras.utils.set_random_seed(3)
    tokens = keras.Input((6,), dtype="int32")
    text = layers.Embedding(9, 8, mask_zero=True)(tokens % 9)
    for _ in range(3):
        text = layers.add([text, layers.MultiHeadAttention(2, 4)(text, text)])
        text = layers.add([text, layers.Dense(8, activation="gelu")(text)])
    network = keras.Model(tokens, layers.Dense(2)(layers.GlobalAveragePooling1D()(text)))
    given = np.array([[1, 2, 3, 0, 0, 0], [11, 5, 4, 8, 7, 1]], np.int32)

    if ENGINE == "pytorch":
        import torch

        from slipway.trainer.engines.pytorch.remat import _checkpoint as checkpoint

        def gradients(context: Any) -> list[Any]:
            with context():
                (network(torch.tensor(given), training=True) ** 2).sum().backward()
            found = [variable.value.grad.numpy() for variable in network.trainable_variables]
            network.zero_grad()
            return found
    else:
        import tensorflow as tf

        from slipway.trainer.engines.tensorflow.step import checkpoint

        def gradients(context: Any) -> list[Any]:
            @tf.function
            def of(inputs: Any) -> Any:
                with tf.GradientTape() as tape, context():
                    loss = tf.reduce_sum(network(inputs, training=True) ** 2)
                return tape.gradient(loss, [variable.value for variable in network.trainable_variables])

            return [tf.convert_to_tensor(one).numpy() for one in of(tf.constant(given))]

    segments = Rematerialization(
        ModelSettings(builder="own:build"), network, checkpoint, explicit=ENGINE == "tensorflow"
    )
    for expected, actual in zip(gradients(contextlib.nullcontext), gradients(segments), strict=True):
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
