"""The networks of `benchmarks.accelerators` that Slipway does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops


def resnet(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return ResNet-50 without pretrained weights."""
    return keras.applications.ResNet50(
        weights=None, input_shape=image_shape, classes=classes, classifier_activation=None
    )


def decoder(
    inputs: dict[str, Any], outputs: int, *, width: int, blocks: int, heads: int, groups: int, hidden: int
) -> keras.Model:
    """Return a decoder as Llama 3 is, without positions; the outputs are those of the last token.

    The activations inside of a block are computed again for the gradients.

    Args:
        inputs: One input: token ids.
        outputs: Number of classes.
        width: Units between the blocks.
        blocks: Number of blocks.
        heads: Heads of the queries.
        groups: Heads of keys and values.
        hidden: Units of the feed-forward layers.
    """
    ((name, column),) = inputs.items()
    tokens = keras.Input(column.shape, dtype=column.dtype, name=name)
    x = layers.Embedding(column.values, width)(tokens)
    with keras.RematScope(mode="full"):
        for _ in range(blocks):
            x = Block(width, heads, groups, hidden)(x)
    x = layers.RMSNormalization()(x)[:, -1]
    return keras.Model({name: tokens}, layers.Dense(outputs)(x))


class Block(layers.Layer):
    """Causal attention with grouped queries, and a gated feed-forward layer, with residual connections."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        with keras.RematScope(mode=None):
            self.before = [layers.RMSNormalization() for _ in range(2)]
            self.queries = layers.Dense(width, use_bias=False)
            self.keys, self.values = (layers.Dense(groups * self.size, use_bias=False) for _ in range(2))
            self.attended = layers.Dense(width, use_bias=False)
            self.gate, self.up = (layers.Dense(hidden, use_bias=False) for _ in range(2))
            self.down = layers.Dense(width, use_bias=False)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the variables for inputs [batch, tokens, width]."""
        for layer in (*self.before, self.queries, self.keys, self.values, self.attended, self.gate, self.up):
            layer.build(shape)
        self.down.build((*shape[:-1], self.gate.units))
        super().build(shape)

    def call(self, x: Any) -> Any:
        """Return [batch, tokens, width]."""
        length = x.shape[1]
        y = self.before[0](x)
        query = ops.reshape(self.queries(y), (-1, length, self.heads, self.size))
        key, value = (
            ops.repeat(ops.reshape(each(y), (-1, length, self.groups, self.size)), self.heads // self.groups, axis=2)
            for each in (self.keys, self.values)
        )
        attended = ops.dot_product_attention(query, key, value, is_causal=True)
        z = x + self.attended(ops.reshape(attended, (-1, length, self.heads * self.size)))
        y = self.before[1](z)
        return z + self.down(ops.silu(self.gate(y)) * self.up(y))
