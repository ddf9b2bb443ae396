"""A table of houses in BigQuery, and how it is prepared."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName
from tests.fakes.google import PROJECT, FakeGoogle

TABLE = f"{PROJECT}.sales.houses"
REFERENCE = f"bigquery:{TABLE}"
COLUMNS = {"area": "INTEGER", "kind": "STRING", "zip": "STRING", "label": "FLOAT"}
MONTH = datetime.now(UTC) - timedelta(days=30)
Prepare = Callable[..., Prepared]


def rows_of(count: int, seed: int = 0) -> list[list[object]]:
    draws = np.random.default_rng(seed)
    kinds, codes = draws.choice(["flat", "house"], count), draws.integers(10000, 10020, count)
    return [
        [int(area), str(kind), str(code), float(price)]
        for area, kind, code, price in zip(
            draws.integers(20, 300, count), kinds, codes, draws.random(count), strict=True
        )
    ]


@pytest.fixture
def houses(google: FakeGoogle) -> FakeGoogle:
    """A project with a table of houses, which was last changed a month ago."""
    google.bigquery.add_table(TABLE, COLUMNS, rows_of(400), MONTH)
    return google


@pytest.fixture
def settings(houses: FakeGoogle, tmp_path: Path) -> Callable[..., DataSettings]:
    endpoints = {name: houses.endpoints[name] for name in ("bigquery", "bigquerystorage")}

    def made(bigquery: dict[str, Any] | None = None, **more: Any) -> DataSettings:
        values = {"source": REFERENCE, "store": str(tmp_path / "store"), "workers": 1, **more}
        return DataSettings.model_validate({**values, "bigquery": {"endpoints": endpoints, **(bigquery or {})}})

    return made


@pytest.fixture
def prepared(settings: Callable[..., DataSettings]) -> Prepare:
    def made(task: TaskName = "regression", **more: Any) -> Prepared:
        return prepare(settings(**more), 1, task=task)

    return made


def refusal(prepared: Prepare, **more: Any) -> UserError:
    with pytest.raises(UserError) as raised:
        prepared(**more)
    return raised.value


def reads(google: FakeGoogle) -> int:
    return google.faults.calls["BigQueryRead.ReadRows"]
