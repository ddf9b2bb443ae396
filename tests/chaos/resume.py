"""Runs whose commands are killed, and resumed by several at once, train once at a time and end with the same weights.

    python -m tests.chaos.resume --seconds 600

In each round, two or three commands execute or resume one run, each with a clock that is wrong by up to a day. The
command that executes the run, its executing process, or both are killed (SIGKILL) at a random moment. Victims, moments
and clocks are drawn from a seed; the machine's timing is not.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from slipway.pipelines.runs.record import RunFolder
from tests.end_to_end.workspace import Workspace, processes_of, steps, trainers, wait_for

SETTINGS = ("train.epochs=20", "train.checkpoint.every_steps=10", "evaluate.gate.minimum=0")
RUN = ("run", *(part for setting in SETTINGS for part in ("--set", setting)))
RESUME = ("run", "--resume", "latest")
CLOCK = Path(__file__).with_name("clock")
MEAN_ROUNDS = 4
DAY = 86_400
# Within this many seconds every command has to end by itself: a hang is a failure.
LIMIT_SECONDS = 240.0
EXECUTOR = "slipway.pipelines.platforms.local.executor"
REFUSED = ("is still running", "are still ending", "has already succeeded")


@dataclass
class Report:
    """What happened, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def saw_all(self) -> bool:
        """Whether a command was killed and a resume was refused."""
        return any(name.startswith("kills") for name in self.counts) and self.counts["exit codes 2"] > 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{counts}; " + ("; ".join(self.problems) or "the same weights, one trainer at a time")


class Soak:
    """Runs in a folder, and what kills and resumes them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = Report()
        self._chance = random.Random(seed)
        self._space = Workspace(folder / "space")

    def run(self, seconds: float) -> Report:
        """Return the report of as many runs as begin in the time, and as it takes for a kill and a refused resume."""
        started = time.monotonic()
        self._complete(RUN)
        duration, checksum = time.monotonic() - started, self._checksum()
        while time.monotonic() - started < seconds or not self.report.saw_all:
            self.report.counts["runs"] += 1
            self._round([RUN, RESUME], duration)
            while self._space.record()["status"] != "succeeded":
                if self._chance.random() < 1 / MEAN_ROUNDS:
                    self._complete(RESUME)
                else:
                    self._round([RESUME] * self._chance.choice((2, 2, 3)), duration)
            if self._checksum() != checksum:
                self.report.problems.append(f"run {self.report.counts['runs']} has other weights")
            wait_for(lambda: not processes_of(self._space.path), LIMIT_SECONDS)
        return self.report

    def _complete(self, command: tuple[str, ...]) -> None:
        """Execute a command undisturbed, after those that were killed have ended."""
        wait_for(lambda: not processes_of(self._space.path), LIMIT_SECONDS)
        self._round([command], math.inf)
        assert self._space.record()["status"] == "succeeded", self._space.log("pipeline")[-9000:]

    def _checksum(self) -> str:
        return str(steps(self._space.record())["train"]["outputs"]["weights_checksum"])

    def _round(self, commands: list[tuple[str, ...]], duration: float) -> None:
        """Start commands, watch them until they have ended, and kill one that executes the run meanwhile."""
        launchers: list[subprocess.Popen[str]] = []
        started, moment = time.monotonic(), self._chance.uniform(1.0, duration)
        waits = [0.0, *(self._chance.choice((0.0, 0.2, duration / 3)) for _ in commands[1:])]
        while len(launchers) < len(commands) or any(launcher.poll() is None for launcher in launchers):
            seconds = time.monotonic() - started
            if len(launchers) < len(commands) and seconds >= waits[len(launchers)]:
                clock = str(self._chance.randint(-DAY, DAY))
                path = os.pathsep.join([str(CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])])
                launchers.append(
                    self._space.start(*commands[len(launchers)], SLIPWAY_TEST_CLOCK=clock, PYTHONPATH=path)
                )
            self._watch()
            if seconds > moment and self._kill(launchers):
                moment = LIMIT_SECONDS
            if seconds > LIMIT_SECONDS:
                self.report.problems.append("a command did not end by itself")
                for launcher in launchers:
                    launcher.kill()
            time.sleep(0.02)
        for launcher in launchers:
            self._end(launcher)

    def _watch(self) -> None:
        with contextlib.suppress(psutil.Error):  # one has just ended
            found = trainers(self._space.path)
            self.report.counts["observations of a trainer"] += bool(found)
            if len(found) > 1 and all(each.is_running() for each in found):
                self.report.problems.append(f"trainers at once: {found}")

    def _kill(self, launchers: list[subprocess.Popen[str]]) -> bool:
        """Kill a command that executes the run, its executing process, or both; return whether there was one."""
        victims = self._chance.choice(("command", "executor", "both"))
        for launcher in launchers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(launcher.pid).children():
                    if EXECUTOR not in child.cmdline():
                        continue
                    status = RunFolder(self._space.path / "runs" / "latest").read().status
                    if status != "running" and child.cmdline():
                        self.report.problems.append(f"the run is executed, and its record says {status}")
                    if victims != "executor":
                        launcher.kill()
                    if victims != "command":
                        child.kill()
                    self.report.counts[f"kills of {victims}"] += 1
                    return True
        return False

    def _end(self, launcher: subprocess.Popen[str]) -> None:
        output, error = launcher.communicate()
        self.report.counts[f"exit codes {launcher.returncode}"] += 1
        if "Traceback" in output + error or (launcher.returncode == 2 and not any(each in error for each in REFUSED)):
            self.report.problems.append(f"exit code {launcher.returncode}: {output}{error}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.resume", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31)))
    options = parser.parse_args()
    print(f"seed {options.seed}: the same plan again with SLIPWAY_SEED={options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        report = Soak(Path(folder), options.seed).run(options.seconds)
    print(f"chaos of resumes: {'FAILED' if report.problems else 'passed'}: {report}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
