"""Build a network for any engine only to measure its size and memory per example."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from slipway.trainer.config import ModelSettings
from slipway.trainer.engines import builder
from slipway.trainer.engines.quick_import import import_tensorflow

if TYPE_CHECKING:
    from slipway.trainer.engines.base import ModelSize


def build(engine: str, settings: ModelSettings, image_shape: tuple[int, int, int], classes: int) -> Any:
    """Build the network, with Keras imported on the engine's backend.

    Raises:
        UserError: The builder failed (`builder.build`), or returned a network that the engine cannot train.
    """
    import_tensorflow(engine)
    model = builder.build(settings, image_shape, classes)
    if engine == "pytorch":
        from slipway.trainer.engines.pytorch import network

        return network.checked(model, settings)
    from slipway.trainer.engines.keras import model as keras_model

    return keras_model.checked(model, settings)


def size(model: Any) -> ModelSize:
    """Return the size of the model's variables and of the trainable ones."""
    if not _is_keras(model):
        from slipway.trainer.engines.pytorch import network

        return network.size(model)
    from slipway.trainer.engines.keras import model as keras_model

    return keras_model.size(model)


def example_elements(model: Any, image_shape: tuple[int, int, int]) -> int:
    """Return the number of elements of one example's input and of all layers' outputs."""
    count = math.prod(image_shape)
    if not _is_keras(model):
        from slipway.trainer.engines.pytorch import network

        return count + network.output_elements(model, image_shape)
    for layer in model._flatten_layers(include_self=False):
        try:
            outputs = layer.output
        except (AttributeError, ValueError):  # a layer outside of the functional graph
            continue
        for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
            count += math.prod(size for size in output.shape[1:] if size)
    return count


def _is_keras(model: Any) -> bool:
    import keras

    return isinstance(model, keras.Model)
