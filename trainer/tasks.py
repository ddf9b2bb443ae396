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
    """A metric of the evaluation: its name in sentences, which values are better, and its definition."""

    title: str
    direction: Direction
    meaning: str


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


def _averaged(each: str) -> dict[str, Metric]:
    """Return the metrics of each class or label that are averaged over them."""
    return {
        "macro_f1": Metric("macro F1", "maximize", "harmonic mean of precision and recall, averaged"),
        "macro_precision": Metric(
            "macro precision", "maximize", f"fraction of the examples predicted as a {each} that have it, averaged"
        ),
        "macro_recall": Metric(
            "macro recall", "maximize", f"fraction of the examples of a {each} that are predicted as it, averaged"
        ),
        "macro_auc": Metric("macro AUC", "maximize", f"area under each {each}'s ROC curve, averaged"),
        "macro_average_precision": Metric(
            "mean average precision", "maximize", f"area under each {each}'s precision-recall curve, averaged"
        ),
    }


TASKS: dict[TaskName, Task] = {
    "classification": Task(
        head="one logit per class",
        figure="accuracy",
        metrics={
            "accuracy": Metric(
                "accuracy", "maximize", "fraction of examples whose most probable class is the true class"
            ),
            "top_5_accuracy": Metric(
                "top-5 accuracy", "maximize", "fraction of examples whose true class is among the five most probable"
            ),
            "loss": Metric("loss", "minimize", "mean cross-entropy in nats"),
            **_averaged("class"),
            "expected_calibration_error": Metric(
                "expected calibration error", "minimize", "mean gap between confidence and accuracy (ECE)"
            ),
        },
    ),
    "multilabel": Task(
        head="one logit per label",
        figure="label_accuracy",
        metrics={
            **_averaged("label"),
            "micro_f1": Metric(
                "micro F1", "maximize", "harmonic mean of precision and recall over all labels together"
            ),
            "loss": Metric("loss", "minimize", "mean cross-entropy of a label in nats"),
            "label_accuracy": Metric("label accuracy", "maximize", "fraction of labels that are predicted correctly"),
            "exact_match": Metric(
                "exact match", "maximize", "fraction of examples of which all labels are predicted correctly"
            ),
        },
    ),
    "regression": Task(
        head="one number",
        figure="mae",
        metrics={
            "rmse": Metric("RMSE", "minimize", "root of the mean squared error, in the target's unit"),
            "mae": Metric("MAE", "minimize", "mean absolute error, in the target's unit"),
            "mse": Metric("MSE", "minimize", "mean squared error"),
            "r2": Metric("R²", "maximize", "fraction of the target's variance that the predictions explain"),
            "loss": Metric("loss", "minimize", "mean squared error of the standardized target"),
        },
    ),
}
