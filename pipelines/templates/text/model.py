"""The network that `slipway run` trains: `model.builder` in slipway.yaml names it."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops


def build(
    inputs: dict[str, Any], outputs: int, *, width: int = 128, dropout: float = 0.5, blocks: int = 0, heads: int = 4
) -> keras.Model:
    """Return a network for texts, beside the other columns of a table.

    Args:
        inputs: The columns by name: the kind of each, its shape, and the number of values of a category or text.
        outputs: Number of outputs; 1 for regression.
        width: Units of the embeddings.
        dropout: Fraction of values that are dropped while training.
        blocks: Transformer blocks between the embeddings and their mean; they need many more than some thousand texts.
        heads: Attention heads of a block.
    """
    columns = {
        name: keras.Input(column.shape, dtype=column.dtype, name=None if "/" in name else name)
        for name, column in inputs.items()
    }
    parts = []
    for name, column in inputs.items():
        if column.kind == "text":
            parts.append(encoded(columns[name], column.values, width, dropout, blocks, heads))
        elif column.kind == "category":
            encoding = layers.CategoryEncoding(column.values, output_mode="one_hot")
            parts.append(encoding(layers.Reshape((1,))(columns[name])))
        else:  # numbers, standardized
            parts.append(layers.Reshape((-1,))(columns[name]))
    x = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    x = layers.Dropout(dropout)(x)
    return keras.Model(columns, layers.Dense(outputs)(x))


def encoded(text: Any, values: int, width: int, dropout: float, blocks: int, heads: int) -> Any:
    """Return the mean over a text's words and subwords of their embeddings, or of a transformer's output."""
    given = ops.not_equal(text, 0)
    x = layers.Embedding(values, width)(text)
    if blocks:
        x += layers.Embedding(text.shape[1], width)(ops.cumsum(ops.ones_like(text), axis=1) - 1)  # of the positions
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)
        x += attention(normal, normal, attention_mask=given[:, None, :])
        hidden = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(x))
        x += layers.Dropout(dropout)(layers.Dense(width)(hidden))
    weights = ops.cast(given, x.dtype)[:, :, None]
    return ops.sum(x * weights, axis=1) / (ops.sum(weights, axis=1) + 1e-6)
