"""Several resumes of a run at once while its processes are killed, once; for longer: `make chaos-resume`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.resume import Soak


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_of_several_resumes_trains_and_the_weights_stay_the_same(tmp_path: Path) -> None:
    seed = int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31))
    print(f"seed {seed}")
    report = Soak(tmp_path, seed).run(1)
    assert report.problems == []
    assert report.counts["observations of a trainer"]
    assert report.saw_all
