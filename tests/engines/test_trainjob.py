"""A TrainJob of two pods with two processes each, one per device."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.components.train.local_cluster import run_local_cluster
from slipway.trainer.checkpoint.store import pointed_step
from tests.components.train.conftest import Step, meanwhile, weights
from tests.components.train.test_trainjob import digits
from tests.engines.conftest import ENGINE
from tests.fakes.kubernetes.server import FakeKubernetes


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    with FakeKubernetes(tmp_path) as cluster:
        yield Step(cluster, monkeypatch)


@pytest.mark.engine("jax", "pytorch")
def test_a_trainjob_of_two_replicas_of_two_processes_trains_as_the_same_layout_here(step: Step) -> None:
    """A pod is killed once, and all start again from a checkpoint."""
    step.grant()
    planned = digits(step.volume, ENGINE)
    here = io.StringIO()
    run_local_cluster(planned, step.volume / "here", log=here)

    def kill() -> None:
        step.cluster.wait(lambda: (pointed_step(step.output / "checkpoints") or 0) >= 40, 120)
        step.cluster.kubelets.kill(step.running("workerpool1-0-0"))

    meanwhile(kill)
    (restart,) = step.run(planned)
    assert (restart.replica, restart.step >= 40) == ("workerpool1-0", True)
    assert len(weights(here)) == 1
    assert weights(step.log) == weights(here)
    step.cluster.wait(lambda: not step.cluster.left())
