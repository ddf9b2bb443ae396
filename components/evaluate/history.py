"""The training history in a model's metrics.jsonl."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slipway.core.atomic import json_lines

POINTS = 400


@dataclass(frozen=True)
class Series:
    """A metric by step."""

    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def thinned(self, points: int) -> Series:
        """Return the series reduced to at most `points` points by averaging neighbours."""
        if len(self.steps) <= points:
            return self
        groups = [part for part in np.array_split(np.arange(len(self.steps)), points) if len(part)]
        steps, values = np.array(self.steps), np.array(self.values)
        return Series([float(steps[part].mean()) for part in groups], [float(values[part].mean()) for part in groups])


@dataclass(frozen=True)
class History:
    """The records of a run, in order."""

    records: list[dict[str, Any]]

    def series(self, kind: str, figure: str) -> Series:
        """Return a metric by step, from the records of a kind (train, validation); finite values only."""
        found = Series()
        for record in self.records:
            value = record.get(figure)
            if record.get("kind") == kind and isinstance(value, int | float) and math.isfinite(value):
                found.steps.append(record["step"])
                found.values.append(value)
        return found.thinned(POINTS)

    def last(self, kind: str) -> dict[str, Any] | None:
        """The last record of a kind."""
        return next((record for record in reversed(self.records) if record.get("kind") == kind), None)


def read_history(path: Path) -> History:
    """Return the history in a file, empty if the file does not exist."""
    records = json_lines(path.read_bytes()) if path.is_file() else []
    return History([record for record in records if "step" in record])
