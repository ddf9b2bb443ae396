"""The table of tasks: what a network learns, and the metrics that a training run and an evaluation report.

This module imports no framework, so that the configuration and the gate can read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, get_args

from slipway.core.errors import UserError, nearest
from slipway.core.manifest import Manifest, TaskName

Direction = Literal["maximize", "minimize"]
# How a decision threshold is chosen on the validation split.
ThresholdRule = Literal["f1", "youden"]
TaskMetric = Literal["accuracy", "label_accuracy", "mae"]
# How a metric is computed from examples or their errors, which are not negative; decides its confidence interval.
# The explained fraction is 1 minus a ratio of mean squares.
Statistic = Literal["fraction", "mean", "mean square", "root mean square", "explained fraction"]


@dataclass(frozen=True)
class Metric:
    """A metric of the evaluation: its name in sentences, which values are better, its definition, and its statistic."""

    title: str
    direction: Direction
    meaning: str
    statistic: Statistic = "fraction"

    @property
    def lowest(self) -> float:
        """The lower end of its range."""
        return -math.inf if self.statistic == "explained fraction" else 0.0

    @property
    def highest(self) -> float:
        """The upper end of its range."""
        return 1.0 if self.statistic in ("fraction", "explained fraction") else math.inf


@dataclass(frozen=True)
class Task:
    """What a network learns.

    Attributes:
        head: What the network returns, [batch, outputs].
        metric: The metric that training steps and validations report beside the loss.
        direction: Which values of the metric are better.
        squashing: Activations that the last layer must not have, since the loss or the target's scale has no place
            for them.
        values: The output of the exported model with the predictions: [batch, names], or [batch] without `names`.
        names: The output with the name of each value, [batch, names]; None if there is one value per example.
        metrics: The metrics of the evaluation by name; the first is the gate's default.
    """

    head: str
    metric: TaskMetric
    direction: Direction
    squashing: tuple[str, ...]
    values: str
    names: str | None
    metrics: Mapping[str, Metric]


def _averaged(noun: str) -> dict[str, Metric]:
    return {
        "macro_f1": Metric("macro F1", "maximize", "harmonic mean of precision and recall, averaged"),
        "macro_precision": Metric(
            "macro precision", "maximize", f"fraction of the examples predicted as a {noun} that have it, averaged"
        ),
        "macro_recall": Metric(
            "macro recall", "maximize", f"fraction of the examples of a {noun} that are predicted as it, averaged"
        ),
        "macro_auc": Metric("macro AUC", "maximize", f"area under each {noun}'s ROC curve, averaged"),
        "macro_average_precision": Metric(
            "mean average precision", "maximize", f"area under each {noun}'s precision-recall curve, averaged"
        ),
    }


TASKS: dict[TaskName, Task] = {
    "classification": Task(
        head="one logit per class",
        metric="accuracy",
        direction="maximize",
        squashing=("softmax",),
        values="probabilities",
        names="classes",
        metrics={
            "accuracy": Metric(
                "accuracy", "maximize", "fraction of examples whose most probable class is the true class"
            ),
            "top_5_accuracy": Metric(
                "top-5 accuracy", "maximize", "fraction of examples whose true class is among the five most probable"
            ),
            "loss": Metric("loss", "minimize", "mean cross-entropy in nats", "mean"),
            **_averaged("class"),
            "expected_calibration_error": Metric(
                "expected calibration error", "minimize", "mean gap between confidence and accuracy (ECE)"
            ),
        },
    ),
    "multilabel": Task(
        head="one logit per label",
        metric="label_accuracy",
        direction="maximize",
        squashing=("softmax", "sigmoid"),
        values="probabilities",
        names="labels",
        metrics={
            **_averaged("label"),
            "micro_f1": Metric(
                "micro F1", "maximize", "harmonic mean of precision and recall over all labels together"
            ),
            "loss": Metric("loss", "minimize", "mean cross-entropy of a label in nats", "mean"),
            "label_accuracy": Metric("label accuracy", "maximize", "fraction of labels that are predicted correctly"),
            "exact_match": Metric(
                "exact match", "maximize", "fraction of examples of which all labels are predicted correctly"
            ),
        },
    ),
    "regression": Task(
        head="one number",
        metric="mae",
        direction="minimize",
        squashing=("softmax", "sigmoid", "relu"),
        values="prediction",
        names=None,
        metrics={
            "rmse": Metric(
                "RMSE", "minimize", "root of the mean squared error, in the target's unit", "root mean square"
            ),
            "mae": Metric("MAE", "minimize", "mean absolute error, in the target's unit", "mean"),
            "mse": Metric("MSE", "minimize", "mean squared error", "mean square"),
            "r2": Metric(
                "R²",
                "maximize",
                "fraction of the target's variance that the predictions explain",
                "explained fraction",
            ),
            "loss": Metric("loss", "minimize", "mean squared error of the standardized target", "mean square"),
        },
    ),
}

# Losses of the standardized target, of which mse is the usual one; quantile:0.9 has the level after the colon.
NAMED_LOSS_PATTERN = r"mse|mae|huber|quantile:0?\.\d*[1-9]\d*"
# The number of classes between which a threshold decides.
PAIR = 2
THRESHOLD_RULES: tuple[ThresholdRule, ...] = get_args(ThresholdRule)
# What `train.monitor` can be, and which values are better.
MONITORS: dict[str, Direction] = {"loss": "minimize", **{task.metric: task.direction for task in TASKS.values()}}


def in_words(metric: str) -> str:
    """Return a metric's name as in a sentence."""
    return "MAE" if metric == "mae" else metric.replace("_", " ")


def is_named_loss(loss: str | None) -> TypeGuard[str]:
    """Return whether a loss is one of Slipway's, by name, rather than a function."""
    return re.fullmatch(NAMED_LOSS_PATTERN, loss or "") is not None


def check_threshold(threshold: str | float | None, manifest: Manifest, setting: str, fix: str) -> None:
    """Raise UserError if a decision threshold is no such value, or set for another data set than one of two classes."""
    if threshold is None:
        return
    if threshold not in THRESHOLD_RULES and not (isinstance(threshold, float) and 0 < threshold < 1):
        raise UserError(
            f"{threshold!r} is not a decision threshold.",
            setting=setting,
            value=threshold,
            allowed=f"{', '.join(THRESHOLD_RULES)}, or a number between 0 and 1",
            nearest=nearest(str(threshold), THRESHOLD_RULES),
            fix=fix,
        )
    if manifest.task != "classification" or len(manifest.classes) != PAIR:
        raise UserError(
            f"A threshold decides between two classes; {manifest.name} has {len(manifest.classes)}, for the task "
            f"{manifest.task}.",
            setting=setting,
            value=threshold,
            allowed="only with the task classification and two classes",
            fix=fix,
        )


def check_outputs(shape: Any, manifest: Manifest) -> None:
    """Raise UserError if the outputs of one image do not have this shape."""
    classes = len(manifest.classes)
    if list(shape) != [1, classes]:
        raise UserError(
            f"The exported network returns [batch, {', '.join(map(str, list(shape)[1:]))}]; the data set has "
            f"{classes} classes.",
            allowed="a network from images to one output per class",
            fix=f"end in a layer of {classes} units",
        )
