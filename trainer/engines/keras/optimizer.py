"""Create the configured Keras optimizer."""

from __future__ import annotations

from typing import Any

import keras

from slipway.trainer.config import TrainSettings
from slipway.trainer.engines.precision import Precision


def make(train: TrainSettings, model: Any, precision: Precision) -> Any:
    """Return a built keras.optimizers.Optimizer for the model's variables.

    Weight decay skips biases and 1-D variables. In mixed_float16 it is a LossScaleOptimizer.
    """
    common: dict[str, Any] = {
        "learning_rate": train.learning_rate,
        "weight_decay": train.decay or None,
        "global_clipnorm": train.clip_norm,
    }
    match train.optimizer:
        case "adam":
            optimizer = keras.optimizers.Adam(**common)
        case "adamw":
            optimizer = keras.optimizers.AdamW(**{**common, "weight_decay": train.decay})
        case "sgd":
            optimizer = keras.optimizers.SGD(momentum=train.momentum, nesterov=train.nesterov, **common)
    if train.decay:
        flat = [variable for variable in model.trainable_variables if len(variable.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=flat)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer
