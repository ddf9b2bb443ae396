"""Settings of the evaluation and its gate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from slipway.trainer.config import Settings


class GateSettings(Settings):
    """When a model is promoted: `metric` is at least `minimum` and beats the champion's by at least `margin`.

    A negative `margin` accepts a model that is slightly worse. For `loss`, lower is better and `minimum` is the largest
    loss accepted.
    """

    metric: Literal["accuracy", "macro_f1", "loss"] = "accuracy"
    minimum: float | None = None
    margin: float = 0.0


class EvaluateSettings(Settings):
    """How to evaluate on the test split. With `champion` = `registered`, the model must beat the registered champion.

    `worst_examples` is the number of misclassified images in the report, most confident first.
    """

    batch_size: PositiveInt = 256
    gate: GateSettings = GateSettings()
    champion: Literal["registered", "none"] = "registered"
    worst_examples: int = Field(default=24, ge=0, le=200)
