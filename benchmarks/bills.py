"""How much of a training's seconds its bill names: disturbed runs of the digits with `slipway runs bill`.

    python -m benchmarks.bills --runs 50

Each run is on cpu or cpu*2, some with steps that a custom augmentation slows down. A replica, or the command with the
process that executes the run, is killed (SIGKILL) at random moments; killed commands are resumed. Victims and moments
are drawn from a seed; the machine's timing is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from slipway.core.values import JsonObject

CONFIGURATION = Path(__file__).parents[1] / "configs" / "digits.yaml"
SETTINGS = (
    *("train.epochs=3", "train.batch_size=8", "train.checkpoint.every_steps=100"),
    *("evaluate.gate.minimum=0", "train.restarts.at_most=9"),
)
SLOW = """import time

import tensorflow as tf


def slow(images, seed):
    def wait(batch):
        time.sleep(0.02)
        return batch

    waited = tf.py_function(wait, [images], tf.float32)
    waited.set_shape(images.shape)
    return waited
"""
TRAINERS = ("slipway.trainer",)
EXECUTOR = ("slipway.pipelines.platforms.local.executor",)
# When the first kill comes, and how much time passes between kills, in seconds.
FIRST, BETWEEN = (2.0, 9.0), (1.0, 8.0)
LIMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Disturbed:
    """A run that has succeeded: what disturbed it, and its bill."""

    hardware: str
    slow: bool
    kills: Counter[str]
    bill: JsonObject


def main(arguments: Sequence[str] | None = None) -> None:
    """Execute the runs, and print the fractions that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bills", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    chance, runs = random.Random(options.seed), list[Disturbed]()
    with tempfile.TemporaryDirectory(prefix="bills-") as folder:
        for number in range(options.runs):
            run = disturbed(Path(folder) / str(number), chance)
            runs.append(run)
            causes = ", ".join(f"{count} {name}" for name, count in run.kills.items())
            title = f"{number:3} {run.hardware:6} {'slow' * run.slow:4} {run.bill['seconds']:6.1f} s"
            lost = f"lost {run.bill['lost_steps']} steps, named {run.bill['named']:.1%}"
            print(f"{title}, kills: {causes or 'none'}, {lost}", flush=True)
    named = [run.bill["named"] for run in runs]
    kills, losses = sum(run.kills.total() for run in runs), sum(run.bill["lost_steps"] > 0 for run in runs)
    print(
        f"{len(runs)} runs, {kills} kills, {losses} runs lost steps; named: "
        f"min {min(named):.1%}, median {statistics.median(named):.1%}"
    )


def disturbed(folder: Path, chance: random.Random, most: int = 3) -> Disturbed:
    """Execute a run in a new folder with up to `most` kills, resume it until it has succeeded, and return its bill."""
    folder.mkdir()
    (folder / "slow.py").write_text(SLOW)
    (folder / "slipway.yaml").write_text(CONFIGURATION.read_text())
    hardware, slow = chance.choice(("cpu", "cpu", "cpu*2")), chance.random() < 0.7
    moments = [chance.uniform(*FIRST)]
    moments += [chance.uniform(*BETWEEN) for _ in range(chance.randint(0, most) - 1)]
    settings = [*SETTINGS, *(["train.augment.function=slow:slow"] if slow else [])]
    command = ["run", "--hardware", hardware, *(part for setting in settings for part in ("--set", setting))]
    kills: Counter[str] = Counter()
    started = time.monotonic()
    while True:
        process = _slipway(folder, command)
        while process.poll() is None:
            if moments and time.monotonic() - started > moments[0] and (name := _kill(process, folder, chance)):
                kills[name] += 1
                moments, started = moments[1:], time.monotonic()
            time.sleep(0.02)
            assert time.monotonic() - started < LIMIT_SECONDS, "the command hangs"
        if not process.returncode:
            break
        while _processes(folder, (*TRAINERS, *EXECUTOR)):
            time.sleep(0.02)
        latest = (folder / "runs" / "latest").exists()  # else it was killed before the run began
        command = ["run", "--resume", "latest"] if latest else command
    bill = _slipway(folder, ["runs", "bill", "--json"], stdout=subprocess.PIPE)
    return Disturbed(hardware, slow, kills, json.loads(bill.communicate()[0]))


def _slipway(folder: Path, command: Sequence[str], stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "slipway", *command], cwd=folder, stdout=stdout, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(folder)])},
    )  # fmt: skip


def _kill(command: subprocess.Popen[bytes], folder: Path, chance: random.Random) -> str | None:
    """Kill a replica, or the command and what executes the run, while a training runs; return which, None for none."""
    replicas = _processes(folder, TRAINERS)
    if not replicas:
        return None
    with contextlib.suppress(psutil.Error):
        if chance.random() < 0.3:
            for process in _processes(folder, EXECUTOR):
                process.kill()
            command.send_signal(signal.SIGKILL)
            return "of the command"
        chance.choice(replicas).kill()
        return "of a replica"
    return None


def _processes(folder: Path, programs: Sequence[str]) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if process.cwd() == str(folder) and not set(programs).isdisjoint(process.cmdline()):
                processes.append(process)
    return processes


if __name__ == "__main__":
    main()
