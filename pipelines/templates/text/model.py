"""The network that `slipway run` trains: `model.builder` in slipway.yaml names it."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable("project")
class Words(layers.Layer):
    """The sum of an embedding of each word and one of its position."""

    def __init__(self, words: int, length: int, width: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.words, self.length, self.width = words, length, width
        self.of_words = layers.Embedding(words, width)
        self.of_positions = layers.Embedding(length, width)

    def build(self, input_shape: Any) -> None:
        self.of_words.build(input_shape)
        self.of_positions.build(input_shape)

    def call(self, words: Any) -> Any:
        return self.of_words(words) + self.of_positions(ops.arange(self.length))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "words": self.words, "length": self.length, "width": self.width}


def build(
    inputs: dict[str, Any], outputs: int, *, width: int = 64, heads: int = 2, blocks: int = 1, dropout: float = 0.3
) -> keras.Model:
    """Return a small transformer for texts, beside the other columns of a table.

    Args:
        inputs: The columns by name: the kind of each, its shape, and the number of values of a category or word.
        outputs: Number of outputs; 1 for regression.
        width: Units of the embeddings and of the hidden layers.
        heads: Attention heads.
        blocks: Transformer blocks.
        dropout: Fraction of values that are dropped while training.
    """
    columns = {
        name: keras.Input(column.shape, dtype=column.dtype, name=None if "/" in name else name)
        for name, column in inputs.items()
    }
    parts = []
    for name, column in inputs.items():
        if column.kind == "text":
            parts.append(encoded(columns[name], column, width, heads, blocks, dropout))
        elif column.kind == "category":
            encoding = layers.CategoryEncoding(column.values, output_mode="one_hot")
            parts.append(encoding(layers.Reshape((1,))(columns[name])))
        else:  # numbers, standardized
            parts.append(layers.Reshape((-1,))(columns[name]))
    x = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    x = layers.Dropout(dropout)(x)
    return keras.Model(columns, layers.Dense(outputs)(x))


def encoded(text: Any, column: Any, width: int, heads: int, blocks: int, dropout: float) -> Any:
    """Return the mean over a text's words of what the transformer makes of them, [batch, width]."""
    (length,) = column.shape
    given = ops.not_equal(text, 0)
    x = layers.Dropout(dropout)(Words(column.values, length, width)(text))
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)
        x += attention(normal, normal, attention_mask=given[:, None, :])
        hidden = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(x))
        x += layers.Dropout(dropout)(layers.Dense(width)(hidden))
    weights = ops.cast(given, x.dtype)[:, :, None]
    return ops.sum(x * weights, axis=1) / (ops.sum(weights, axis=1) + 1e-6)
