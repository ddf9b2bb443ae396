"""The network that `slipway run` trains: `model.builder` in slipway.yaml names it."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

# A category with more values has an embedding, whose size grows with their number.
MAX_INDICATORS = 32


def build(inputs: dict[str, Any], outputs: int, *, width: int = 128, dropout: float = 0.5) -> keras.Model:
    """Return a network for the columns of a table: a linear model, plus what two hidden layers add to it.

    Args:
        inputs: The columns by name: the kind of each, its shape, and the number of values of a category.
        outputs: Number of outputs; 1 for regression.
        width: Units of the hidden layers.
        dropout: Fraction of them that training drops.
    """
    columns = {
        name: keras.Input(column.shape, dtype=column.dtype, name=None if "/" in name else name)
        for name, column in inputs.items()
    }
    parts = []
    for name, column in inputs.items():
        if column.kind == "category" and column.values > MAX_INDICATORS:
            parts.append(layers.Embedding(column.values, round(1.6 * column.values**0.56))(columns[name]))
        elif column.kind == "category":
            encoding = layers.CategoryEncoding(column.values, output_mode="one_hot")
            parts.append(encoding(layers.Reshape((1,))(columns[name])))
        elif column.kind == "text":  # the mean of its words
            words = layers.Embedding(column.values, 32, mask_zero=True)(columns[name])
            parts.append(layers.GlobalAveragePooling1D()(words))
        else:  # numbers, standardized
            parts.append(layers.Reshape((-1,))(columns[name]))
    x = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    linear = layers.Dense(outputs, use_bias=False, kernel_initializer="zeros")(x)
    for _ in range(2):
        x = layers.Dropout(dropout)(layers.Dense(width, activation="relu")(x))
    return keras.Model(columns, layers.Dense(outputs)(x) + linear)
