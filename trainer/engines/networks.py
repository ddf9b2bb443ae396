"""A network that is built only to be measured, on whatever engine: how large it is, and what an example takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from slipway.trainer.config import ModelSettings
from slipway.trainer.engines import builder
from slipway.trainer.engines.quick_import import import_tensorflow

if TYPE_CHECKING:
    from slipway.trainer.engines.base import ModelSize


def build(engine: str, settings: ModelSettings, image_shape: tuple[int, int, int], classes: int) -> Any:
    """What the builder returns; Keras is imported on the engine's backend for that.

    Raises:
        UserError: The builder's mistakes, see `builder.build`; it returned what the engine cannot train.
    """
    import_tensorflow(engine)
    model = builder.build(settings, image_shape, classes)
    if engine == "pytorch":
        from slipway.trainer.engines.pytorch import network

        return network.checked(model, settings)
    from slipway.trainer.engines.keras import model as keras_model

    return keras_model.checked(model, settings)


def size(model: Any) -> ModelSize:
    """How many bytes its variables take, and those of them that are trained."""
    if not _is_keras(model):
        from slipway.trainer.engines.pytorch import network

        return network.size(model)
    from slipway.trainer.engines.keras import model as keras_model

    return keras_model.size(model)


def example_elements(model: Any, image_shape: tuple[int, int, int]) -> int:
    """How many numbers one example is on its way through the network: the input and every layer's output."""
    count = math.prod(image_shape)
    if not _is_keras(model):
        from slipway.trainer.engines.pytorch import network

        return count + network.output_elements(model, image_shape)
    for layer in model._flatten_layers(include_self=False):
        try:
            outputs = layer.output
        except (AttributeError, ValueError):  # a layer that is not part of a graph of layers
            continue
        for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
            count += math.prod(size for size in output.shape[1:] if size)
    return count


def _is_keras(model: Any) -> bool:
    import keras

    return isinstance(model, keras.Model)
