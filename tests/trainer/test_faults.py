"""Faults of the storage with the tensorflow engine; those of the others are in tests/engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipway.trainer.distributed import cluster as clusters
from tests.trainer import faults

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tensorflow", "networks")]
CHECKPOINTS = {"checkpoint": {"every_steps": 5, "every_seconds": None, "keep": 100}}


@pytest.mark.parametrize("fault", [faults.check_flipped_label, faults.check_failing_opens])
def test_a_fault_of_the_storage_does_not_change_the_weights(
    tiny: Path, make_job: Any, tmp_path: Path, fault: Any
) -> None:
    fault(make_job(tiny, steps=20, steps_per_epoch=75, **CHECKPOINTS), tmp_path)


def test_a_stalled_stream_is_waited_for(tiny: Path, make_job: Any, training_data: Any) -> None:
    from slipway.core import manifest as manifests
    from slipway.trainer.engines import base

    engine = base.load("tensorflow")
    engine.open(clusters.read({}))
    engine.build(make_job(tiny, steps=100, steps_per_epoch=75, xla=False), manifests.read(tiny))  # a graph
    faults.check_stalled_stream(engine, training_data(75, 1, 0))
