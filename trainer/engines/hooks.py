"""Load and call the functions of `slipway.trainer.hooks` in an engine; their errors become UserErrors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer import hooks
from slipway.trainer.config import TrainSettings
from slipway.trainer.data.features import blank
from slipway.trainer.engines import builder
from slipway.trainer.engines.keras.augment import Custom


def load(train: TrainSettings, setting: str) -> Callable[..., Any]:
    """Return the function that a setting names; it raises UserError where the user's code raises.

    Raises:
        UserError: It does not exist.
    """
    name, contract = train.functions[setting], str(hooks.hook_of(setting, train.engine))
    function = builder.load(name, setting, contract)

    def called(*arguments: Any) -> Any:
        try:
            with builder.user_code():
                return function(*arguments)
        except UserError:
            raise
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError":  # of torch, which says so where the memory is needed
                raise
            raise UserError(
                f"The function {name} {builder.what_happened(error)}",
                setting=setting,
                value=name,
                allowed=contract,
                fix="fix the function",
            ) from builder.origin(error)

    return called


def per_example(train: TrainSettings, setting: str, manifest: Manifest) -> Callable[[Any, Any], Any]:
    """Return the function of outputs and labels that a setting names, with float32 results, after a trial on zeros.

    Raises:
        UserError: It does not exist, raises, or does not return a number for each example.
    """
    function = load(train, setting)

    def values(outputs: Any, labels: Any) -> Any:
        result, examples = function(outputs, labels), labels.shape[0]
        if not _has_shape(result, (examples,)):
            raise wrong_result(train, setting, result, f"[{examples}] for a batch of {examples}")
        return ops.cast(result, "float32")

    examples = manifest.outputs + 1  # unlike any other dimension
    labels = blank(manifest, examples)[1]
    if labels.dtype == np.int32 and keras.backend.backend() == "torch":
        labels = labels.astype(np.int64)
    values(ops.zeros((examples, manifest.outputs), "float32"), ops.convert_to_tensor(labels))
    return values


class Seeds(keras.random.SeedGenerator):
    """The seeds of one step on one device, for the argument `seed` of keras.random; the n-th one is draw(n)."""

    def __init__(self, draw: Callable[[int], Any]) -> None:  # without the variable of Keras's own generator
        self._draw, self._count = draw, 0

    def next(self, ordered: bool = True) -> Any:  # noqa: ARG002
        """Return the next seed, [2]."""
        self._count += 1
        return self._draw(self._count - 1)


def augmentation(train: TrainSettings, manifest: Manifest) -> Custom | None:
    """Return the function `train.augment.function`, after a trial on black images; None without one.

    Raises:
        UserError: The function does not exist, raises, or does not return images of the same shape.
    """
    setting = "train.augment.function"
    if train.augment.function is None:
        return None
    function = load(train, setting)

    def changed(images: Any, draw: Callable[[int], Any]) -> Any:
        result, shape = function(images, Seeds(draw)), tuple(images.shape)
        if not _has_shape(result, shape):
            raise wrong_result(train, setting, result, f"images of shape {list(shape)}")
        return ops.reshape(ops.cast(result, "float32"), shape)

    kind = "uint32" if keras.backend.backend() == "jax" else "int32"
    black = ops.zeros((2, *manifest.image_shape), "float32")
    changed(black, lambda number: ops.convert_to_tensor(np.array([0, number], kind)))
    return changed


def wrong_result(train: TrainSettings, setting: str, result: object, expected: str) -> UserError:
    """Return the error for a function that returns `result`."""
    name, shape = train.functions[setting], getattr(result, "shape", None)
    actual = type(result).__name__ if shape is None else f"values of shape {list(shape)}"
    return UserError(
        f"The function {name} returns {actual} instead of {expected}.",
        setting=setting,
        value=name,
        allowed=str(hooks.hook_of(setting, train.engine)),
        fix="fix the function",
    )


def _has_shape(tensor: Any, expected: tuple[int, ...]) -> bool:
    """Return whether a tensor has this shape; TensorFlow may not know dimensions in a graph."""
    try:
        shape = tuple(tensor.shape)
    except AttributeError:
        return False
    except ValueError:  # a tensor of unknown rank
        return True
    return len(shape) == len(expected) and all(
        size in (None, expected_size) for size, expected_size in zip(shape, expected, strict=True)
    )
