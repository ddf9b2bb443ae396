"""Faults of the storage: damage, failing reads and stalls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.conftest import ENGINE, Bench
from tests.trainer import faults

CHECKPOINTS = {"checkpoint": {"every_steps": 5, "every_seconds": None, "keep": 100}}


@pytest.mark.parametrize("fault", [faults.check_flipped_label, faults.check_failing_opens])
def test_a_fault_of_the_storage_does_not_change_the_weights(bench: Bench, tmp_path: Path, fault: object) -> None:
    assert callable(fault)
    fault(bench.job(steps=20, **CHECKPOINTS), tmp_path)


def test_a_stalled_stream_is_waited_for(bench: Bench) -> None:
    config = bench.job(**({"xla": False} if ENGINE == "tensorflow" else {}))  # a graph, as with several replicas
    faults.check_stalled_stream(bench.engine(config), bench.training(config, budget=0))
