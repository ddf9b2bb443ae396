"""Estimates of training on this machine's CPUs against runs: `python -m benchmarks.advice_cpus`.

Three projects as `slipway init` writes them, of images, a table and texts, train with one, two and four replicas, each
by the command that a user types. Before, their step is measured as `slipway hardware --compare` does, in one process.
Prints measured and estimated milliseconds of a step with their ratio (target: 0.77 to 1.3), and the most memory of a
trainer's process, which is not to be estimated lower, nor higher than 1.3 times in the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slipway.core import manifest as manifests
from slipway.core.atomic import json_lines
from slipway.core.paths import OUTPUT_VARIABLES
from slipway.pipelines.advice import cpus
from slipway.pipelines.advice.jobs import job_of
from slipway.pipelines.config.config import load
from slipway.pipelines.hardware.estimate import Estimate, Training
from slipway.trainer.config import JobConfig

TEMPLATES = ("images", "tabular", "text")
REPLICAS = (1, 2, 4)
TARGET = 1.3


def main() -> None:
    """Train and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10, help="how long each training is to take")
    asked = parser.parse_args()
    print("| project | replicas | measured ms | estimated ms | ratio | measured MiB | estimated MiB | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for template in TEMPLATES:
            for row in rows(template, asked.seconds):
                print(row, flush=True)


def rows(template: str, seconds: int) -> Iterator[str]:
    """Yield the rows of a template."""
    slipway("init", template, "--template", template)
    os.chdir(template)
    slipway("rehearse", "--hardware", "cpu")
    job = job_of(load(Path("slipway.yaml")), "")
    speed = cpus.rates(job, lambda _: None)
    training = Training(train=job.train, manifest=manifests.read(Path(job.data)), examples_per_core=None)
    for replicas in REPLICAS:
        made = cpus.here(training, speed, replicas)
        measured = run(replicas, max(50, int(seconds / made.step.middle)))
        memory = peak(job) if replicas == 1 else None
        yield row(template, replicas, measured, memory, made)
    os.chdir("..")


def row(template: str, replicas: int, measured: float, memory: int | None, made: Estimate) -> str:
    """Return a row of the table."""
    ratio = measured / made.step.middle
    mark = "" if 1 / TARGET <= ratio <= TARGET else " (missed)"
    of_memory = "| | | |"
    if memory is not None and made.peak_bytes is not None:
        of_memory = f"| {memory / 2**20:,.0f} | {made.peak_bytes / 2**20:,.0f} | {made.peak_bytes / memory:.2f} |"
    times = f"{1e3 * measured:.2f} | {1e3 * made.step.middle:.2f} | {ratio:.2f}{mark} "
    return f"| {template} | {replicas} | {times}{of_memory}"


def run(replicas: int, steps: int) -> float:
    """Train; return the median seconds of a step."""
    settings = [f"train.steps={steps}", "train.epochs=null", "train.early_stop=null", "train.export=last"]
    settings += ["evaluate.gate.minimum=null", "evaluate.champion=none"]
    slipway("run", "--hardware", f"cpu*{replicas}" if replicas > 1 else "cpu", *(f"--set={text}" for text in settings))
    history = json_lines(Path("runs/latest/train/logs/metrics.jsonl").read_bytes())
    rates = [entry["steps_per_second"] for entry in history if entry.get("steps_per_second")]
    return 1 / statistics.median(rates)


def peak(job: JobConfig) -> int:
    """Return the most memory, in bytes, of a trainer that is a process of its own, as on another machine."""
    steps = {"steps": 200, "epochs": None, "early_stop": None, "export": "last"}
    job = job.model_copy(update={"train": job.train.model_copy(update=steps)})
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"steps": 200})})
    command = [sys.executable, "-m", "slipway.trainer", "--config", job.model_dump_json()]
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nothing:
        folders = {name: f"{folder}/{name}" for name in OUTPUT_VARIABLES}
        child = subprocess.Popen(command, env={**os.environ, **folders}, stdout=nothing, stderr=nothing)
        _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"the trainer ended with status {status}")
    return 1024 * usage.ru_maxrss


def slipway(*arguments: str) -> None:
    """Run a command in the working folder; its output is shown if it fails."""
    ended = subprocess.run([sys.executable, "-m", "slipway.pipelines", *arguments], capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"slipway {' '.join(arguments)}: {ended.stdout}{ended.stderr}")


if __name__ == "__main__":
    main()
