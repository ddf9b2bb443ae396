"""Training throughput compared with code from Google's guides: `python -m benchmarks.step_rate`.

Three comparisons, each with the same network, batch size and number of processes on both sides:

- dense: a small dense network (28x28 pixels, 128 units, batch 32, Adam). Baseline: the TPU guide's Keras `fit` on
  tf.data with map, shuffle, repeat and batch, with 1 and with 50 steps per call; as a stronger baseline, both also on
  precomputed, cached batches. Compared with Slipway's trainer as it runs in the pipeline, including logging.
- flowers: the network of the codelab on distributed training (180x180 pixels, batch 32, a fifth of the images for
  validation after each epoch). Baseline: the codelab's image_dataset_from_directory on JPEG files, cached, Resizing and
  Rescaling in the network, MirroredStrategy, `fit`. Compared with Slipway's trainer on the same files, prepared, in
  float32 like the codelab and in mixed_bfloat16, which is faster on CPUs with bfloat16 instructions. Time runs from the
  first file read to the end of the last epoch: it includes decoding, tracing, validation and Slipway's checkpoints, but
  not imports or the final export.
  "layers alone" is an upper bound for TensorFlow's layers in float32: their forward and backward pass on one batch in
  memory, in a single call, without optimizer, input, validation or startup. The codelab's code is close to this bound,
  so the target applies to bfloat16.
- processes: two Slipway processes on two cores, compared with one process limited to one core, on the same network and
  global batch.

Every variant runs in its own process. The variants take turns over several rounds, so that other work on the machine
affects all of them. The output shows medians over the rounds, of the rates and of each round's ratios. Time is measured
inside the processes, without imports, building the network and, except for flowers, the first epoch. The flowers
variants keep all cores busy, so they are also compared by examples per CPU second, which other work hardly affects.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import step_rate_sides

PARTS = ("dense", "flowers", "processes")
DENSE_BATCH, FLOWERS_BATCH = 32, step_rate_sides.FLOWERS_BATCH
IMAGES = 8192  # of 28x28 pixels
FLOWERS = 960  # JPEG files
FLOWERS_EPOCHS = 5
FLOWERS_SPLIT = {"train": 0.8, "validation": 0.19, "test": 0.01}
DENSE_EPOCHS, PROCESSES_EPOCHS = 12, 3
RATIOS = (
    "dense / fit 1", "dense / fit 50", "dense / fit 1, cached batches", "dense / fit 50, cached batches",
    "flowers / codelab", "flowers in bfloat16 / codelab", "layers alone / codelab", "two processes / one on one core",
)  # fmt: skip
# Target ratios.
TARGETS = {
    "dense / fit 1": 5.0, "dense / fit 50": 1.1, "flowers in bfloat16 / codelab": 1.5,
    "two processes / one on one core": 1.5,
}  # fmt: skip


class Rate(NamedTuple):
    """Steps or examples per second and, if measured, per CPU second."""

    a_second: float
    a_processor_second: float | None = None


def main() -> None:
    """Measure all variants in turn, then print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, action="append", help="run only this comparison (repeatable)")
    options = parser.parse_args()
    rates: dict[str, list[Rate]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], Rate]] = {}
        for part in options.part or PARTS:
            sides |= {"dense": dense, "flowers": flowers, "processes": processes}[part](Path(folder) / part)
        for number in range(options.rounds):
            for name, measure in sides.items():
                rates.setdefault(name, []).append(measure())
                print(f"round {number + 1}: {name} {rates[name][-1].a_second:.1f}", file=sys.stderr, flush=True)
    show(rates)


def dense(place: Path) -> dict[str, Callable[[], Rate]]:
    """Return the variants of the small dense network, in steps/s."""
    step_rate_sides.make_images(place / "images", IMAGES)
    data = prepared(place, "images")
    return {
        "fit 1": lambda: in_a_process("dense", place / "images", "1"),
        "fit 50": lambda: in_a_process("dense", place / "images", "50"),
        "fit 1, cached batches": lambda: in_a_process("dense", place / "images", "1", "cached"),
        "fit 50, cached batches": lambda: in_a_process("dense", place / "images", "50", "cached"),
        "dense": lambda: trained(data, "dense", DENSE_BATCH, DENSE_EPOCHS),
    }


def flowers(place: Path) -> dict[str, Callable[[], Rate]]:
    """Return the variants of the flowers network, in examples/s including reading."""
    step_rate_sides.make_photographs(place / "photographs", FLOWERS)
    data = prepared(place, "photographs", image_size=(180, 180), split=FLOWERS_SPLIT)

    def ours(precision: str) -> Rate:
        return trained(data, "flowers", FLOWERS_BATCH, FLOWERS_EPOCHS, whole=True, precision=precision)

    return {
        "codelab": lambda: in_a_process("flowers", place / "photographs", str(FLOWERS_EPOCHS)),
        "flowers": lambda: ours("float32"),
        "flowers in bfloat16": lambda: ours("mixed_bfloat16"),
        "layers alone": lambda: in_a_process("layers"),
    }


def processes(place: Path) -> dict[str, Callable[[], Rate]]:
    """Return the variants with two processes and with one process on one core, in steps/s."""
    step_rate_sides.make_images(place / "images", IMAGES // 2)
    data = prepared(place, "images", replicas=2)
    cores = sorted(os.sched_getaffinity(0))[:2]
    return {
        "one on one core": lambda: trained(data, "convolutional", 128, PROCESSES_EPOCHS, cores=[cores[:1]]),
        "two processes": lambda: trained(data, "convolutional", 128, PROCESSES_EPOCHS, cores=[cores, cores]),
    }


def prepared(place: Path, images: str, replicas: int = 1, **settings: Any) -> Path:
    """Return the folder of the prepared data set."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    values = {
        "source": f"images:{place / images}", "store": f"{place}/store", "name": images, "check": "header",
        "duplicates": "keep", "split": {"train": 0.98, "validation": 0.01, "test": 0.01},
    }  # fmt: skip
    return prepare(DataSettings.model_validate({**values, **settings}), replicas=replicas).folder


def in_a_process(*arguments: str | Path) -> Rate:
    """Run one variant of `benchmarks.step_rate_sides` in a new process, and return its rate."""
    command = [sys.executable, "-m", "benchmarks.step_rate_sides", *map(str, arguments)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Rate(*map(float, done.stdout.splitlines()[-1].split()))


def trained(
    data: Path,
    network: str,
    batch: int,
    epochs: int,
    *,
    cores: list[list[int]] | None = None,
    whole: bool = False,
    precision: str = "float32",
) -> Rate:
    """Run Slipway's trainer, one process per core: steps/s after the first epoch, or examples/s of the `whole`."""
    from slipway.core import manifest as manifests

    cores = cores or [sorted(os.sched_getaffinity(0))]
    steps_per_epoch = manifests.read(data).splits["train"].examples // batch
    steps = steps_per_epoch * epochs
    job = {
        "data": str(data),
        "model": {"builder": f"benchmarks.step_rate_sides:{network}"},
        "train": {"steps": steps, "batch_size": batch, "precision": precision},
        "plan": {
            "replicas": len(cores), "batch_per_replica": batch // len(cores), "steps_per_epoch": steps_per_epoch,
            "steps": steps,
        },
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        run_replicas(json.dumps(job), cores, Path(place))
        history = [json.loads(line) for line in (Path(place) / "logs" / "metrics.jsonl").read_text().splitlines()]
        seconds, processor_seconds = map(float, (Path(place) / "seconds").read_text().split())
    if whole:
        return Rate(batch * steps / seconds, batch * steps / processor_seconds)
    at = {line["step"]: line["time"] for line in history if line["kind"] == "train"}
    return Rate((steps - steps_per_epoch) / (at[steps] - at[steps_per_epoch]))


def run_replicas(job: str, cores: list[list[int]], place: Path) -> None:
    """Run one trainer process for each of `cores` and wait for them."""
    addresses = _free_addresses(len(cores))
    tasks = {"chief": addresses[:1], "worker": addresses[1:]}
    running = []
    for number, own in enumerate(cores):
        task = {"type": "worker", "index": number - 1} if number else {"type": "chief", "index": 0}
        environment = _environment() | {
            "AIP_MODEL_DIR": f"{place}/model",
            "AIP_CHECKPOINT_DIR": f"{place}/checkpoints",
            "AIP_TENSORBOARD_LOG_DIR": f"{place}/logs",
        }
        if len(cores) > 1:
            environment["TF_CONFIG"] = json.dumps({"cluster": tasks, "task": task})
        command = [sys.executable, "-m", "benchmarks.step_rate_sides", "trainer", f"{place}/seconds", job]
        running.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=functools.partial(os.sched_setaffinity, 0, own),
            )
        )
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(output)


def _free_addresses(count: int) -> list[str]:
    """Return loopback addresses with free ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def _environment() -> dict[str, str]:
    without = ("TF_CONFIG", "CLUSTER_SPEC")
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def show(rates: dict[str, list[Rate]]) -> None:
    """Print the table of medians and, as the last line, the ratios as JSON."""
    print(f"{'':40}{'per second':>12}{'per CPU second':>22}")
    for name, values in rates.items():
        unit = "steps" if values[0].a_processor_second is None else "examples"
        text = f"{name:<40}{statistics.median(value.a_second for value in values):>12,.1f}"
        by_processor = [value.a_processor_second for value in values if value.a_processor_second is not None]
        text += f"{statistics.median(by_processor):>22,.1f}" if by_processor else f"{'':>22}"
        print(f"{text} {unit}")
    print(f"\n{'':40}{'ratio':>12}{'target':>10}   per round")
    ratios = {}
    for name in RATIOS:
        ours, _, theirs = name.partition(" / ")
        if ours in rates:
            pairs = list(zip(rates[ours], rates[theirs], strict=True))
            target = f"{TARGETS[name]:.1f}" if name in TARGETS else ""
            ratios[name] = _show_ratio(name, [one.a_second / other.a_second for one, other in pairs], target)
            by_processor = [
                one.a_processor_second / other.a_processor_second
                for one, other in pairs
                if one.a_processor_second and other.a_processor_second
            ]
            if by_processor:
                ratios[f"{name}, processor"] = _show_ratio("  by CPU seconds", by_processor, "")
    load = [round(value, 1) for value in os.getloadavg()]
    print(f"\nload average (1, 5, 15 minutes): {load}, cores: {len(os.sched_getaffinity(0))}")
    print(json.dumps({"ratios": ratios, "targets": TARGETS, "load": load}))


def _show_ratio(name: str, each: list[float], target: str) -> float:
    median = round(statistics.median(each), 3)
    print(f"{name:<40}{median:>12.2f}{target:>10}   {' '.join(f'{ratio:.2f}' for ratio in each)}")
    return median


if __name__ == "__main__":
    main()
