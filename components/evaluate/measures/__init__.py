"""Streaming measures of a model on a split; `EVALUATED` has what an evaluation needs to know of each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.components.evaluate.measures.base import Measures
from slipway.components.evaluate.measures.classification import ClassificationMeasures
from slipway.components.evaluate.measures.multilabel import MultilabelMeasures
from slipway.components.evaluate.measures.regression import RegressionMeasures
from slipway.core.manifest import Input, Manifest, TaskName


@dataclass(frozen=True)
class Evaluated:
    """How models of a task are evaluated.

    Attributes:
        label: The label's type in the records; it has one element for each name if `label_per_name`.
        measures: Creates the measures for a data set, a number of examples and a number of worst examples.
    """

    label: str
    measures: Callable[[Manifest, int, int], Measures[Any]]
    label_per_name: bool = False


EVALUATED: Mapping[TaskName, Evaluated] = {
    "classification": Evaluated(
        label="int64",
        measures=lambda data, examples, worst: ClassificationMeasures(data.classes, examples, worst),
    ),
    "multilabel": Evaluated(
        label="int64",
        measures=lambda data, examples, worst: MultilabelMeasures(data.classes, examples, worst),
        label_per_name=True,
    ),
    "regression": Evaluated(
        label="float32",
        measures=lambda data, examples, worst: RegressionMeasures(data.target or Input(kind="number"), examples, worst),
    ),
}
