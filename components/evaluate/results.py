"""An evaluation's figures in the form that a pipeline's artifacts take."""

from __future__ import annotations

import logging
from typing import Protocol

from slipway.components.evaluate.evaluation import Evaluation

# A confusion matrix of more classes is too large for an artifact's metadata; the report has it whole.
LARGEST_MATRIX = 100
CURVE_POINTS = 100


class Classification(Protocol):
    """What is used of kfp's ClassificationMetrics."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None: ...
    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None: ...


def log_classification(evaluation: Evaluation, classification: Classification) -> None:
    """Log the model's confusion matrix and its ROC curve, averaged over the classes at each threshold."""
    classes, measures = evaluation.manifest.classes, evaluation.model.measures
    if len(classes) <= LARGEST_MATRIX:
        classification.log_confusion_matrix(classes, measures.confusion.counts[:, :-1].tolist())
    else:
        logging.info("%d classes: the confusion matrix is in the report only", len(classes))
    curve = measures.scores.average_curve()
    if curve is not None:
        curve = curve.thinned(CURVE_POINTS)
        classification.log_roc_curve(
            curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist(), curve.thresholds.tolist()
        )
