"""Drift: whether new data differ from those that a model was evaluated on.

Each input and each prediction is a feature, whose distance between both samples is compared with the distances between
random divisions of all their examples. The threshold is the same for all features, in standard deviations of each one's
distances, so that the stated rate of false alarms is that of all together (the maxT procedure of Westfall and Young,
1993). Predictions find what inputs alone do not show, such as other objects in photographs of the same brightness
(Rabanser et al., Failing Loudly, NeurIPS 2019).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipway.core.errors import UserError
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from slipway.pipelines.prediction.parts import Chunk, Part
    from slipway.serving.model import Model

# Number of random divisions, beside the observed one.
DIVISIONS = 999
# Photographs are compared at this size at most, in pixels.
SIZE = 64
# More outputs, or elements of an input, are summarized by their greatest, or their mean.
MAX_ELEMENTS = 20
READ_TOGETHER = 256
HELD_OUT = ("validation", "test")
# Measures of distance. The greatest difference of both distribution functions (Kolmogorov and Smirnov), of texts the
# total variation: a share of the examples. The area between both functions (Wasserstein), which sees a few examples far
# away: in standard deviations.
SHARES, DEVIATIONS = "of the examples", "standard deviations"

# The values of a feature: float64, NaN if it is missing, or texts, of which only equality counts.
Values = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """The features of some examples by name, and how many were read and could not be."""

    features: dict[str, Values]
    examples: int
    failed: int


@dataclass(frozen=True)
class Shift:
    """How much a feature of new data differs from that of the reference.

    Attributes:
        feature: Its name.
        measure: The measure by which the difference is clearest: `SHARES` or `DEVIATIONS`.
        distance: The distance.
        threshold: What it exceeds if the data have drifted.
        before: The feature in the reference, in a few words.
        now: The same of the new data.
    """

    feature: str
    measure: str
    distance: float
    threshold: float
    before: str
    now: str

    @property
    def ratio(self) -> float:
        """The distance divided by its threshold."""
        return self.distance / self.threshold if self.threshold > 0 else 0.0

    @property
    def has_drifted(self) -> bool:
        """Whether the difference is larger than chance explains."""
        return self.distance > self.threshold


def reference_of(model: Model, store: Path) -> Path:
    """Return the folder of the data set that a model was trained on, in a store on this machine.

    Raises:
        UserError: The store does not have it.
    """
    from slipway.components.prepare_data.listing.plan import identity
    from slipway.core.manifest import FILE_NAME

    name = identity(str(model.description.get("data_fingerprint")))
    found = [path.parent for path in store.glob(f"*/{name}/{FILE_NAME}")]
    if not found:
        raise UserError(
            f"The data set {name}, on which the model in {model.folder} was trained, is not in {store}.",
            setting="--reference",
            value=None,
            allowed="data like those that the model was evaluated on, in any format of slipway predict",
            fix="--reference DATA, or --store FOLDER",
        )
    return found[0]


def held_out(folder: Path) -> list[Part]:
    """Return the examples of a data set that the model was not trained on."""
    from slipway.core import manifest as manifests
    from slipway.pipelines.prediction.inputs import listed

    splits = manifests.read(folder).splits
    return [part for name in HELD_OUT if name in splits for part in listed([str(folder)], name)]


def measured(model: Model, parts: Sequence[Part], most: int, seed: int) -> Sample:
    """Return the features of `most` examples, which are drawn from the parts.

    Raises:
        UserError: There are no examples, or the model does not run.
    """
    from slipway.pipelines.prediction import prediction

    divided = [piece for part in parts for piece in part.divided(READ_TOGETHER)]
    total = sum(piece.examples or 0 for piece in divided)
    draws, share = np.random.default_rng(seed), min(1.0, most / max(1, total))
    found: list[dict[str, Values]] = []
    failed = 0
    with prediction.quiet(model):
        for chunk in (chunk for piece in divided for chunk in piece.read(model, READ_TOGETHER)):
            drawn = _drawn(chunk, draws.random(len(chunk.keys)) < share)
            for answers in prediction.predict(model, iter([drawn] if drawn.keys else [])):
                kept = [index for index in range(len(answers)) if index not in answers.errors]
                failed += len(answers.errors)
                if kept:
                    inputs = {name: values[kept] for name, values in drawn.arrays.items()}
                    found.append({**_of_inputs(model, inputs), **_of_outputs(model, answers.outputs)})
    if not found:
        raise UserError("There is no example that the model can predict on.", setting="DATA", value=None)
    features = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    return Sample(features, len(next(iter(features.values()))), failed)


def _drawn(chunk: Chunk, chosen: NDArray[np.bool_]) -> Chunk:
    """Return the chosen examples of a chunk, of those without a fault."""
    from slipway.pipelines.prediction.parts import Chunk

    sound = np.array([index not in chunk.faults for index in range(len(chunk.keys))], bool)
    kept = chosen[sound]
    keys = [key for key, is_kept in zip(chunk.keys, chosen & sound, strict=True) if is_kept]
    return Chunk(keys, {name: np.asarray(values)[kept] for name, values in chunk.arrays.items()}, {})


def _of_inputs(model: Model, arrays: dict[str, Values]) -> dict[str, Values]:
    """Return the features of inputs. Dates are none: new data always have other ones."""
    from slipway.core.manifest import signature_name

    names = {signature_name(name, each): name for name, each in model.stored_inputs.items()}
    found: dict[str, Values] = {}
    for signature, values in arrays.items():
        name, kind = names.get(signature, signature), model.inputs[signature].kind
        if kind == "image":
            found |= {f"{name}: {what}": one for what, one in _of_images(values).items()}
        elif kind == "category":
            found[name] = np.array([_text(value) for value in values.ravel()])
        elif kind == "text":
            found[f"{name}: words"] = np.array([len(_text(value).split()) for value in values.ravel()], float)
        elif kind in ("number", "integer"):
            elements = values.astype(float).reshape(len(values), -1)
            count = elements.shape[1]
            if count == 1:
                found[name] = elements[:, 0]
            elif count <= MAX_ELEMENTS:
                found |= {f"{name}: {number}": elements[:, number] for number in range(count)}
            else:
                found |= {f"{name}: mean": elements.mean(axis=1), f"{name}: deviation": elements.std(axis=1)}
    return found


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


def _of_outputs(model: Model, outputs: dict[str, Values]) -> dict[str, Values]:
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


@dataclass
class Divisions:
    """Divisions of the examples of both samples into samples of the same sizes, the observed one first."""

    before: int
    now: int
    seed: int
    is_new: NDArray[np.bool_] = field(init=False)  # [divisions, examples]

    def __post_init__(self) -> None:
        observed = np.arange(self.before + self.now) >= self.before
        repeated = np.tile(observed, (DIVISIONS, 1))
        shuffled = np.random.default_rng(self.seed).permuted(repeated, axis=1)
        self.is_new = np.vstack([observed, shuffled])

    def distances(self, values: Values) -> dict[str, NDArray[np.float64]]:
        """Return a feature's distances in each division, [divisions], by the name of the measure."""
        if values.dtype.kind == "U":
            return {SHARES: self._of_texts(values)}
        return dict(zip((SHARES, DEVIATIONS), self._of_numbers(values), strict=True))

    def _of_numbers(self, values: Values) -> NDArray[np.float64]:
        order = np.argsort(values, kind="stable")  # missing ones are last
        ordered = values[order]
        ends = np.append((ordered[1:] != ordered[:-1]) & ~np.isnan(ordered[:-1]), True)
        counted = np.flatnonzero(ends) + 1
        gaps = np.nan_to_num(np.diff(ordered[ends], append=np.nan)) / (np.nanstd(values) or 1)
        found = np.empty((2, len(self.is_new)))
        for number, division in enumerate(self.is_new):
            new = np.cumsum(division[order])[ends]
            apart = np.abs(new / self.now - (counted - new) / self.before)
            found[:, number] = apart.max(), apart @ gaps
        return found

    def _of_texts(self, values: Values) -> NDArray[np.float64]:
        _, which = np.unique(values, return_inverse=True)
        counts = np.bincount(which)
        found = np.empty(len(self.is_new))
        for number, division in enumerate(self.is_new):
            new = np.bincount(which[division], minlength=len(counts))
            found[number] = np.abs(new / self.now - (counts - new) / self.before).sum() / 2
        return found


def compare(before: Sample, now: Sample, *, false_alarms: float, seed: int = 0) -> list[Shift]:
    """Return the shift of each feature, those that have drifted first.

    Args:
        before: The reference.
        now: The new data.
        false_alarms: How often any feature of data that have not drifted is said to have.
        seed: Of the divisions.
    """
    divisions = Divisions(before.examples, now.examples, seed)
    joined = {name: np.concatenate([values, now.features[name]]) for name, values in before.features.items()}
    joined = {name: values for name, values in joined.items() if len(np.unique(values)) > 1}
    measures = {
        (name, measure): found
        for name, values in joined.items()
        for measure, found in divisions.distances(values).items()
    }
    distances = np.array(list(measures.values()))  # [features and measures, divisions]
    mean, deviation = distances.mean(axis=1), distances.std(axis=1)
    standardized = (distances - mean[:, None]) / np.where(deviation > 0, deviation, 1)[:, None]
    largest = np.sort(standardized.max(axis=0))[::-1]
    thresholds = mean + largest[int(false_alarms * len(largest))] * deviation
    shifts: dict[str, Shift] = {}
    for (name, measure), distance, threshold in zip(measures, distances[:, 0], thresholds, strict=True):
        words = _words(before.features[name], now.features[name])
        shift = Shift(name, measure, float(distance), float(threshold), *words)
        shifts[name] = max(shift, shifts.get(name, shift), key=lambda one: one.ratio)
    return sorted(shifts.values(), key=lambda shift: -shift.ratio)


def _words(before: Values, now: Values) -> tuple[str, str]:
    """Return both in a few words: the mean, or the text whose share has changed most."""
    if before.dtype.kind != "U":
        return _mean(before), _mean(now)
    shares = {text: (np.mean(before == text), np.mean(now == text)) for text in np.union1d(before, now)}
    text = max(shares, key=lambda text: abs(shares[text][1] - shares[text][0]))
    first, second = shares[text]
    return f"{first:.1%} {text}", f"{second:.1%} {text}"


def _mean(values: Values) -> str:
    missing = np.isnan(values)
    mean = f"mean {values[~missing].mean():.4g}" if not missing.all() else ""
    return ", ".join(part for part in (mean, f"{missing.mean():.1%} missing" if missing.any() else "") if part)


def as_json(shifts: Sequence[Shift], before: Sample, now: Sample, *, false_alarms: float) -> JsonObject:
    """Return the comparison as plain values."""
    return {
        "drifted": any(shift.has_drifted for shift in shifts),
        "false_alarms": false_alarms,
        "reference_examples": before.examples,
        "examples": now.examples,
        "failed": now.failed,
        "features": [{**vars(shift), "drifted": shift.has_drifted} for shift in shifts],
    }


def lines(shifts: Sequence[Shift], before: Sample, now: Sample, *, false_alarms: float) -> Iterator[str]:
    """Yield the comparison as lines for people."""
    width = max(len(shift.feature) for shift in shifts)
    for shift in shifts:
        mark = "!" if shift.has_drifted else " "
        yield (f"{mark} {shift.feature:<{width}}  {_distance(shift):<45}  {shift.before} -> {shift.now}")
    drifted = sum(shift.has_drifted for shift in shifts)
    unread = f", {now.failed:,} without a prediction" if now.failed else ""
    found = f"{drifted} of {len(shifts)} features {'has' if drifted == 1 else 'have'} drifted"
    yield (
        f"{found if drifted else 'no drift'}: {now.examples:,} examples{unread}, compared with {before.examples:,}; "
        f"rate of false alarms {false_alarms:g}"
    )


def _distance(shift: Shift) -> str:
    if shift.measure == SHARES:
        return f"{shift.distance:.1%} {SHARES} (threshold {shift.threshold:.1%})"
    return f"{shift.distance:.3f} {DEVIATIONS} (threshold {shift.threshold:.3f})"
