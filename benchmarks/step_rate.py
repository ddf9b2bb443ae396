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
- processes: one replica per core (two, and four where there are four cores), compared with one process on one core and
  with the limit: as many independent processes at once, each with a replica's batch on a core of its own. All train the
  same network on the same examples per step, for each of three networks. With --explain, the replicas also run without
  all-reduce, on the same batch in every step, and with a single step per call; a table shows the milliseconds of a step
  for each. Without all-reduce, the callback of tensorflow and jax in which sums are made is called all the same.

Every variant runs in its own process. The variants take turns over several rounds, so that other work on the machine
affects all of them. The output shows medians over the rounds, of the rates and of each round's ratios. Time is measured
inside the processes, without imports, building the network and, except for flowers, the first epoch. The flowers
variants keep all cores busy, so they are also compared by examples per CPU second, which other work hardly affects.
With --engine and --network, the part processes runs on another engine, or on some networks only.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import step_rate_sides

PARTS = ("dense", "flowers", "processes")
DENSE_BATCH, FLOWERS_BATCH = 32, step_rate_sides.FLOWERS_BATCH
FLOWERS_SIZE = step_rate_sides.FLOWERS_SIZE
IMAGES = 8192  # of 28x28 pixels
FLOWERS = 960  # JPEG files
FLOWERS_EPOCHS = 5
FLOWERS_SPLIT = {"train": 0.8, "validation": 0.19, "test": 0.01}
DENSE_EPOCHS = 12
# The networks of the part processes: global batch, steps of the measured epoch with one process, kind of images.
NETWORKS = {
    "dense": (128, 1500, "images"), "convolutional": (128, 60, "images"), "flowers": (64, 12, "photographs"),
}  # fmt: skip
# Number of processes, where there are as many cores.
PROCESSES = {2: "two", 4: "four"}
# The changes to the replicas' steps with --explain, and what each omits or sets.
EXPLANATIONS = {
    "without all-reduce": ("no_all_reduce", {}),
    "on the same batch": ("same_batch", {}),
    "one step per call": ("nothing", {"steps_per_call": 1}),
}  # fmt: skip
RATIOS = (
    "dense / fit 1", "dense / fit 50", "dense / fit 1, cached batches", "dense / fit 50, cached batches",
    "flowers / codelab", "flowers in bfloat16 / codelab", "layers alone / codelab",
)  # fmt: skip
# Target ratios.
TARGETS = {"dense / fit 1": 5.0, "dense / fit 50": 1.1, "flowers in bfloat16 / codelab": 1.5}
WIDTH = 68  # of the first column
# Target of the replicas' rate by that of as many independent processes.
OF_THE_LIMIT = 0.9


class Rate(NamedTuple):
    """Steps or examples per second and, if measured, per CPU second."""

    a_second: float
    a_processor_second: float | None = None


def main() -> None:
    """Measure all variants in turn, then print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, action="append", help="run only this comparison (repeatable)")
    parser.add_argument("--network", choices=NETWORKS, action="append", help="processes: only this one (repeatable)")
    parser.add_argument("--engine", choices=("tensorflow", "jax", "pytorch"), default="tensorflow", help="of processes")
    parser.add_argument("--explain", action="store_true", help="processes: show where the replicas' time goes")
    options = parser.parse_args()
    rates: dict[str, list[Rate]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], Rate]] = {}
        ratios = list(RATIOS)
        for part in options.part or PARTS:
            if part == "processes":
                networks = options.network or list(NETWORKS)
                more, own = processes(Path(folder) / part, networks, options.engine, explain=options.explain)
                sides |= more
                ratios += own
            else:
                sides |= {"dense": dense, "flowers": flowers}[part](Path(folder) / part)
        for number in range(options.rounds):
            for name, measure in sides.items():
                rates.setdefault(name, []).append(measure())
                print(f"round {number + 1}: {name} {rates[name][-1].a_second:.1f}", file=sys.stderr, flush=True)
    show(rates, ratios)
    if options.explain:
        show_steps(rates)


def dense(root: Path) -> dict[str, Callable[[], Rate]]:
    """Return the variants of the small dense network, in steps/s."""
    step_rate_sides.make_images(root / "images", IMAGES)
    data = prepared(root, "images")
    return {
        "fit 1": lambda: in_a_process("dense", root / "images", "1"),
        "fit 50": lambda: in_a_process("dense", root / "images", "50"),
        "fit 1, cached batches": lambda: in_a_process("dense", root / "images", "1", "cached"),
        "fit 50, cached batches": lambda: in_a_process("dense", root / "images", "50", "cached"),
        "dense": lambda: trained(data, "dense", DENSE_BATCH, DENSE_EPOCHS),
    }


def flowers(root: Path) -> dict[str, Callable[[], Rate]]:
    """Return the variants of the flowers network, in examples/s including reading."""
    step_rate_sides.make_photographs(root / "photographs", FLOWERS)
    data = prepared(root, "photographs", image_size=FLOWERS_SIZE, split=FLOWERS_SPLIT)

    def ours(precision: str) -> Rate:
        settings = {"precision": precision}
        return trained(data, "flowers", FLOWERS_BATCH, FLOWERS_EPOCHS, whole=True, settings=settings)

    return {
        "codelab": lambda: in_a_process("flowers", root / "photographs", str(FLOWERS_EPOCHS)),
        "flowers": lambda: ours("float32"),
        "flowers in bfloat16": lambda: ours("mixed_bfloat16"),
        "layers alone": lambda: in_a_process("layers"),
    }


def processes(
    root: Path, networks: Sequence[str], engine: str, *, explain: bool
) -> tuple[dict[str, Callable[[], Rate]], list[str]]:
    """Return the variants with one and with several processes, in examples/s, and the ratios to show."""
    available = sorted(os.sched_getaffinity(0))
    data: dict[str, Path] = {}
    sides: dict[str, Callable[[], Rate]] = {}
    ratios = []
    for network in networks:
        batch, steps, images = NETWORKS[network]
        if images not in data:
            data[images] = _scaling_images(root, images, min(len(available), max(PROCESSES)))
        run = functools.partial(trained, data[images], network, engine=engine, epochs=2)
        alone = f"{network}: one process"
        sides[alone] = functools.partial(run, batch, steps=steps, cores=[available[:1]])
        for count, name in PROCESSES.items():
            if count > len(available):
                continue
            cores, own = available[:count], [[core] for core in available[:count]]
            replicas = functools.partial(run, batch, steps=steps * count, cores=[cores] * count)
            limit, together = f"{network}: {name} independent", f"{network}: {name} replicas"
            sides[limit] = functools.partial(run, batch // count, steps=steps * count, cores=own, independent=True)
            sides[together] = replicas
            ratios += [f"{limit} / {alone}", f"{together} / {alone}", f"{together} / {limit}"]
            for text, (without, settings) in EXPLANATIONS.items() if explain else ():
                sides[f"{together}, {text}"] = functools.partial(replicas, without=without, settings=settings)
    return sides, ratios


def _scaling_images(root: Path, images: str, shards: int) -> Path:
    """Make and prepare the images of the part processes."""
    if images == "images":
        step_rate_sides.make_images(root / images, IMAGES // 2)
        return prepared(root, images, replicas=shards)
    step_rate_sides.make_photographs(root / images, FLOWERS // 4)
    return prepared(root, images, replicas=shards, image_size=FLOWERS_SIZE, split=FLOWERS_SPLIT)


def prepared(root: Path, images: str, replicas: int = 1, **settings: Any) -> Path:
    """Return the folder of the prepared data set."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    values = {
        "source": f"images:{root / images}", "store": f"{root}/store", "name": images, "check": "header",
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
    independent: bool = False,
    steps: int | None = None,
    whole: bool = False,
    without: str = "nothing",
    engine: str = "tensorflow",
    settings: Mapping[str, Any] | None = None,
) -> Rate:
    """Run Slipway's trainer, one process per element of `cores`.

    Args:
        data: The prepared data set.
        network: The function of `benchmarks.step_rate_sides` that builds the network.
        batch: Examples per step, over all replicas.
        epochs: How many epochs.
        cores: The cores of each process; None: one process with all of them.
        independent: The processes are not replicas of one job, but jobs of their own.
        steps: Steps per epoch; None: as many as the training split has batches.
        whole: Return the rate of the whole training rather than that of all epochs but the first.
        without: What to omit; see `step_rate_sides.run_trainer`.
        engine: The engine.
        settings: More of the section train.

    Returns:
        Steps/s; examples/s if `whole` is true or `steps` is given. Independent processes' rates are added up.
    """
    from slipway.core import manifest as manifests

    cores = cores or [sorted(os.sched_getaffinity(0))]
    replicas = 1 if independent else len(cores)
    steps_per_epoch = steps or manifests.read(data).splits["train"].examples // batch
    total = steps_per_epoch * epochs
    job = {
        "data": str(data),
        "model": {"builder": f"benchmarks.step_rate_sides:{network}"},
        "train": {"steps": total, "batch_size": batch, "precision": "float32", "engine": engine, **(settings or {})},
        "plan": {
            "replicas": replicas, "batch_per_replica": batch // replicas, "steps_per_epoch": steps_per_epoch,
            "steps": total,
        },
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        jobs = [cores] if not independent else [[own] for own in cores]
        roots = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in jobs]
        run_jobs(json.dumps(job), jobs, roots, without)
        spans = [_span(root, steps_per_epoch, total) for root in roots]
        seconds, processor_seconds = map(float, (roots[0] / "seconds").read_text().split())
    if whole:
        return Rate(batch * total / seconds, batch * total / processor_seconds)
    rate = sum((total - steps_per_epoch) / span for span in spans)
    return Rate(rate * batch if steps else rate)


def _span(root: Path, first: int, last: int) -> float:
    """Return the seconds between the ends of two steps."""
    history = [json.loads(line) for line in (root / "logs" / "metrics.jsonl").read_text().splitlines()]
    at = {line["step"]: line["time"] for line in history if line["kind"] == "train"}
    return float(at[last] - at[first])


def run_jobs(job: str, jobs: Sequence[list[list[int]]], roots: Sequence[Path], without: str) -> None:
    """Run `job` once in each of `roots` at the same time, with one process for each element of its cores, and wait."""
    running = []
    for cores, root in zip(jobs, roots, strict=True):
        addresses = _free_addresses(len(cores))
        tasks = {"chief": addresses[:1], "worker": addresses[1:]}
        for number, own in enumerate(cores):
            task = {"type": "worker", "index": number - 1} if number else {"type": "chief", "index": 0}
            environment = _environment() | {
                "AIP_MODEL_DIR": f"{root}/model",
                "AIP_CHECKPOINT_DIR": f"{root}/checkpoints",
                "AIP_TENSORBOARD_LOG_DIR": f"{root}/logs",
            }
            if len(cores) > 1:
                environment["TF_CONFIG"] = json.dumps({"cluster": tasks, "task": task})
            command = [sys.executable, "-m", "benchmarks.step_rate_sides", "trainer", f"{root}/seconds", job, without]
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


def show(rates: dict[str, list[Rate]], names: Sequence[str]) -> None:
    """Print the table of medians and, as the last line, the ratios as JSON; `names` are pairs "a / b" of variants."""
    print(f"{'':{WIDTH}}{'per second':>12}{'per CPU second':>22}")
    for name, values in rates.items():
        unit = "steps" if values[0].a_processor_second is None and ":" not in name else "examples"
        text = f"{name:<{WIDTH}}{statistics.median(value.a_second for value in values):>12,.1f}"
        by_processor = [value.a_processor_second for value in values if value.a_processor_second is not None]
        text += f"{statistics.median(by_processor):>22,.1f}" if by_processor else f"{'':>22}"
        print(f"{text} {unit}")
    print(f"\n{'':{WIDTH}}{'ratio':>12}{'target':>10}   per round")
    ratios = {}
    for name in names:
        ours, _, theirs = name.partition(" / ")
        if ours in rates:
            pairs = list(zip(rates[ours], rates[theirs], strict=True))
            goal = OF_THE_LIMIT if ours.endswith("replicas") and theirs.endswith("independent") else TARGETS.get(name)
            target = f"{goal:.1f}" if goal else ""
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


def show_steps(rates: dict[str, list[Rate]]) -> None:
    """Print the milliseconds of a step for the limit, the replicas, and the replicas with each of `EXPLANATIONS`."""
    columns = ("limit", "replicas", *EXPLANATIONS)
    print("".join([f"\n{'milliseconds per step':<36}", *(f"{column:>20}" for column in columns)]))
    for together in [name for name in rates if name.endswith(" replicas")]:
        batch = NETWORKS[together.partition(":")[0]][0]
        variants = [together.replace("replicas", "independent"), together]
        variants += [f"{together}, {text}" for text in EXPLANATIONS]
        each = [[1000 * batch / rate.a_second for rate in rates.get(name, [])] for name in variants]
        texts = [f"{statistics.median(values):.2f}" if values else "" for values in each]
        print("".join([f"{together:<36}", *(f"{text:>20}" for text in texts)]))


def _show_ratio(name: str, each: list[float], target: str) -> float:
    median = round(statistics.median(each), 3)
    print(f"{name:<{WIDTH}}{median:>12.2f}{target:>10}   {' '.join(f'{ratio:.2f}' for ratio in each)}")
    return median


if __name__ == "__main__":
    main()
