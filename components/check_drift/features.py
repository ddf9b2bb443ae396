"""The features of examples that are compared: the inputs of a model, and what it predicts.

Predictions show what inputs alone do not, such as other objects in photographs of the same brightness (Rabanser et al.,
Failing Loudly, NeurIPS 2019).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.listing.plan import identity
from slipway.core import locked, manifest
from slipway.core.errors import UserError
from slipway.core.manifest import FILE_NAME
from slipway.core.noise import without_native_stderr
from slipway.serving import instances

if TYPE_CHECKING:
    from slipway.serving.model import Arrays, Model

# Photographs are compared at this size at most, in pixels.
SIZE = 64
# More outputs, or elements of an input, are summarized by their greatest, or their mean.
MAX_ELEMENTS = 20
READ_TOGETHER = 256
HELD_OUT = ("validation", "test")

# The values of a feature: float64, NaN if it is missing, or texts, of which only equality counts.
Values = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """The features of some examples by name, and how many were read and could not be."""

    features: dict[str, Values]
    examples: int
    failed: int


def reference_in(store: Path, model: Model) -> Path | None:
    """Return the folder of the data set that a model was trained on, in a store; None if the store does not have it."""
    name = identity(str(model.description.get("data_fingerprint")))
    return next((path.parent for path in store.glob(f"*/{name}/{FILE_NAME}")), None)


def of_split(model: Model, folder: Path, most: int, seed: int) -> Sample:
    """Return the features of up to about `most` examples of a data set that the model was not trained on.

    Raises:
        UserError: There are none, or the model does not run.
    """
    from slipway.components.evaluate.evaluate import batches
    from slipway.serving.model import import_tensorflow

    import_tensorflow()
    data = manifest.read(folder)
    names = [name for name in HELD_OUT if name in data.splits and locked.folder_of(folder, name) == folder]
    shards = [shard for name in names for shard in data.splits[name].shards]
    manifest.verify(folder, shards)
    draws = np.random.default_rng(seed)
    share = min(1.0, most / max(1, sum(shard.examples for shard in shards)))
    feature_batches, failed = list[dict[str, Values]](), 0
    stored = model.matched(data.signature)
    with without_native_stderr():
        for batch in batches([folder / shard.file for shard in shards], data, READ_TOGETHER):
            chosen = np.flatnonzero(draws.random(len(batch.keys)) < share)
            inputs = {name: np.asarray(batch.features[served])[chosen] for name, served in stored.items()}
            features, without = of_examples(model, inputs, len(chosen))
            feature_batches += features
            failed += without
    return sample_of(feature_batches, failed)


def of_examples(model: Model, arrays: Arrays, examples: int) -> tuple[list[dict[str, Values]], int]:
    """Return the features of the examples with a prediction, as a batch if there are any, and how many have none.

    Raises:
        UserError: The model does not run.
    """
    if not examples:
        return [], 0
    try:
        outputs, faults = instances.outputs_of(model, arrays, examples, model.predict)
    except Exception as error:  # a failing model may raise anything
        raise UserError(f"The model in {model.folder} does not run: {instances.sentence(error)}.") from error
    kept = [index for index in range(examples) if index not in faults]
    inputs = {name: values[kept] for name, values in arrays.items()}
    return [{**of_inputs(model, inputs), **of_outputs(model, outputs)}] if kept else [], len(faults)


def sample_of(batches: Sequence[dict[str, Values]], failed: int) -> Sample:
    """Return the features of batches as one sample.

    Raises:
        UserError: There are none.
    """
    if not batches:
        raise UserError("There is no example that the model can predict on.", setting="DATA", value=None)
    features = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return Sample(features, len(next(iter(features.values()))), failed)


def of_inputs(model: Model, arrays: Arrays) -> dict[str, Values]:
    """Return the features of inputs. Dates are none: new data always have other ones."""
    features: dict[str, Values] = {}
    for signature, values in arrays.items():
        name, kind = model.source(signature), model.inputs[signature].kind
        if kind == "image":
            features |= {f"{name}: {statistic}": column for statistic, column in _of_images(values).items()}
        elif kind == "category":
            features[name] = np.array([_text(value) for value in values.ravel()])
        elif kind == "text":
            features[f"{name}: words"] = np.array([len(_text(value).split()) for value in values.ravel()], float)
        elif kind in ("number", "integer"):
            elements = values.astype(float).reshape(len(values), -1)
            count = elements.shape[1]
            if count == 1:
                features[name] = elements[:, 0]
            elif count <= MAX_ELEMENTS:
                features |= {f"{name}: {number}": elements[:, number] for number in range(count)}
            else:
                features |= {f"{name}: mean": elements.mean(axis=1), f"{name}: deviation": elements.std(axis=1)}
    return features


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _of_images(encoded: Values) -> dict[str, Values]:
    from PIL import Image, ImageOps

    rows = []
    for content in encoded:
        with Image.open(io.BytesIO(content)) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
        image.thumbnail((SIZE, SIZE))
        pixels = np.asarray(image, float) / 255
        gray = pixels.mean(axis=2)
        steps = [np.abs(np.diff(gray, axis=axis)) for axis in (0, 1)]
        sharpness = sum(step.sum() for step in steps) / max(1, sum(step.size for step in steps))
        color = (pixels.max(axis=2) - pixels.min(axis=2)).mean()
        rows.append((gray.mean(), gray.std(), sharpness, color))
    names = ("brightness", "contrast", "sharpness", "saturation")
    return dict(zip(names, np.array(rows, float).T, strict=True))


def of_outputs(model: Model, outputs: dict[str, Values]) -> dict[str, Values]:
    """Return the features of predictions: the probability of each class or label, or the number."""
    if model.values is None:
        return {}
    values = outputs[model.values].astype(float).reshape(len(outputs[model.values]), -1)
    names = model.names or ["value"]
    if len(names) > MAX_ELEMENTS:
        best = [names[index] for index in values.argmax(axis=1)]
        return {"prediction: class": np.array(best), "prediction: probability": values.max(axis=1)}
    if len(names) == 2 and model.task == "classification":  # the other one's is the rest
        return {f"prediction: {names[1]}": values[:, 1]}
    return {f"prediction: {name}": values[:, number] for number, name in enumerate(names)}
