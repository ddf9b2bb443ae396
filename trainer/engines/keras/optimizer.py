"""Keras optimizers, configured by the section `train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from slipway.trainer.config import TrainSettings
from slipway.trainer.engines import hooks
from slipway.trainer.optimizers import OPTIMIZERS


def make(
    train: TrainSettings,
    variables: Sequence[keras.Variable],
    fused: Callable[..., keras.optimizers.Optimizer] | None = None,
    *,
    clip_norm: float | None = None,
) -> keras.optimizers.Optimizer:
    """Return the configured optimizer, not yet built; weight decay skips biases and 1-D variables.

    Args:
        train: The settings.
        variables: The trainable variables.
        fused: A class to use instead of Keras's own.
        clip_norm: The maximum global norm of the gradients, for an engine that leaves clipping to the optimizer.
    """
    row = OPTIMIZERS.get(train.optimizer)
    if row is None:
        return hooks.keras_optimizer(train, clip_norm)
    options: dict[str, Any] = {"learning_rate": train.learning_rate, "global_clipnorm": clip_norm}
    if row.momentum:
        options |= {"momentum": train.momentum, "nesterov": train.nesterov}
    if row.weight_decay or train.decay:
        options["weight_decay"] = train.decay
    made = (fused or getattr(keras.optimizers, row.keras))(**options)
    if train.decay:
        made.exclude_from_weight_decay(var_list=[variable for variable in variables if len(variable.shape) < 2])
    return made
