"""The settings of the evaluation and its gate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from slipway.trainer.config import Settings


class GateSettings(Settings):
    """When a model is promoted: `metric` is at least `minimum` and beats the champion's by at least `margin`.

    `margin` may be negative, to accept a model that is that much worse. `loss` counts as better when lower: then
    `minimum` is the largest loss accepted.
    """

    metric: Literal["accuracy", "macro_f1", "loss"] = "accuracy"
    minimum: float | None = None
    margin: float = 0.0


class EvaluateSettings(Settings):
    """How to evaluate on the test split. `champion`: `registered` measures against the registered one, `none` does not.

    `worst_examples` is how many of the most confidently wrong images the report shows.
    """

    batch_size: PositiveInt = 256
    gate: GateSettings = GateSettings()
    champion: Literal["registered", "none"] = "registered"
    worst_examples: int = Field(default=24, ge=0, le=200)
