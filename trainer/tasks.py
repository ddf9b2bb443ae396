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


_AVERAGED: dict[str, Metric] = {
    "macro_precision": Metric(
        "macro precision", "maximize", "fraction of the examples predicted as a class that belong to it, averaged"
    ),
    "macro_recall": Metric(
        "macro recall", "maximize", "fraction of a class's examples that are predicted as it, averaged"
    ),
    "macro_auc": Metric("macro AUC", "maximize", "area under each class's ROC curve, averaged"),
    "macro_average_precision": Metric(
        "mean average precision", "maximize", "area under each class's precision-recall curve, averaged"
    ),
}
_MACRO_F1 = Metric("macro F1", "maximize", "harmonic mean of precision and recall, averaged over the classes")
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
            "macro_f1": _MACRO_F1,
            **_AVERAGED,
            "expected_calibration_error": Metric(
                "expected calibration error", "minimize", "mean gap between confidence and accuracy (ECE)"
            ),
        },
    ),
    "multilabel": Task(
        head="one logit per label",
        figure="label_accuracy",
        metrics={
            "macro_f1": _MACRO_F1,
            "micro_f1": Metric(
                "micro F1", "maximize", "harmonic mean of precision and recall over all labels together"
            ),
            "loss": Metric("loss", "minimize", "mean cross-entropy of a label in nats"),
            **_AVERAGED,
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
