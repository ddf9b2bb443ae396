"""A TrainJob of two pods with two processes each, one per device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.train.trainjob.conftest import Step
from tests.components.train.trainjob.test_job import digits, train_here_and_with_a_killed_pod
from tests.engines.conftest import ENGINE
from tests.fakes.kubernetes.server import FakeKubernetes


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    with FakeKubernetes(tmp_path) as cluster:
        yield Step(cluster, monkeypatch)


@pytest.mark.engine("jax", "pytorch")
def test_a_trainjob_of_two_replicas_of_two_processes_trains_as_the_same_layout_here(step: Step) -> None:
    """A pod is killed once, and all start again from a checkpoint."""
    train_here_and_with_a_killed_pod(step, digits(step.volume, ENGINE))
