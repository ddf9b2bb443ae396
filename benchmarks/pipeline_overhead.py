"""Pipeline overhead: where the seconds of a run go: `python -m benchmarks.pipeline_overhead`.

Runs the digits pipeline twice in a temporary folder: the first run prepares the data, the second reuses it. The time
recorded by the steps is work; everything else (command line, kfp, process startup) is overhead.

With `--cifar`, runs the pipeline on 60,000 JPEG files of 32x32 pixels instead (`--cifar FOLDER`: on those in
FOLDER/train and FOLDER/test) with two epochs of a small network, and shows wall and CPU seconds by phase. With
`--against TREE`, runs alternate with the code of another checkout. CPU seconds cover all processes of the run and
vary less than wall time on a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.photographs import make_cifar

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / "configs" / "digits.yaml"
CIFAR = """
name: cifar
data: {{source: 'images:{images}'}}
model: {{builder: 'slipway.trainer.models.digits:build', arguments: {{width: 4}}}}
train: {{epochs: 2, batch_size: 128}}
"""
SAMPLE_SECONDS = 0.1
# Unit of a step's progress events during its actual work.
WORK = {"prepare_data": "images", "train": "steps", "evaluate": "examples"}

Seconds = dict[str, tuple[float, float]]  # activity -> wall and CPU seconds
Interval = tuple[str, float, float]  # activity, start, end


def run(folder: Path) -> dict[str, float]:
    """Run the pipeline in `folder`; return the seconds of the whole command, of each step, and the rest."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "slipway.pipelines", "run", "-c", str(CONFIGURATION)],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    whole = time.monotonic() - started
    record = json.loads((folder / "runs" / "latest" / "run.json").read_text())
    steps = {step["name"]: step["seconds"] or 0.0 for step in record["steps"]}
    return {**steps, "outside steps": whole - sum(steps.values()), "whole": whole}


def digits() -> None:
    """Run the digits pipeline twice, and print the overhead of the second run."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = run(Path(folder)), run(Path(folder))
    table = Table("seconds", "first run", "second run", title="digits, the whole pipeline")
    for name in first:
        table.add_row(name, f"{first[name]:.1f}", f"{second[name]:.1f}")
    Console().print(table)
    print(
        json.dumps(
            {
                "second_run_seconds": round(second["whole"], 2),
                "second_run_outside_steps_seconds": round(second["outside steps"], 2),
                "second_run_outside_steps_share": round(second["outside steps"] / second["whole"], 3),
            }
        )
    )


class Clock:
    """Samples the CPU seconds of a process and all its descendants until it ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = psutil.Process(process.pid)
        self._samples = [(time.time(), 0.0)]
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while self._process.status() != psutil.STATUS_ZOMBIE:
                spent = 0.0
                for process in [self._process, *self._process.children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        spent += sum(process.cpu_times()[:4])  # including children that have ended
                self._samples.append((time.time(), max(spent, self._samples[-1][1])))
                time.sleep(SAMPLE_SECONDS)

    def between(self, start: float, end: float) -> tuple[float, float]:
        """Return wall and CPU seconds between two times."""
        times, spent = zip(*self._samples, strict=True)
        return end - start, float(np.interp(end, times, spent) - np.interp(start, times, spent))


def measured(tree: Path, images: Path) -> tuple[Seconds, Seconds]:
    """Run the code of `tree` in a new folder; return seconds by part and by phase, both with `outside steps`."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "cifar.yaml")
        configuration.write_text(CIFAR.format(images=images))
        started = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "slipway.pipelines", "run", "-c", str(configuration)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
        )
        clock = Clock(process)
        if process.wait():
            sys.exit(f"the run of {tree} failed")
        ended = time.time()
        lines = Path(folder, "runs/latest/events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    parts, phases = [*_parts(events)], [*_phases(events)]
    by_part, by_phase = _sum(clock, parts), _sum(clock, phases)
    whole, inside = clock.between(started, ended), list(by_part.values())
    outside = whole[0] - sum(wall for wall, _ in inside), whole[1] - sum(cpu for _, cpu in inside)
    for seconds in (by_part, by_phase):
        seconds |= {"outside steps": outside, "whole run": whole}
    return by_part, by_phase


def _parts(events: list[dict[str, Any]]) -> list[Interval]:
    """Return each step's time before, during and after its work, from its progress events."""
    intervals: list[Interval] = []
    for step in dict.fromkeys(event["step"] for event in events):
        own = [event for event in events if event["step"] == step]
        start, end = own[0]["time"], own[-1]["time"]
        work = [event["time"] for event in own if event.get("unit") == WORK.get(step, "")] or [end]
        intervals.append((f"{step}: before the first {WORK[step]}" if step in WORK else step, start, work[0]))
        if step in WORK:
            intervals += [(f"{step}: {WORK[step]}", work[0], work[-1]), (f"{step}: after them", work[-1], end)]
    return intervals


def _phases(events: list[dict[str, Any]]) -> list[Interval]:
    """Return the time of each phase reported by the steps."""
    intervals: list[Interval] = []
    name = ""
    for event, following in itertools.pairwise(events):
        step = event["step"]
        if event["event"] == "started":
            name = f"{step}: starting"
        elif event["event"] == "phase":
            name = f"{step}: {event['text']}"
        elif event.get("unit") == WORK.get(step, ""):
            name = f"{step}: {event['unit']}"
        if event["event"] != "finished":
            intervals.append((name, event["time"], following["time"]))
    return intervals


def _sum(clock: Clock, intervals: list[Interval]) -> Seconds:
    seconds: Seconds = {}
    for name, start, end in intervals:
        wall, cpu = clock.between(start, end)
        before = seconds.get(name, (0.0, 0.0))
        seconds[name] = (before[0] + wall, before[1] + cpu)
    return seconds


def cifar(images: Path | None, against: Path | None, rounds: int) -> None:
    """Run all trees in turn on 60,000 images, and print the median seconds by part and phase."""
    trees = {"before": against, "this tree": ROOT} if against else {"this tree": ROOT}
    rows: dict[str, list[tuple[Seconds, Seconds]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        if images is None:
            images = Path(folder, "images")
            make_cifar(images)
        for _ in range(rounds):
            for name, tree in trees.items():
                assert tree is not None
                rows[name].append(measured(tree.resolve(), images.resolve()))
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    for kind, title in enumerate(("by part", "by phase")):
        shown = trees if kind == 0 else ["this tree"]
        table = Table(title=f"60,000 JPEG files, two epochs, {title}: median of {rounds} (load {load})")
        for column in ("seconds", *(f"{name}, {unit}" for name in shown for unit in ("wall", "CPU"))):
            table.add_column(column, justify="left" if column == "seconds" else "right")
        for row in rows["this tree"][0][kind]:
            found = [[each[kind].get(row, (0.0, 0.0)) for each in rows[name]] for name in shown]
            table.add_row(row, *(f"{median(one[unit] for one in each):.1f}" for each in found for unit in (0, 1)))
        Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cifar", metavar="FOLDER", type=Path, nargs="?", const=Path(), help="60,000 JPEG files")
    parser.add_argument("--against", metavar="TREE", type=Path, help="with --cifar: another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="with --cifar: runs of each tree")
    arguments = parser.parse_args()
    if arguments.cifar is None:
        digits()
    else:
        made = None if arguments.cifar == Path() else arguments.cifar
        cifar(made, arguments.against, arguments.rounds)


if __name__ == "__main__":
    main()
