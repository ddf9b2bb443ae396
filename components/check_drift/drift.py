"""Drift: whether new data differ from those that a model was evaluated on.

Each feature's distance between both samples is compared with the distances between random divisions of all their
examples. The threshold is the same for all features, in standard deviations of each one's distances, so that the stated
rate of false alarms is that of all together (the maxT procedure of Westfall and Young, 1993).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipway.components.check_drift.features import Sample, Values
from slipway.components.notify.notice import DriftNotice
from slipway.core.formatting import brief
from slipway.core.values import JsonObject

# Number of random divisions, beside the observed one.
DIVISIONS = 999
# Measures of distance. The greatest difference of both distribution functions (Kolmogorov and Smirnov), of texts the
# total variation: a share of the examples. The area between both functions of the known numbers (Wasserstein), which
# sees a few examples far away: in standard deviations. The difference of the shares of missing numbers.
SHARES, DEVIATIONS, MISSING = "of the examples", "standard deviations", "of the examples missing"
# With fewer new examples, or of the reference, no difference is said to be drift or none.
FEWEST = 6


@dataclass(frozen=True)
class Shift:
    """How much a feature of new data differs from that of the reference.

    Attributes:
        feature: Its name.
        measure: The measure by which the difference is clearest: `SHARES`, `DEVIATIONS` or `MISSING`.
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
        measures = (SHARES, DEVIATIONS, MISSING) if np.isnan(values).any() else (SHARES, DEVIATIONS)
        return dict(zip(measures, self._of_numbers(values)[: len(measures)], strict=True))

    def _of_numbers(self, values: Values) -> NDArray[np.float64]:
        order = np.argsort(values, kind="stable")  # missing ones are last
        ordered = values[order]
        ends = np.append((ordered[1:] != ordered[:-1]) & ~np.isnan(ordered[:-1]), True)
        counted = np.flatnonzero(ends) + 1
        missing = int(np.isnan(values).sum())
        widths = np.nan_to_num(np.diff(ordered[ends], append=np.nan)) / (np.nanstd(values) or 1)
        known = len(values) - missing
        distances = np.zeros((3, len(self.is_new)))
        for number, division in enumerate(self.is_new):
            sorted_division = division[order]
            new = np.cumsum(sorted_division)[ends]
            apart = np.abs(new / self.now - (counted - new) / self.before)
            distances[0, number] = apart.max()
            new_known = int(sorted_division[:known].sum())
            distances[2, number] = abs(
                (self.now - new_known) / self.now - (self.before - known + new_known) / self.before
            )
            if 0 < new_known < known:  # both samples have known numbers
                of_known = np.abs(new / new_known - (counted - new) / (known - new_known))
                distances[1, number] = of_known @ widths
        return distances

    def _of_texts(self, values: Values) -> NDArray[np.float64]:
        _, which = np.unique(values, return_inverse=True)
        counts = np.bincount(which)
        distances = np.empty(len(self.is_new))
        for number, division in enumerate(self.is_new):
            new = np.bincount(which[division], minlength=len(counts))
            distances[number] = np.abs(new / self.now - (counts - new) / self.before).sum() / 2
        return distances


def too_few(before: Sample, now: Sample) -> str:
    """Return why the examples of a sample cannot show whether data have drifted, "" if they can."""
    for examples, which in ((now.examples, "new"), (before.examples, "reference")):
        if examples < FEWEST:
            noun = "example" if examples == 1 else "examples"
            return f"{examples} {which} {noun} cannot show drift: at least {FEWEST} are needed"
    return ""


def compare(before: Sample, now: Sample, *, false_alarms: float, seed: int = 0) -> list[Shift]:
    """Return the shift of each feature that is not the same for all examples, those that have drifted first.

    Args:
        before: The reference.
        now: The new data.
        false_alarms: How often any feature of data that have not drifted is said to have.
        seed: Of the divisions.
    """
    divisions = Divisions(before.examples, now.examples, seed)
    joined = {name: np.concatenate([values, now.features[name]]) for name, values in before.features.items()}
    joined = {name: values for name, values in joined.items() if len(np.unique(values)) > 1}
    if not joined:
        return []
    measures = {
        (name, measure): row for name, values in joined.items() for measure, row in divisions.distances(values).items()
    }
    distances = np.array(list(measures.values()))  # [features and measures, divisions]
    mean, deviation = distances.mean(axis=1), distances.std(axis=1)
    standardized = (distances - mean[:, None]) / np.where(deviation > 0, deviation, 1)[:, None]
    largest = np.sort(standardized.max(axis=0))[::-1]
    thresholds = mean + largest[int(false_alarms * len(largest))] * deviation
    words = {name: _words(before.features[name], now.features[name]) for name in joined}
    shifts: dict[str, Shift] = {}
    for (name, measure), distance, threshold in zip(measures, distances[:, 0], thresholds, strict=True):
        shift = Shift(name, measure, float(distance), float(threshold), *words[name])
        shifts[name] = max(shift, shifts.get(name, shift), key=lambda candidate: candidate.ratio)
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
    mean = f"mean {brief(values[~missing].mean())}" if not missing.all() else ""
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


def notice_of(model: str, shifts: Sequence[Shift], before: Sample, now: Sample, *, false_alarms: float) -> DriftNotice:
    """Return the notice about a comparison in which features have drifted."""
    *features, summary = lines(shifts, before, now, false_alarms=false_alarms)
    drifted = tuple(" ".join(line.removeprefix("!").split()) for line in features if line.startswith("!"))
    return DriftNotice(model=model, where=socket.gethostname(), summary=summary, features=drifted)


def lines(shifts: Sequence[Shift], before: Sample, now: Sample, *, false_alarms: float) -> Iterator[str]:
    """Yield the comparison as lines for people."""
    width = max((len(shift.feature) for shift in shifts), default=0)
    for shift in shifts:
        mark = "!" if shift.has_drifted else " "
        yield f"{mark} {shift.feature:<{width}}  {_distance(shift):<45}  {shift.before} -> {shift.now}"
    drifted = sum(shift.has_drifted for shift in shifts)
    unread = f", {now.failed:,} without a prediction" if now.failed else ""
    summary = f"{drifted} of {len(shifts)} features {'has' if drifted == 1 else 'have'} drifted"
    yield (
        f"{summary if drifted else 'no drift'}: {now.examples:,} examples{unread}, compared with {before.examples:,}; "
        f"rate of false alarms {false_alarms:g}"
    )


def _distance(shift: Shift) -> str:
    form = ".3f" if shift.measure == DEVIATIONS else ".1%"
    return f"{shift.distance:{form}} {shift.measure} (threshold {shift.threshold:{form}})"
