"""Settings of the evaluation and its gate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from slipway.trainer.config import Settings


class GateSettings(Settings):
    """When a model is promoted: `metric` reaches `minimum` and beats the champion's value by at least `margin`."""

    metric: Literal["accuracy", "macro_f1", "loss"] = Field(
        default="accuracy", description="Metric on the test split that decides; for loss, lower is better."
    )
    minimum: float | None = Field(
        default=None, description="Smallest value accepted (for loss, the largest); null: any value."
    )
    margin: float = Field(
        default=0.0,
        description="Smallest improvement over the champion; a negative value accepts a slightly worse model.",
    )


class EvaluateSettings(Settings):
    """How to evaluate the model on the test split."""

    batch_size: PositiveInt = Field(default=256, description="Examples per batch. Does not affect the metrics.")
    gate: GateSettings = Field(default=GateSettings(), description="When a model is promoted.")
    champion: Literal["registered", "none"] = Field(
        default="registered",
        description="Model to compare with: the registered champion, or none (only `gate.minimum` decides).",
    )
    worst_examples: int = Field(
        default=24,
        ge=0,
        le=200,
        description="Number of misclassified images in the report, most confident first.",
    )
