"""The table of Keras optimizers, configured by the section `train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import keras

from slipway.trainer.config import TrainSettings
from slipway.trainer.engines import hooks

# The optimizer of each value of `train.optimizer`.
OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "sgd": keras.optimizers.SGD,
}


def make(
    train: TrainSettings,
    variables: Sequence[keras.Variable],
    optimizers: Mapping[str, Callable[..., keras.optimizers.Optimizer]] = OPTIMIZERS,
    *,
    clip_norm: float | None = None,
) -> keras.optimizers.Optimizer:
    """Return the configured optimizer, not yet built; weight decay skips biases and 1-D variables.

    Args:
        train: The settings.
        variables: The trainable variables.
        optimizers: The table to choose from.
        clip_norm: The maximum global norm of the gradients, for an engine that leaves clipping to the optimizer.
    """
    if train.optimizer not in optimizers:
        return hooks.keras_optimizer(train, clip_norm)
    options: dict[str, float | bool | None] = {"learning_rate": train.learning_rate, "global_clipnorm": clip_norm}
    if train.optimizer == "sgd":
        options |= {"momentum": train.momentum, "nesterov": train.nesterov}
    if train.optimizer == "adamw" or train.decay:
        options["weight_decay"] = train.decay
    made = optimizers[train.optimizer](**options)
    if train.decay:
        made.exclude_from_weight_decay(var_list=[variable for variable in variables if len(variable.shape) < 2])
    return made
