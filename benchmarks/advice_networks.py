"""The networks of `benchmarks.advice`, as the published results that it compares with describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops

from benchmarks.accelerator_networks import Block

AS_BERT: dict[str, Any] = {"norm": layers.LayerNormalization, "bias": True}


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
        x = Block(width, heads, heads, 4 * width, causal=False, gated=False, **AS_BERT)(x)
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
            x = Block(width, heads, groups or heads, hidden, causal=causal, gated=gated, **AS_BERT)(x)
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
