"""What an evaluation measured, and how, before the gate judges it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.gate import Opponent, SliceValues
from slipway.components.evaluate.measures.base import Measures, shortfall
from slipway.components.evaluate.occlusion import Maps
from slipway.components.evaluate.settings import EvaluateSettings
from slipway.core import seen
from slipway.core.manifest import Manifest, SignatureName
from slipway.core.values import JsonObject
from slipway.serving.model import Model, read_json

SPLIT = "test"
MAY_INCLUDE = "The comparison may include test examples on which the champion was trained or selected: "
UNRECORDED = f"{MAY_INCLUDE}there is no record of them (seen.u64)."

# The prepared data set's folder, data.uri as it is, or None if a custom program has its own data.
Data: TypeAlias = Path | str | None
# Tensors by the name of the serving signature's input, [batch, …] each.
Features: TypeAlias = Mapping[SignatureName, Any]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """A batch of raw features, with the labels [batch, …] and keys [batch] of the records."""

    features: Features
    labels: NDArray[np.generic]
    keys: list[bytes]

    def part(self, start: int, stop: int) -> Batch:
        """Return the batch of the examples from `start` to `stop`."""
        features = {name: values[start:stop] for name, values in self.features.items()}
        return Batch(features, self.labels[start:stop], self.keys[start:stop])

    def key(self, index: int) -> str:
        """Return the key of an example as text."""
        return self.keys[index].decode(errors="replace")


@dataclass(frozen=True)
class MeasuredSlice:
    """A model's measures on a slice, and on those of its examples on which it is compared with another model."""

    name: str
    measures: Measures[Any]
    compared: Measures[Any]


@dataclass(frozen=True)
class Measured:
    """A model's folder and its metrics. `description` is its model.json, {} if there is none.

    Slipway's evaluation has `measures` on all examples (of the champion, on those of `compared`); `compared` are those
    on the examples on which the champion and its challenger are compared: those that neither has seen. `unknown` are
    the data set's classes that it does not have, `foreign` its classes that the data set does not have.
    `slices` are the measures on each slice.
    A custom evaluation may have `plots` (files, or Figures of matplotlib) and `tables` (rows) by title.
    """

    folder: Path
    description: JsonObject
    metrics: dict[str, float]
    measures: Measures[Any] | None = None
    compared: Measures[Any] | None = None
    slices: Sequence[MeasuredSlice] = ()
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    plots: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, list[Mapping[str, object]]] = field(default_factory=dict)

    @functools.cached_property
    def registration(self) -> JsonObject:
        """The registry's metadata.json, {} if there is none."""
        return read_json(self.folder / "metadata.json")

    @property
    def name(self) -> str:
        """The registered version, or the folder's name."""
        version = self.registration.get("version")
        return self.folder.name if version is None else f"version {version}"

    @property
    def weights_checksum(self) -> str | None:
        checksum = self.description.get("weights_checksum") or self.registration.get("weights_checksum")
        return None if checksum is None else str(checksum)

    def has_weights_of(self, other: Measured) -> bool:
        """Return whether both models are known to have the same weights."""
        return self.weights_checksum is not None and self.weights_checksum == other.weights_checksum

    @functools.cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95% confidence intervals of metrics."""
        return self.measures.intervals() if self.measures else {}


@dataclass(frozen=True)
class Importance:
    """How much an input matters.

    Attributes:
        input: Its name.
        loss: By how much the metric gets worse without it, the mean of the repeats; below 0 if it gets better.
        interval: The loss's 95% confidence interval; None if it cannot be relied on.
        slices: The loss on each slice where the metric is defined.
    """

    input: str
    loss: float
    interval: tuple[float, float] | None
    slices: Mapping[str, float]

    def as_dict(self) -> JsonObject:
        """Return what a run's record stores."""
        interval = list(self.interval) if self.interval else None
        return {"loss": self.loss, "interval": interval, **({"slices": dict(self.slices)} if self.slices else {})}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Both models' metrics, and what the gate needs to know.

    `settings` have the gate's metric. `champion` is None if none was measured; `opponent` is what the gate compares
    with. `how` follows the name of a metric: "on the test split". Only Slipway's evaluation has a `manifest`; the model
    and a few examples for the contract test (`sample`); the categories and texts of the split that the training split
    does not have (`unseen`); the metrics of a constant prediction (`baseline`), {} without a training split;
    sentences on what the metrics hide (`notes`); how much each input matters (`importance`), the most important first;
    and what the model looks at in images that it confidently gets wrong (`occlusion`).
    """

    settings: EvaluateSettings
    data: Data
    model: Measured
    champion: Measured | None
    opponent: Opponent | None
    how: str
    manifest: Manifest | None = None
    sample: tuple[Model, Batch] | None = None
    unseen: list[Unseen] = field(default_factory=list)
    baseline: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    importance: Sequence[Importance] = ()
    occlusion: Maps = field(default_factory=dict)

    @property
    def slices(self) -> list[SliceValues]:
        """The gate's metric on each slice where it is defined, the worst first."""
        gate, champion = self.settings.gate, {}
        if self.champion:
            champion = {part.name: part.measures for part in self.champion.slices}
        slice_values = []
        for part in self.model.slices:
            if (value := _value(part.measures, gate.name)) is None:
                continue
            values = SliceValues(part.name, part.measures.examples, value)
            if (beaten := champion.get(part.name)) is not None:
                ours, champion_value = (_value(measures, gate.name) for measures in (part.compared, beaten))
                values = replace(values, ours=ours, theirs=champion_value, compared=part.compared.examples)
                if gate.slice_margin is not None:
                    values = replace(values, shortfall=shortfall(part.compared, beaten, gate))
            slice_values.append(values)
        return sorted(slice_values, key=lambda entry: entry.value, reverse=gate.minimized)


def _value(measures: Measures[Any], metric: str) -> float | None:
    """Return a metric, None where it is undefined, as without an example."""
    return measures.metrics().get(metric) if measures.examples else None


@dataclass(frozen=True)
class Unseen:
    """The values of an input that the training split does not have, most frequent first, with their counts.

    They are categories or, if it `is_text`, texts that are empty or mostly of words that the training split lacks.
    """

    input: str
    examples: int
    values: list[tuple[str, int]]
    is_text: bool = False


def unseen_by(hashes: NDArray[np.uint64] | None, *models: Path) -> Mask | None:
    """Return whether each of the examples with these hashes is one that none of the models has seen; None for all.

    A model has seen what it was trained on, and what it was selected on, the validation split.
    """
    seen_hashes = [model_hashes for model_hashes in map(seen.seen_by, models) if model_hashes is not None]
    if hashes is None or not seen_hashes:
        return None
    unseen: Mask = ~np.isin(hashes, np.concatenate(seen_hashes))
    return None if unseen.all() else unseen
