"""Freeze layers of a Keras network by stage.

A frozen BatchNormalization layer normalizes with its moving statistics and keeps them, as Keras does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

import keras

from slipway.trainer.weights import matches, own_variables, walk


def freezer(model: keras.Model) -> Callable[[Collection[str]], None]:
    """Return a function that freezes all layers of `model` but those that match its patterns.

    Layers and variables that are frozen already stay so.
    """
    paths: dict[int, list[str]] = defaultdict(list)  # more than one for a layer that two models share
    layers: dict[int, keras.Layer] = {}
    for path, layer in walk(model):
        if layer.trainable and own_variables(layer):
            paths[id(layer)].append(path)
            layers[id(layer)] = layer
    variables = {key: [each for each in layer._trainable_variables if each.trainable] for key, layer in layers.items()}

    def freeze_others(patterns: Collection[str]) -> None:
        for key, layer in layers.items():
            chosen = any(matches(path, patterns) for path in paths[key])
            layer._trainable = chosen  # `layer.trainable = chosen` would also change the layers inside of it
            for variable in variables[key]:
                variable.trainable = chosen

    return freeze_others
