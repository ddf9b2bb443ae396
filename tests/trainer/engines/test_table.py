"""The number of processes that read the data, by engine."""

from __future__ import annotations

import pytest

from slipway.trainer.engines.table import readers


@pytest.mark.parametrize(
    ("engine", "replicas", "devices", "expected"),
    [("pytorch", 2, 4, 8), ("pytorch", 2, 0, 2), ("pytorch", 1, 1, 1), ("jax", 2, 4, 2), ("tensorflow", 2, 4, 2)],
)
def test_an_engine_of_one_device_a_process_has_a_reader_for_each(
    engine: str, replicas: int, devices: int, expected: int
) -> None:
    assert readers(engine, replicas, devices) == expected
