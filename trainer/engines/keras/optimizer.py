"""Keras optimizers, configured by the section `train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings
from slipway.trainer.engines import hooks
from slipway.trainer.optimizers import OPTIMIZERS, Optimizer


def make(
    train: TrainSettings,
    variables: Sequence[keras.Variable],
    fused: Callable[..., keras.optimizers.Optimizer] | None = None,
    *,
    clips: bool = False,
) -> keras.optimizers.Optimizer:
    """Return the configured optimizer, not yet built; weight decay skips biases and 1-D variables.

    Args:
        train: The settings.
        variables: The trainable variables.
        fused: A class to use instead of Keras's own.
        clips: Whether the optimizer clips the gradients; otherwise, the engine's step does.
    """
    row = OPTIMIZERS.get(train.optimizer)
    optimizer = (
        _custom(train) if row is None else (fused or getattr(keras.optimizers, row.keras))(**_options(train, row))
    )
    if clips and train.clip_norm is not None:
        optimizer.global_clipnorm = train.clip_norm
    if train.decay:
        optimizer.exclude_from_weight_decay(var_list=[variable for variable in variables if len(variable.shape) < 2])
    return optimizer


def _options(train: TrainSettings, row: Optimizer) -> dict[str, Any]:
    options: dict[str, Any] = {"learning_rate": train.learning_rate}
    if row.momentum:
        options |= {"momentum": train.momentum, "nesterov": train.nesterov}
    if row.weight_decay or train.decay:
        options["weight_decay"] = train.decay
    return options


def _custom(train: TrainSettings) -> keras.optimizers.Optimizer:
    """Return the optimizer of the function `train.optimizer`, not yet built.

    Raises:
        UserError: The function does not exist, raises, or does not return an optimizer with a plain learning rate.
    """
    setting = "train.optimizer"
    optimizer = hooks.load(train, setting)(train.learning_rate)
    if not isinstance(optimizer, keras.optimizers.Optimizer) or isinstance(
        optimizer, keras.optimizers.LossScaleOptimizer
    ):
        raise hooks.wrong_result(train, setting, optimizer, "a Keras optimizer")
    if not isinstance(optimizer._learning_rate, keras.Variable):
        raise UserError(
            f"The optimizer of {train.optimizer} has a schedule, but the trainer sets its learning rate at each step.",
            setting=setting,
            value=train.optimizer,
            allowed="an optimizer with the learning rate that the function receives",
            fix="pass learning_rate to the optimizer, and configure train.schedule",
        )
    return optimizer
