"""A prepared table of a number, a number with gaps, a category and a date, for each task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway import training
from tests.trainer import feature_sets
from tests.trainer.feature_sets import Column

CLASSES: dict[str, list[str]] = {"two": ["no", "yes"], "three": ["a", "b", "c"], "target": []}
ROWS = 300


def write(folder: Path, outputs: str) -> tuple[training.Data, dict[str, Any]]:
    """Return a table of 240 rows, with 60 for validation, and its columns."""
    random = np.random.default_rng(2)
    size = random.normal(90, 20, ROWS).astype(np.float32)
    rooms = np.where(random.random(ROWS) < 0.2, np.nan, random.integers(1, 6, ROWS)).astype(np.float32)
    city = random.choice(["Bern", "Zürich", "Genf"], ROWS)
    built = [f"{day}.03.{year}" for day, year in random.integers([1, 1950], [28, 2020], (ROWS, 2))]
    columns = {"size": size, "rooms": rooms, "city": city, "built": built}
    kinds = {"size": "number", "rooms": "number", "city": "category", "built": "date"}
    value = size / 20 + np.nan_to_num(rooms, nan=4) + 2 * (city == "Bern") + random.normal(0, 0.3, ROWS)
    classes = CLASSES[outputs]
    limits = np.quantile(value, np.arange(1, len(classes)) / max(len(classes), 1))
    labels = np.digitize(value, limits) if classes else 1000 * value
    about = feature_sets.write(
        folder, "classification" if classes else "regression",
        {name: Column(kinds[name], columns[name]) for name in columns}, labels, classes, validation=60, shards=2,
    )  # fmt: skip
    return training.Data(str(folder), folder, about), columns


def requests(columns: dict[str, Any], last: int) -> dict[str, NDArray[Any]]:
    """Return the last rows as a request has them."""
    arrays = {name: np.array(values[-last:]) for name, values in columns.items()}
    for name in ("city", "built"):
        arrays[name] = np.array([text.encode() for text in arrays[name].tolist()], object)
    return arrays
