"""Selection of the best weights: all replicas use the chief's monitored value, whatever its sign."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from slipway.trainer.checkpoint.best import Selection, agreed_metric
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.engines.base import Measured


class Together:
    """The engine of one of two replicas: `agree` returns the maximum of its values and the other's."""

    def __init__(self) -> None:
        self.sent: list[float] = []

    def agree(self, values: list[float]) -> list[float]:
        self.sent = self.sent or [-math.inf] * len(values)
        self.sent = [max(pair) for pair in zip(self.sent, values, strict=True)]
        return self.sent


def cluster(rank: int) -> clusters.Cluster:
    tasks = {"worker": ["a:2222", "b:2222"]}
    return clusters.read({"TF_CONFIG": json.dumps({"cluster": tasks, "task": {"type": "worker", "index": rank}})})


def agreed(train: Any, loss: float) -> float:
    """Return what two replicas agree on where the chief measured `loss`."""
    engine: Any = Together()
    for rank, own in ((1, 123.0), (0, loss)):
        metric = agreed_metric(train, Measured(own, 0.0, 1), engine, cluster(rank))
    return metric


def test_a_loss_below_minus_one_is_the_chiefs_on_all_replicas(make_job: Any) -> None:
    train = make_job(Path("x"), steps=4, steps_per_epoch=1, export="best", monitor="loss").train
    selection = Selection()
    metrics = [agreed(train, loss) for loss in (-7.5, -9.25, -8.0, 0.5)]
    best = [selection.take(train, metric, step) for step, metric in enumerate(metrics, 1)]
    assert metrics == [-7.5, -9.25, -8.0, 0.5]
    assert best == [True, True, False, False]
    assert (selection.best, selection.best_step) == (-9.25, 2)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_never_the_best(make_job: Any, loss: float) -> None:
    train = make_job(Path("x"), steps=4, steps_per_epoch=1, export="best", monitor="loss").train
    selection = Selection()
    assert selection.take(train, agreed(train, 2.0), 1)
    assert not selection.take(train, agreed(train, loss), 2)
