"""The mean of a metric over seeds and its interval, as `scipy.stats.t.interval` has it."""

from __future__ import annotations

import pytest
from scipy import stats

from slipway.pipelines.selection.repeats import over_runs


def test_the_interval_is_students() -> None:
    values = [0.95, 0.97, 0.96, 0.99, 0.98]
    found = over_runs([{"accuracy": each, "examples": 179.0} for each in values])
    assert list(found) == ["accuracy"]
    accuracy = found["accuracy"]
    expected = stats.t.interval(0.95, 4, loc=0.97, scale=stats.sem(values))
    assert (accuracy.mean, accuracy.low, accuracy.high) == pytest.approx((0.97, *expected))
    assert (accuracy.lowest, accuracy.highest) == (0.95, 0.99)


def test_a_metric_that_one_training_lacks_is_left_alone() -> None:
    found = over_runs([{"accuracy": 0.9, "loss": 0.1}, {"accuracy": 0.9}])
    assert found.keys() == {"accuracy"}
    assert found["accuracy"].low == found["accuracy"].high == 0.9
