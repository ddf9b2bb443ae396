"""The table of tasks: what a network learns, and the metrics that a training run and an evaluation report.

This module imports no framework, so that the configuration and the gate can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slipway.core.manifest import TaskName

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Metric:
    """A metric of the evaluation: its name in sentences, and which values are better."""

    title: str
    direction: Direction


@dataclass(frozen=True)
class Task:
    """What a network learns.

    Attributes:
        head: What the network returns, [batch, outputs].
        figure: The metric that training steps and validations report beside the loss.
        metrics: The metrics of the evaluation by name; the first is the gate's default.
    """

    head: str
    figure: str
    metrics: Mapping[str, Metric]


LOSS = Metric("loss", "minimize")
TASKS: dict[TaskName, Task] = {
    "classification": Task(
        head="one logit per class",
        figure="accuracy",
        metrics={
            "accuracy": Metric("accuracy", "maximize"),
            "macro_f1": Metric("macro F1", "maximize"),
            "top5_accuracy": Metric("top-5 accuracy", "maximize"),
            "loss": LOSS,
        },
    ),
    "multilabel": Task(
        head="one logit per label",
        figure="label_accuracy",
        metrics={
            "macro_f1": Metric("macro F1", "maximize"),
            "micro_f1": Metric("micro F1", "maximize"),
            "macro_auc": Metric("macro AUC", "maximize"),
            "loss": LOSS,
        },
    ),
    "regression": Task(
        head="one number",
        figure="mae",
        metrics={
            "rmse": Metric("RMSE", "minimize"),
            "mae": Metric("MAE", "minimize"),
            "mse": Metric("MSE", "minimize"),
            "r2": Metric("R²", "maximize"),
            "loss": LOSS,
        },
    ),
}
