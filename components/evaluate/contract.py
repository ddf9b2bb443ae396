"""Contract test: a few test examples are predicted as a request would be, from JSON to JSON, and compared.

The other side is what the trained network itself predicted on them when it was exported; for a model of a custom
program, what the evaluation predicts from the records' values. A model that the user's function loads is tested with
the instances that its program has written, if any.
"""

from __future__ import annotations

import json
import logging
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measured import Batch
from slipway.serving import instances
from slipway.serving.model import INSTANCES, PREDICTIONS, Model, load, read_json
from slipway.trainer.export.examples import FILE_NAME, in_json

TOLERANCE = 1e-4


def fault(model: Model, sample: Batch) -> str | None:
    """Return the sentence that says why a model cannot be served; None if it can."""
    try:
        served = _served(model, sample)
    except Exception as error:  # of the serving code or of any library
        logging.exception("predicting with %s through the serving code", model.folder)
        return f"The model cannot be served: a request with {sample.key(0)} fails: {instances.sentence(error)}."
    trained, whose = _expected(model, sample)
    for index, (actual, expected) in enumerate(zip(served, trained, strict=True)):
        if np.shape(actual) != np.shape(expected) or not np.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE):
            difference = np.abs(actual - expected).max() if np.shape(actual) == np.shape(expected) else np.inf
            return (
                f"The model cannot be served: the answer to a request with {sample.key(index)} differs by "
                f"{difference:.2g} from {whose}, more than {TOLERANCE:g}."
            )
    return None


def module_fault(folder: Path, module: str) -> str | None:
    """Return the sentence that says why a model that the function `module` loads cannot be served; None if it can.

    It is loaded. If its program has written instances to examples.json, they are predicted; if it has written
    predictions as well, these are compared.

    Raises:
        UserError: The function does not exist, cannot be called with the folder, or fails.
    """
    model, stored = load(folder, module), read_json(folder / FILE_NAME)
    if not stored.get(INSTANCES):
        return None
    try:
        inputs = instances.arrays(model, instances.read(json.dumps({INSTANCES: stored[INSTANCES]}).encode()))
        answers = json.loads(json.dumps(instances.predictions(model, model.predict(inputs))))
    except Exception as error:  # of the user's function or of any library
        logging.exception("predicting with %s", module)
        named = f"{type(error).__name__}: {instances.sentence(error)}"
        return f"The model cannot be served: {module} fails with the instances in {FILE_NAME}: {named}."
    for index, (actual, expected) in enumerate(zip_longest(answers, stored.get(PREDICTIONS, answers))):
        if not _alike(actual, expected):
            return (
                f"The model cannot be served: {module} does not return the prediction {index} in {FILE_NAME}: it "
                f"returns {json.dumps(actual):.200}, not {json.dumps(expected):.200}."
            )
    return None


def _alike(actual: object, expected: object) -> bool:
    """Return whether two JSON values are the same, with numbers that may differ by the tolerance."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(_alike(value, expected[name]) for name, value in actual.items())
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_alike, actual, expected))
    if isinstance(actual, int | float) and isinstance(expected, int | float):
        return bool(np.isclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))
    return actual == expected


def _served(model: Model, sample: Batch) -> list[NDArray[np.float64]]:
    """Return the predictions of a request with the examples."""
    rows = [
        {name: in_json(field.kind, sample.features[name][index].numpy()) for name, field in model.inputs.items()}
        for index in range(len(sample.keys))
    ]
    inputs = instances.arrays(model, instances.read(json.dumps({"instances": rows}).encode()))
    outputs = model.predict_padded(inputs)
    answers = json.loads(json.dumps({"predictions": instances.predictions(model, outputs)}))["predictions"]
    return [np.array(answer[model.values], np.float64) for answer in answers]


def _expected(model: Model, sample: Batch) -> tuple[list[NDArray[np.float64]], str]:
    """Return the predictions to compare with, and whose they are."""
    keys = [sample.key(index) for index in range(len(sample.keys))]
    stored = read_json(model.folder / FILE_NAME)
    values = dict(zip(stored.get("keys", ()), stored.get("values", ()), strict=False))
    if all(key in values for key in keys):
        return [np.array(values[key], np.float64) for key in keys], "the trained network's prediction"
    assert model.values is not None  # the evaluation has loaded it for a task
    return list(model.predict(sample.features)[model.values].astype(np.float64)), "the evaluation's prediction"
