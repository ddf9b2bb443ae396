"""Pipeline overhead: where the seconds of a run go, by phase: `python -m benchmarks.pipeline_overhead`.

Runs the digits pipeline in a temporary folder: once to prepare the data, then measured runs that reuse it, each next to
a plain Keras script that trains, exports and evaluates the same network on the same data. The phases are those of
`slipway status --timings`.

With `--cifar`, runs the pipeline on 60,000 JPEG files of 32x32 pixels instead (`--cifar FOLDER`: on those in
FOLDER/train and FOLDER/test) with two epochs of a small network, each time in a new folder. With `--against TREE`, runs
alternate with the code of another checkout. CPU seconds cover all processes of the run and vary less than wall time on
a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.photographs import make_cifar
from slipway.pipelines.runs.timings import intervals

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / "configs" / "digits.yaml"
CIFAR = """
name: cifar
data: {{source: 'images:{images}'}}
model: {{builder: 'slipway.trainer.models.digits:build', arguments: {{width: 4}}}}
train: {{epochs: 2, batch_size: 128}}
"""
SAMPLE_SECONDS = 0.1
# Units of the progress events that are training steps.
STEPS = ("train", "steps")
PLAIN = """
import keras, numpy as np
from sklearn.datasets import load_digits
from slipway.trainer.models.digits import build
images, labels = load_digits(return_X_y=True)
images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
keras.utils.set_random_seed(0)
model = build((8, 8, 1), 10)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])
train, validation = (images[:1438], labels[:1438]), (images[1438:1618], labels[1438:1618])
model.fit(*train, batch_size=64, epochs=30, validation_data=validation, verbose=0)
model.export("exported", verbose=False)
print(model.evaluate(images[1618:], labels[1618:], verbose=0))
"""

Seconds = dict[tuple[str, str], tuple[float, float]]  # step and phase -> wall and CPU seconds


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


def command(arguments: list[str], folder: Path, tree: Path = ROOT) -> tuple[float, float, Clock]:
    """Run Python with the code of `tree` in `folder`; return when it started and ended, and its clock."""
    started = time.time()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    clock = Clock(process)
    if process.wait():
        sys.exit(f"{arguments} failed in {tree}")
    return started, time.time(), clock


def slipway_run(configuration: Path, folder: Path, tree: Path = ROOT) -> Seconds:
    """Run a pipeline; return the seconds of all phases, of what is no training step, and of the whole command."""
    started, ended, clock = command(["-m", "slipway.pipelines", "run", "-c", str(configuration)], folder, tree)
    latest = folder / "runs" / "latest"
    record = json.loads((latest / "run.json").read_text())
    events = [json.loads(line) for line in (latest / "events.jsonl").read_text().splitlines()]
    closed = datetime.fromisoformat(record["ended"]).timestamp()
    seconds: Seconds = {}
    for row in intervals(events, started, closed - record["seconds"], closed):
        wall, cpu = clock.between(row.start, row.end)
        before = seconds.get((row.step, row.phase), (0.0, 0.0))
        seconds[row.step, row.phase] = before[0] + wall, before[1] + cpu
    whole, steps = clock.between(started, ended), seconds[STEPS]
    seconds["all", "outside of training steps"] = whole[0] - steps[0], whole[1] - steps[1]
    seconds["all", "the whole command"] = whole
    return seconds


def plain_run(folder: Path) -> Seconds:
    """Run the plain script; return the seconds of the whole command."""
    started, ended, clock = command(["-c", PLAIN], folder)
    return {("all", "the whole command"): clock.between(started, ended)}


def digits(against: Path | None, rounds: int) -> None:
    """Run the digits pipeline and the plain script in turn."""
    trees = _trees(against)
    with contextlib.ExitStack() as stack:
        folders = {name: Path(stack.enter_context(tempfile.TemporaryDirectory())) for name in trees}
        for name, tree in trees.items():
            slipway_run(CONFIGURATION, folders[name], tree)  # prepares the data
        rows: dict[str, list[Seconds]] = {name: [] for name in (*trees, "plain script")}
        for _ in range(rounds):
            for name, tree in trees.items():
                rows[name].append(slipway_run(CONFIGURATION, folders[name], tree))
            rows["plain script"].append(plain_run(folders["this tree"]))
    show("digits, data set prepared before", rows, rounds)


def cifar(images: Path | None, against: Path | None, rounds: int) -> None:
    """Run all trees in turn on 60,000 images."""
    trees = _trees(against)
    rows: dict[str, list[Seconds]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        if images is None:
            images = Path(folder, "images")
            make_cifar(images)
        configuration = Path(folder, "cifar.yaml")
        configuration.write_text(CIFAR.format(images=images.resolve()))
        for _ in range(rounds):
            for name, tree in trees.items():
                with tempfile.TemporaryDirectory() as runs:
                    rows[name].append(slipway_run(configuration, Path(runs), tree))
    show("60,000 JPEG files, two epochs", rows, rounds)


def _trees(against: Path | None) -> dict[str, Path]:
    return {"before": against.resolve(), "this tree": ROOT} if against else {"this tree": ROOT}


def show(title: str, rows: dict[str, list[Seconds]], rounds: int) -> None:
    """Print the median seconds of each phase."""
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    table = Table(title=f"{title}: median of {rounds} (load {load})")
    table.add_column("step")
    table.add_column("phase")
    for column in (f"{name}, {unit}" for name in rows for unit in ("wall", "CPU")):
        table.add_column(column, justify="right")
    for step, phase in dict.fromkeys(key for each in rows.values() for one in each for key in one):
        metrics = []
        for each in rows.values():
            found = [one.get((step, phase)) for one in each]
            for unit in (0, 1):
                values = [one[unit] for one in found if one]
                metrics.append(f"{median(values):.2f}" if values else "")
        table.add_row(step, phase, *metrics)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cifar", metavar="FOLDER", type=Path, nargs="?", const=Path(), help="60,000 JPEG files")
    parser.add_argument("--against", metavar="TREE", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each tree")
    arguments = parser.parse_args()
    if arguments.cifar is None:
        digits(arguments.against, arguments.rounds)
    else:
        made = None if arguments.cifar == Path() else arguments.cifar
        cifar(made, arguments.against, arguments.rounds)


if __name__ == "__main__":
    main()
