"""Whether `budget.idle` ends trainings that work, and how soon it ends those that do not.

    python -m benchmarks.idle --runs 200

Each run is a custom program in Slipway's launcher, alone or on two replicas, that works in one of several ways for
longer than it may be idle; many run at a time, so that they wait for the cores. One in ten does nothing. The loads are
drawn from a seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from slipway.core.idle import IDLE_VARIABLE
from slipway.core.supervision import Ports

IDLE_SECONDS = 2.0
# How long a load lasts, as a multiple of the time that it may be idle.
LENGTHS = (2.0, 4.0)
LIMIT_SECONDS = 600.0
# A program works until the time in its argument is over; its replica's rank is `rank`.
START = """import os, subprocess, sys, tempfile, time
end, rank = time.monotonic() + float(sys.argv[1]), int(os.environ.get("RANK", "0"))
"""
SLEEP = "time.sleep(end - time.monotonic())\n"
SPIN = "\n    began = time.process_time()\n    while time.process_time() - began < {seconds}:\n        pass\n"
LOADS = {
    "computes": f"while time.monotonic() < end:{SPIN.format(seconds=0.2)}",
    "computes now and then": f"while time.monotonic() < end:{SPIN.format(seconds=0.06)}    time.sleep(0.5)\n",
    "reports steps that take no CPU": (
        "from slipway import training\n"
        "step = 0\n"
        "while time.monotonic() < end:\n    step += 1\n    time.sleep(0.8)\n    training.report(step)\n"
    ),
    "reads files slowly": (
        "file = tempfile.TemporaryFile()\nfile.write(bytes(1 << 20))\n"
        "while time.monotonic() < end:\n    file.seek(0)\n    file.read()\n    time.sleep(0.5)\n"
    ),
    "computes in a child process": (
        'code = "import time\\nend = time.monotonic() + " + sys.argv[1] + "\\nwhile time.monotonic() < end: pass"\n'
        'subprocess.run([sys.executable, "-c", code])\n'
    ),
    "computes in short child processes": (
        "while time.monotonic() < end:\n"
        '    subprocess.run([sys.executable, "-c", "sum(range(10**6))"])\n    time.sleep(0.3)\n'
    ),
    "waits for the other replica": (
        f"if rank == 0:\n    {SLEEP}while time.monotonic() < end:{SPIN.format(seconds=0.1)}"
    ),
    "is waited for": (f"if rank == 1:\n    {SLEEP}while time.monotonic() < end:{SPIN.format(seconds=0.1)}"),
}
TOGETHER = ("waits for the other replica", "is waited for")
NOTHING = {"does nothing": "time.sleep(600)\n", "waits for a lock": "import threading\nthreading.Event().wait(600)\n"}
NOTHING["does nothing after a second"] = (
    f"end = time.monotonic() + 1.0\nwhile time.monotonic() < end:{SPIN.format(seconds=0.2)}time.sleep(600)\n"
)


@dataclass(frozen=True)
class Result:
    """A load, whether it was ended, and after how many seconds."""

    load: str
    ended: bool
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the loads; return 1 if one that worked was ended, or one that did nothing was not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--together", type=int, default=8, help="loads at a time")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, idle after {IDLE_SECONDS:g} s", flush=True)
    chance = random.Random(options.seed)
    names = [chance.choice(list(NOTHING if number % 10 == 9 else LOADS)) for number in range(options.runs)]
    lengths = [IDLE_SECONDS * chance.uniform(*LENGTHS) for _ in names]
    with tempfile.TemporaryDirectory(prefix="idle-") as folder, ThreadPoolExecutor(options.together) as pool:
        for number, code in enumerate((LOADS | NOTHING).values()):
            Path(folder, f"load{number}.py").write_text(START + code)
        modules = {name: f"load{number}" for number, name in enumerate(LOADS | NOTHING)}
        results = list(pool.map(lambda name, length: run(Path(folder), name, modules[name], length), names, lengths))
    counts = Counter((result.load, result.ended) for result in results)
    for name in LOADS | NOTHING:
        print(f"{name:36} {counts[name, True]} of {counts[name, True] + counts[name, False]} ended")
    false = sum(result.ended for result in results if result.load in LOADS)
    missed = sum(not result.ended for result in results if result.load in NOTHING)
    late = [result.seconds for result in results if result.load in NOTHING and result.ended]
    print(f"{sum(result.load in LOADS for result in results)} loads that work: {false} ended")
    seconds = f"{statistics.median(late):.1f} s in the median, at most {max(late):.1f} s"
    print(f"{len(late) + missed} that do nothing: {missed} not ended, the others after {seconds}")
    return int(false > 0 or missed > 0)


def run(folder: Path, name: str, module: str, length: float) -> Result:
    """Run a load for so many seconds; return whether it was ended."""
    count, started = 2 if name in TOGETHER else 1, time.monotonic()
    with Ports(count) as ports:
        pools = {f"workerpool{rank}": [f"127.0.0.1:{port}"] for rank, port in enumerate(ports)}
        replicas = [
            subprocess.Popen(
                [sys.executable, "-m", "slipway.trainer.launch", module, str(length)],
                cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env=_environment(folder, pools, rank),
            )
            for rank in range(count)
        ]  # fmt: skip
        errors = [replica.communicate(timeout=LIMIT_SECONDS)[1] for replica in replicas]
    ended = any("budget.idle" in error for error in errors)
    assert ended or not any(replica.returncode for replica in replicas), errors
    return Result(name, ended, time.monotonic() - started)


def _environment(folder: Path, pools: dict[str, list[str]], rank: int) -> dict[str, str]:
    environment = {
        **os.environ,
        IDLE_VARIABLE: str(IDLE_SECONDS),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(folder)]),
        "AIP_MODEL_DIR": str(folder / "model"), "AIP_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "AIP_TENSORBOARD_LOG_DIR": str(folder / "logs" / str(time.monotonic())), "SLIPWAY_LOCAL_CLUSTER": "1",
    }  # fmt: skip
    if len(pools) > 1:
        task = {"type": f"workerpool{rank}", "index": 0}
        environment["CLUSTER_SPEC"] = json.dumps({"cluster": pools, "environment": "cloud", "task": task})
    return environment


if __name__ == "__main__":
    sys.exit(main())
