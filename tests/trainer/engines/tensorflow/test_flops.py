"""The floating-point operations of networks on images of 8 x 8 x 1 and three classes, counted by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway.core import manifest as manifests

pytestmark = pytest.mark.usefixtures("tensorflow")

DENSE = 3 * 2 * 3  # per feature: forward, and the gradients of its input and of the kernel


def attention() -> Any:
    import keras

    image = keras.Input((8, 8, 1))
    tokens = keras.layers.Reshape((8, 8))(image)
    attended = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)(tokens, tokens)
    return keras.Model(image, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(attended)))


def sequential(*layers: str, **settings: Any) -> Any:
    import keras

    built = [getattr(keras.layers, name)(**settings.get(name, {})) for name in layers]
    return keras.Sequential([keras.Input((8, 8, 1)), *built, keras.layers.Dense(3)])


# Of the first layer, only the kernel has a gradient: the images have none.
CASES = {
    "attention": (
        attention,
        # Query, key and value; scores and weighted values of two heads of four; the projection of their results.
        2 * 3 * (2 * 8 * 8 * 8) + 3 * 2 * (2 * 2 * 8 * 8 * 4) + 3 * (2 * 8 * 8 * 8) + 8 * DENSE,
    ),
    "depthwise": (
        lambda: sequential(
            *("Conv2D", "DepthwiseConv2D", "Flatten"),
            Conv2D={"filters": 4, "kernel_size": 3, "strides": 2},
            DepthwiseConv2D={"kernel_size": 2, "depth_multiplier": 2},
        ),
        2 * (2 * 3 * 3 * 4 * 9) + 3 * (2 * 2 * 2 * 8 * 4) + 2 * 2 * 8 * DENSE,
    ),
    "volumes": (
        lambda: sequential(
            *("Reshape", "Conv3D", "Conv3DTranspose", "Flatten"),
            Reshape={"target_shape": (4, 4, 4, 1)},
            Conv3D={"filters": 2, "kernel_size": 3},
            Conv3DTranspose={"filters": 3, "kernel_size": 2},
        ),
        2 * (2 * 2**3 * 2 * 27) + 3 * (2 * 2**3 * 2 * 3 * 8) + 27 * 3 * DENSE,
    ),
    "a batch's own products": (
        lambda: sequential(
            *("Reshape", "EinsumDense", "Flatten"),
            Reshape={"target_shape": (4, 16)},
            EinsumDense={"equation": "...x,xy->...y", "output_shape": 5},
        ),
        2 * (2 * 4 * 16 * 5) + 20 * DENSE,
    ),
}


@pytest.mark.parametrize(("network", "expected"), CASES.values(), ids=CASES)
def test_products_and_convolutions_are_counted_as_by_hand(network: Any, expected: int, tiny: Path) -> None:
    import tensorflow as tf

    from slipway.trainer.engines.tensorflow import flops

    objective = SimpleNamespace(losses=lambda outputs, labels: tf.reduce_sum(outputs**2, axis=1))
    assert flops.example_flops(network(), manifests.read(tiny), objective) == expected


def test_loops_are_not_counted(tiny: Path) -> None:
    import tensorflow as tf

    from slipway.trainer.engines.tensorflow import flops

    network = sequential("Reshape", "GRU", Reshape={"target_shape": (8, 8)}, GRU={"units": 2})
    objective = SimpleNamespace(losses=lambda outputs, labels: tf.reduce_sum(outputs**2, axis=1))
    assert flops.example_flops(network, manifests.read(tiny), objective) is None
