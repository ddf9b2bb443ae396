"""The report's sections by task; the template of each is TASK.html."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slipway.components.evaluate.sections import classification, multilabel, regression
from slipway.components.evaluate.served_model import Measured
from slipway.core.manifest import Manifest, TaskName
from slipway.core.values import JsonObject

# From the data set, the model and the champion to what the task's template shows.
SECTIONS: Mapping[TaskName, Callable[[Manifest, Measured, Measured | None], JsonObject]] = {
    "classification": classification.content,
    "multilabel": multilabel.content,
    "regression": regression.content,
}
