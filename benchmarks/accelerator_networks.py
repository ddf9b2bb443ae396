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
    """Attention with grouped queries, and a feed-forward layer, with residual connections; a norm is before each.

    Args:
        width: Units between the blocks.
        heads: Heads of the queries.
        groups: Heads of keys and values.
        hidden: Units of the feed-forward layer.
        causal: Whether tokens attend to earlier ones only.
        gated: Whether the feed-forward layer is gated, as Llama's is; otherwise its activation is GELU.
        norm: The class of the norms.
        bias: Whether the dense layers have biases.
    """

    def __init__(
        self, width: int, heads: int, groups: int, hidden: int, *, causal: bool = True, gated: bool = True,
        norm: type[layers.Layer] = layers.RMSNormalization, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.groups, self.size, self.causal = heads, groups, width // heads, causal
        with keras.RematScope(mode=None):
            self.before = [norm() for _ in range(2)]
            self.queries = layers.Dense(width, use_bias=bias)
            self.keys, self.values = (layers.Dense(groups * self.size, use_bias=bias) for _ in range(2))
            self.attended = layers.Dense(width, use_bias=bias)
            self.up = [layers.Dense(hidden, use_bias=bias) for _ in range(2 if gated else 1)]
            self.down = layers.Dense(width, use_bias=bias)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the variables for inputs [batch, tokens, width]."""
        for layer in (*self.before, self.queries, self.keys, self.values, self.attended, *self.up):
            layer.build(shape)
        self.down.build((*shape[:-1], self.up[0].units))
        super().build(shape)

    def call(self, x: Any) -> Any:
        """Return [batch, tokens, width]."""
        length = x.shape[1]
        y = self.before[0](x)
        query = ops.reshape(self.queries(y), (-1, length, self.heads, self.size))
        key, value = (
            ops.repeat(ops.reshape(layer(y), (-1, length, self.groups, self.size)), self.heads // self.groups, axis=2)
            for layer in (self.keys, self.values)
        )
        attended = ops.dot_product_attention(query, key, value, is_causal=self.causal)
        z = x + self.attended(ops.reshape(attended, (-1, length, self.heads * self.size)))
        y = self.before[1](z)
        first, *second = (up(y) for up in self.up)
        return z + self.down(ops.silu(first) * second[0] if second else ops.gelu(first))

    def compute_output_spec(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the result's shape, which Keras on PyTorch would compute by executing the layer."""
        return keras.KerasTensor(x.shape, self.compute_dtype)
