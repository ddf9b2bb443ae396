"""A few power cuts of each run; `make chaos-disk` makes 20 (SLIPWAY_CUTS)."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.chaos.power import RUNS, Name, cut, undisturbed

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SEED = int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31))
CUTS = int(os.environ.get("SLIPWAY_CUTS", "2"))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are found in /proc")
def test_after_a_power_cut_a_run_is_resumed_or_refused(tmp_path: Path, name: Name) -> None:
    print(f"seed {SEED}: SLIPWAY_SEED={SEED} repeats the moments")
    checksum, count = undisturbed(tmp_path / "undisturbed", name)
    chance = random.Random(SEED)
    # One in each part of the run, and one after its end, when everything that it promised has to exist.
    moments = [int((part + chance.random()) * count / (CUTS - 1)) + 1 for part in range(CUTS - 1)] + [10**9]
    problems = []
    for index, moment in enumerate(moments):
        folder = tmp_path / f"cut-{index}"
        result = cut(folder, name, moment, ("entries", "data")[index % 2], checksum, SEED)
        print(f"cut at operation {moment} of {count}, {result.kept}: {result.outcome}", flush=True)
        problems += [f"operation {moment}, {result.kept}: {problem}" for problem in result.problems]
        if moment == 10**9 and "has already succeeded" not in result.outcome:
            problems.append(f"a succeeded run is lost: {result.outcome}")
        if not result.problems:
            shutil.rmtree(folder)
    assert not problems, "\n".join(problems)
