"""Contract test: a few test examples are predicted as a request would be, from JSON to JSON, and compared.

The other side is what the trained network itself predicted on them when it was exported; for a model of a custom
program, what the evaluation predicts from the records' values.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.served_model import Batch
from slipway.serving import instances
from slipway.serving.model import Model, read_json
from slipway.trainer.export.examples import FILE_NAME

TOLERANCE = 1e-4


def fault(model: Model, sample: Batch) -> str | None:
    """Return the sentence that says why a model cannot be served; None if it can."""
    try:
        served = _served(model, sample)
    except Exception as error:  # of the serving code or of any library
        logging.exception("predicting with %s through the serving code", model.folder)
        return f"The model cannot be served: a request with {_key(sample, 0)} fails: {instances.sentence(error)}."
    trained, whose = _expected(model, sample)
    for index, (ours, theirs) in enumerate(zip(served, trained, strict=True)):
        if np.shape(ours) != np.shape(theirs) or not np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE):
            difference = np.abs(ours - theirs).max() if np.shape(ours) == np.shape(theirs) else np.inf
            return (
                f"The model cannot be served: the answer to a request with {_key(sample, index)} differs by "
                f"{difference:.2g} from {whose}, more than {TOLERANCE:g}."
            )
    return None


def _served(model: Model, sample: Batch) -> list[NDArray[np.float64]]:
    """Return the predictions of a request with the examples."""
    rows = [
        {name: _in_json(each.kind, sample.features[name][index].numpy()) for name, each in model.inputs.items()}
        for index in range(len(sample.keys))
    ]
    given = instances.arrays(model, instances.read(json.dumps({"instances": rows}).encode()))
    outputs = model.predict_padded(given, len(rows))
    answers = json.loads(json.dumps({"predictions": instances.predictions(model, outputs)}))["predictions"]
    return [np.array(answer[model.values], np.float64) for answer in answers]


def _expected(model: Model, sample: Batch) -> tuple[list[NDArray[np.float64]], str]:
    """Return the predictions to compare with, and whose they are."""
    keys = [key.decode(errors="replace") for key in sample.keys]
    stored = read_json(model.folder / FILE_NAME)
    values = dict(zip(stored.get("keys", ()), stored.get("values", ()), strict=False))
    if all(key in values for key in keys):
        return [np.array(values[key], np.float64) for key in keys], "the trained network's prediction"
    assert model.values is not None  # the evaluation has loaded it for a task
    return list(model.predict(sample.features)[model.values].astype(np.float64)), "the evaluation's prediction"


def _key(sample: Batch, index: int) -> str:
    return sample.keys[index].decode(errors="replace")


def _in_json(kind: str, value: Any) -> Any:
    """Return a record's value as JSON has it."""
    if kind == "image":
        return instances.of_image(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return value.tolist()
    return [_in_json(kind, one) for one in value] if isinstance(value, np.ndarray) else value.decode()
