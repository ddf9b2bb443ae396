"""Throughput of data preparation from a folder of images: `python -m benchmarks.write_rate`.

Measured on generated images (`SETS`), and on a folder of the user's with `--images`. Each variant runs in its own
process, one after the other, for `--rounds` rounds; the median counts. The variants are a `tensorflow_datasets` builder
over the folder, Slipway checking headers, Slipway decoding every image, with `--against TREE` the same with the code of
another checkout and, as the physical limit, Slipway's worker processes only reading the same files and appending their
bytes to output files. What a variant wrote is synced to disk before the next one starts.

Rates are images/s of the whole call, from the folder to the finished data set. The limit has as many processes as the
step, and the list of the files beforehand. It is compared with the whole step and with the write phase alone, without
listing the folder before it and writing reports after it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.photographs import make_cifar, make_jpegs, make_pngs

# The generated images: title, default number of files, and the function that writes that many to a folder.
SETS: dict[str, tuple[str, int, Callable[[Path, int], None]]] = {
    "cifar": ("32x32 JPEG", 30_000, lambda folder, count: make_cifar(folder, count - count // 6, count // 6)),
    "png": ("32x32 PNG", 30_000, lambda folder, count: make_pngs(folder, count - count // 6, count // 6)),
    "jpeg": ("256x256 JPEG", 5_000, make_jpegs),
}
VARIANTS = {
    "tfds": "tensorflow_datasets, download_and_prepare",
    "header": "Slipway, check: header",
    "decode": "Slipway, check: decode",
    "before": "the same, before",
    "reading": "the same workers, reading and appending only",
}


def main() -> None:
    """Measure all variants in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="split/class/* or class/*, measured besides the sets")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS), help="generated images; default: all")
    parser.add_argument("--count", type=int, help="number of generated images of each set")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="default: all")
    parser.add_argument("--against", metavar="TREE", type=Path, help="another checkout to compare with, as `before`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="worker processes; default: one per core")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        with tempfile.TemporaryDirectory() as folder:
            measured = MEASURES[arguments.variant](arguments.images, arguments.workers, Path(folder))
        print(json.dumps(measured))
        return
    ratios = {}
    if arguments.images:
        ratios["images"] = show("the folder", medians(arguments.images, arguments))
    for name in arguments.sets:
        title, count, make = SETS[name]
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), arguments.count or count)
            ratios[name] = show(title, medians(Path(folder), arguments))
    print(json.dumps(ratios))


def medians(images: Path, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the medians of each variant's rounds."""
    variants = [variant for variant in arguments.variants if variant != "before" or arguments.against]
    rounds: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    for _ in range(arguments.rounds):
        for variant, found in rounds.items():
            tree = arguments.against if variant == "before" else None
            found.append(in_a_process("decode" if tree else variant, images, arguments.workers, tree))
    return {
        variant: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for variant, found in rounds.items()
    }


def in_a_process(variant: str, images: Path, workers: int | None, tree: Path | None) -> dict[str, float]:
    """Measure one variant in a new process, with the code of `tree`; return its last line of output, parsed."""
    # Not run as a main module, since tensorflow_datasets requires the builder to be in a package.
    run = "from benchmarks.write_rate import main; main()"
    command = [sys.executable, "-c", run, "--images", str(images), "--variant", variant]
    if workers:
        command += ["--workers", str(workers)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TQDM_DISABLE": "1"}
    if tree:
        environment["PYTHONPATH"] = str(tree.resolve())
    os.sync()
    done = subprocess.run(command, env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def show(title: str, medians: dict[str, dict[str, float]]) -> dict[str, float]:
    """Print the table and return the ratios."""
    from rich.console import Console
    from rich.table import Table

    rate = {variant: found["images"] / found["seconds"] for variant, found in medians.items()}
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    table = Table(title=f"{title}: {next(iter(medians.values()))['images']:,.0f} images (load {load})")
    for heading in ("", "seconds", "images/s", "images/s, writing alone"):
        table.add_column(heading, justify="right" if heading else "left")
    for variant, found in medians.items():
        writing = f"{found['writing']:,.0f}" if "writing" in found else ""
        table.add_row(VARIANTS[variant], f"{found['seconds']:.2f}", f"{rate[variant]:,.0f}", writing)
    Console().print(table)
    writing = {f"{variant}_writing": found["writing"] for variant, found in medians.items() if "writing" in found}
    compared = {
        "header_to_tfds": ("header", "tfds"),
        "decode_to_tfds": ("decode", "tfds"),
        "before_to_tfds": ("before", "tfds"),
        "header_writing_to_reading_only": ("header_writing", "reading_writing"),
        "header_whole_to_reading_only": ("header", "reading_writing"),
    }
    rates = rate | writing
    return {name: round(rates[a] / rates[b], 3) for name, (a, b) in compared.items() if a in rates and b in rates}


def measure_slipway(check: str, images: Path, workers: int | None, folder: Path) -> dict[str, float]:
    """Prepare the data set; the write rate is the one that the run reports as its progress."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.core import events

    os.environ[events.EVENTS_VARIABLE] = str(folder / "events")
    settings = DataSettings.model_validate({**_settings(images, workers, folder), "check": check})
    started = time.perf_counter()
    prepared = prepare(settings, replicas=1)
    seconds = time.perf_counter() - started
    count = sum(split.examples for split in prepared.manifest.splits.values())
    told = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
    last = [event for event in told if event["event"] == "progress"][-1]
    return {"images": count, "seconds": seconds, "writing": last["values"]["images_per_second"]}


def measure_reading(images: Path, workers: int | None, folder: Path) -> dict[str, float]:
    """Have the workers read the files on their lists and append their bytes to output files."""
    from slipway.components.prepare_data.listing.plan import Plan
    from slipway.components.prepare_data.prepare import list_source
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.prepare_data.sources import open_source
    from slipway.components.prepare_data.workers import Workers, worker_count
    from slipway.components.prepare_data.writing.shard_tasks import ShardTasks

    settings = DataSettings.model_validate(_settings(images, workers, folder))
    source = open_source(settings)
    listing = list_source(source, settings, folder)
    plan = Plan.of(source, listing.groups, settings, replicas=1)
    ShardTasks(
        name="rate", source=source, settings=settings, listing=listing, plan=plan, scratch=folder, work=folder
    ).deal(plan)  # fmt: skip
    tasks = sorted((folder / "lists").iterdir(), key=lambda path: -path.stat().st_size)
    started = time.perf_counter()
    with Workers(ReadAndAppend(source, folder), worker_count(workers)) as pool:
        count = sum(result for _, result in pool.run(tasks))
    seconds = time.perf_counter() - started
    return {"images": count, "seconds": seconds, "writing": count / seconds}


class ReadAndAppend:
    """Minimal worker: read each file, append its bytes and sync them to disk."""

    def __init__(self, source: Any, folder: Path) -> None:
        self._source = source
        self._folder = folder

    def __call__(self, examples: Path, tick: Any) -> int:  # noqa: ARG002
        from slipway.components.prepare_data.listing.lists import read_list

        read = self._source.reader(self._folder).read
        count = 0
        with (self._folder / f"{examples.stem}.bytes").open("wb", buffering=1 << 19) as file:
            for key, _, size, offset in read_list(examples):
                file.write(read(key, offset, size))
                count += 1
            file.flush()
            os.fsync(file.fileno())
        return count


def measure_tfds(images: Path, workers: int | None, folder: Path) -> dict[str, float]:  # noqa: ARG001
    """Prepare the folder with a tensorflow_datasets builder written as in its guide (one process)."""
    import tensorflow_datasets as tfds

    top = sorted(path for path in images.iterdir() if path.is_dir())
    splits = {path.name: path for path in top} if {path.name for path in top} & {"train"} else {"train": images}
    classes = sorted({path.name for split in splits.values() for path in split.iterdir() if path.is_dir()})

    class Images(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        """Images in folders named after their classes."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=classes)}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, manager: Any) -> Any:  # noqa: ARG002
            return {name: self._generate_examples(path) for name, path in splits.items()}

        def _generate_examples(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
            for file in path.glob("*/*"):
                yield str(file.relative_to(path)), {"image": file, "label": file.parent.name}

    builder = Images(data_dir=str(folder))
    started = time.perf_counter()
    builder.download_and_prepare()
    seconds = time.perf_counter() - started
    return {"images": sum(split.num_examples for split in builder.info.splits.values()), "seconds": seconds}


def _settings(images: Path, workers: int | None, folder: Path) -> dict[str, Any]:
    return {"source": f"images:{images}", "store": str(folder / "store"), "workers": workers, "name": "benchmark"}


MEASURES: dict[str, Callable[[Path, int | None, Path], dict[str, float]]] = {
    "tfds": measure_tfds,
    "header": functools.partial(measure_slipway, "header"),
    "decode": functools.partial(measure_slipway, "decode"),
    "reading": measure_reading,
}

if __name__ == "__main__":
    main()
