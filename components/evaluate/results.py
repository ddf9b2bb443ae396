"""Logging of an evaluation's results to KFP's ClassificationMetrics artifact."""

from __future__ import annotations

import logging
from typing import Protocol

from slipway.components.evaluate.evaluation import Evaluation

# Larger confusion matrices do not fit into an artifact's metadata; the report contains them in full.
LARGEST_MATRIX = 100
CURVE_POINTS = 100


class Classification(Protocol):
    """The methods of kfp's ClassificationMetrics that are used here."""

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
