"""`make chaos`: kill workers at random and check that the result does not change. The last line is a summary."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.chaos import Chaos, run

# Convolutions on a CPU are several times slower on the other engines.
STEPS = {"tensorflow": 4000}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--engine", default="tensorflow")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, help="number of training steps; the default depends on the engine")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31)))
    parser.add_argument("--keep", type=Path, help="an empty folder for the runs' output; default: a temporary folder")
    options = parser.parse_args()
    steps = options.steps or STEPS.get(options.engine, 400)
    chaos = Chaos(options.seed, options.engine, options.processes, options.kills, steps)
    print(f"seed {chaos.seed}: the same plan again with SLIPWAY_SEED={chaos.seed}", flush=True)
    started = time.monotonic()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        result = run(chaos, options.keep or Path(temporary))
    for restart in result.restarts:
        print(f"  {restart.replica} {restart.reason}; from step {restart.step}")
    for problem in result.problems:
        print(f"  {problem}")
    hard = result.killed.count(signal.SIGKILL)
    print(
        f"chaos: {'FAILED' if result.problems else 'passed'}: {len(result.killed)} kills ({hard} SIGKILL, "
        f"{len(result.killed) - hard} SIGTERM) of {chaos.processes} {chaos.engine} processes "
        f"in {result.strikes} groups, {len(result.restarts)} restarts, {time.monotonic() - started:.0f} s, "
        f"seed {chaos.seed}: "
        + (
            "; ".join(result.problems)
            or f"weights {result.checksum[:12]} as undisturbed, no checkpoint lost, no process left"
        )
    )
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
