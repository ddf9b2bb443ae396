"""BatchNormalization over several devices: statistics of the global batch, so that all devices have the same ones.

Keras's own `synchronized=True` works on TensorFlow only. With gradient accumulation, the statistics cover one
micro-batch of all devices. A frozen layer normalizes with its moving statistics, as Keras does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras import ops

# A tensor of the backend: tf.Tensor, jax.Array or torch.Tensor.
Tensor: TypeAlias = Any
# Function from a device's tensor to those of all devices, stacked along a new first axis; differentiable.
Gather = Callable[[Tensor], Tensor]


def layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Return the BatchNormalization layers of a network, frozen ones too."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def synchronize(model: keras.Model, gather: Gather | None) -> None:
    """Make all BatchNormalization layers use the statistics of the global batch.

    Args:
        model: The network.
        gather: How to collect a tensor from all devices; None if the layers receive the global batch anyway.
    """
    for layer in layers(model):
        layer.synchronized = False
        if gather is not None:
            layer._moments = functools.partial(_moments, type(layer)._moments, layer, gather)


def _moments(
    local: Callable[..., tuple[Tensor, Tensor]],
    layer: keras.layers.BatchNormalization,
    gather: Gather,
    inputs: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    mean, variance = local(layer, inputs, mask)
    count = ops.ones_like(mean) if mask is None else ops.zeros_like(mean) + ops.sum(ops.cast(mask, mean.dtype))
    return combined(mean, variance, count, gather)


def combined(mean: Tensor, variance: Tensor, count: Tensor, gather: Gather) -> tuple[Tensor, Tensor]:
    """Return the mean and variance, [channels], of the examples of all devices.

    Unlike the difference of the mean square and the squared mean, this does not lose digits to cancellation.

    Args:
        mean: The mean of this device's examples, [channels].
        variance: Their variance, [channels].
        count: In proportion to their number, [channels].
        gather: How to collect a tensor from all devices.
    """
    everywhere = gather(ops.stack([mean, variance, count]))
    means, variances, counts = everywhere[:, 0], everywhere[:, 1], everywhere[:, 2]
    fractions = counts / ops.maximum(ops.sum(counts, axis=0, keepdims=True), 1e-12)
    whole = ops.sum(fractions * means, axis=0)
    return whole, ops.sum(fractions * (variances + ops.square(means - whole)), axis=0)
