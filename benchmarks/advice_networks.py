"""The networks of `benchmarks.advice`, as the published results that it compares with describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops


def image_network(image_shape: tuple[int, int, int], classes: int, *, name: str) -> keras.Model:
    """Return a network of keras.applications without pretrained weights, such as ResNet50 or EfficientNetB4."""
    make = getattr(keras.applications, name)
    arguments = {"weights": None, "input_shape": image_shape, "classes": classes, "classifier_activation": None}
    return make(**arguments)


def vision_transformer(
    image_shape: tuple[int, int, int], classes: int, *, width: int, blocks: int, heads: int, patch: int = 16
) -> keras.Model:
    """Return a vision transformer with a mean of the patches."""
    images = keras.Input(image_shape)
    x = layers.Conv2D(width, patch, strides=patch)(images)
    x = layers.Reshape((-1, width))(x)
    x = Positions()(x)
    for _ in range(blocks):
        x = Block(width, heads, heads, 4 * width)(x)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(images, layers.Dense(classes)(x))


def language_model(
    inputs: dict[str, Any],
    outputs: int,
    *,
    width: int,
    blocks: int,
    heads: int,
    hidden: int,
    groups: int | None = None,
    causal: bool = True,
    gated: bool = False,
    predicted: float = 1.0,
    remat: bool = False,
) -> keras.Model:
    """Return a transformer that predicts tokens; so that Slipway's tasks train it, the tokens' logits are pooled.

    Args:
        inputs: One input: token ids.
        outputs: Size of the vocabulary.
        width: Units between the blocks.
        blocks: Number of blocks.
        heads: Heads of the queries.
        hidden: Units of the feed-forward layers.
        groups: Heads of keys and values; default: as many.
        causal: Whether tokens attend to earlier ones only.
        gated: Whether the feed-forward layers are gated, as Llama's are.
        predicted: The part of the tokens that is predicted; BERT predicts 15 %.
        remat: Whether the activations inside of a block are computed again for the gradients.
    """
    ((name, column),) = inputs.items()
    tokens = keras.Input(column.shape, dtype=column.dtype, name=name)
    x = Positions()(layers.Embedding(column.values, width)(tokens))
    with keras.RematScope(mode="full" if remat else None):
        for _ in range(blocks):
            x = Block(width, heads, groups or heads, hidden, causal=causal, gated=gated)(x)
    x = layers.LayerNormalization()(x)[:, : max(1, round(predicted * column.shape[0]))]
    return keras.Model({name: tokens}, Pooled()(layers.Dense(outputs)(x)))


def wide_resnet(image_shape: tuple[int, int, int], classes: int, *, depth: int = 28, widen: int = 10) -> keras.Model:
    """Return a wide residual network for small images (https://arxiv.org/abs/1605.07146)."""
    images = keras.Input(image_shape)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(images)
    for group, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
        for block in range((depth - 4) // 6):
            strides = 2 if group and not block else 1
            y = layers.Activation("relu")(layers.BatchNormalization()(x))
            shortcut = x if x.shape[-1] == width else layers.Conv2D(width, 1, strides=strides, use_bias=False)(y)
            y = layers.Conv2D(width, 3, strides=strides, padding="same", use_bias=False)(y)
            y = layers.Dropout(0.3)(layers.Activation("relu")(layers.BatchNormalization()(y)))
            x = shortcut + layers.Conv2D(width, 3, padding="same", use_bias=False)(y)
    x = layers.GlobalAveragePooling2D()(layers.Activation("relu")(layers.BatchNormalization()(x)))
    return keras.Model(images, layers.Dense(classes)(x))


class Positions(layers.Layer):
    """Adds a vector for each position."""

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the vectors for inputs [batch, tokens, width]."""
        self.vectors = self.add_weight(shape=shape[1:], initializer="random_normal")
        super().build(shape)

    def call(self, x: Any) -> Any:
        """Return [batch, tokens, width]."""
        return x + ops.cast(self.vectors, x.dtype)

    def compute_output_spec(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the result's shape, which Keras on PyTorch would compute by executing the layer."""
        return keras.KerasTensor(x.shape, self.compute_dtype)


class Pooled(layers.Layer):
    """The logarithm of the sum of the tokens' exponentials: [batch, tokens, classes] to [batch, classes]."""

    def call(self, x: Any) -> Any:
        """Return [batch, classes]; no compiler can exchange this sum with the product before it."""
        return ops.logsumexp(ops.cast(x, "float32"), axis=1)

    def compute_output_spec(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the result's shape."""
        return keras.KerasTensor((x.shape[0], x.shape[2]), "float32")


class Block(layers.Layer):
    """Attention and a feed-forward layer with residual connections; the norm is before each."""

    def __init__(
        self, width: int, heads: int, groups: int, hidden: int, *, causal: bool = False, gated: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.causal = heads, groups, width // heads, causal
        with keras.RematScope(mode=None):
            self.before = [layers.LayerNormalization() for _ in range(2)]
            self.queries, self.attended = layers.Dense(width), layers.Dense(width)
            self.keys, self.values = (layers.Dense(groups * self.size) for _ in range(2))
            self.up = [layers.Dense(hidden) for _ in range(2 if gated else 1)]
            self.down = layers.Dense(width)

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
            ops.repeat(ops.reshape(each(y), (-1, length, self.groups, self.size)), self.heads // self.groups, axis=2)
            for each in (self.keys, self.values)
        )
        attended = ops.dot_product_attention(query, key, value, is_causal=self.causal)
        z = x + self.attended(ops.reshape(attended, (-1, length, self.heads * self.size)))
        y = self.before[1](z)
        gate, *rest = (up(y) for up in self.up)
        inner = ops.silu(gate) * rest[0] if rest else ops.gelu(gate)
        return z + self.down(inner)

    def compute_output_spec(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the result's shape."""
        return keras.KerasTensor(x.shape, self.compute_dtype)
