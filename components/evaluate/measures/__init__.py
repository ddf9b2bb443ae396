"""Streaming measures of a model on a split; `EVALUATED` has those of each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.base import Measures
from slipway.components.evaluate.measures.classification import ClassificationMeasures
from slipway.components.evaluate.measures.multilabel import MultilabelMeasures
from slipway.components.evaluate.measures.regression import RegressionMeasures
from slipway.core.manifest import Manifest, TaskName

EVALUATED: Mapping[TaskName, type[Measures[Any]]] = {
    "classification": ClassificationMeasures,
    "multilabel": MultilabelMeasures,
    "regression": RegressionMeasures,
}


# The baseline's metrics that predicting all labels can improve, other than recall, of which that has all.
OF_ALL_LABELS = ("macro_f1", "macro_precision", "micro_f1")


class Baseline:
    """The trivial model, measured beside the others: for every example, the training split's frequencies or mean.

    It predicts the most frequent class, the labels that most examples have, or the mean target (the geometric mean if
    the network learns its logarithm). Its precision and F1 of
    labels are those of all labels for every example, if that is better: with rare labels, the frequencies predict none.
    """

    def __init__(self, data: Manifest, examples: int) -> None:
        train = data.splits.get("train")
        self._constants: list[NDArray[np.float64]] = []
        if data.task == "regression" and data.target is not None and data.target.mean:
            mean = np.array(data.target.mean[0])
            self._constants = [np.exp(mean) if data.target.logarithmic else mean]
        elif train and train.examples and data.classes and set(data.classes) <= train.classes.keys():
            self._constants = [np.array([train.classes[name] for name in data.classes]) / train.examples]
            self._constants += [np.ones(len(data.classes))] if data.task == "multilabel" else []
        self._measures = [EVALUATED[data.task].of(data, examples) for _ in self._constants]

    def update(self, labels: NDArray[np.generic]) -> None:
        """Accumulate a batch of the records' labels."""
        for measures, constant in zip(self._measures, self._constants, strict=True):
            values = np.broadcast_to(constant, (len(labels), *constant.shape))
            measures.update(measures.predictions(labels, values, np.arange(constant.size)))

    def metrics(self) -> dict[str, float]:
        """Return its metrics, {} without a training split; a constant is calibrated, which says nothing."""
        metrics, *rest = [measures.metrics() for measures in self._measures] or [{}]
        for other in rest:
            metrics |= {name: max(metrics[name], other[name]) for name in OF_ALL_LABELS if name in metrics}
        return {
            name: value for name, value in metrics.items() if name not in ("examples", "expected_calibration_error")
        }
