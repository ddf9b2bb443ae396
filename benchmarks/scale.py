"""Memory and time of prepare_data as a data set grows from 7,000 to 700,000 examples: `python -m benchmarks.scale`.

The images are generated, 16x16 random pixels each and all different. They come from a tar archive (`images:`), and from
a function (`module:`), a source that can be read only once. With `--files FOLDER`, they are files there: 10,000,
100,000 and 1,000,000, or `--counts`. The folder is kept, and only missing files are written, so that the counts can be
measured one by one, and again. Each data set is prepared in its own process. Memory is the peak of the largest process,
time that of the whole call, CPU time that of all its processes.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNTS = (7_000, 70_000, 700_000)
FILE_COUNTS = (10_000, 100_000, 1_000_000)
SIDE = 16
CLASSES = 10
SPLIT_OF = ("train",) * 8 + ("validation", "test")


def examples(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the examples from `first` up to `count`; the content of each depends only on its number."""
    from slipway.components.prepare_data.encoding.image import encode_png

    for number in range(first, count):
        pixels = random.Random(number).randbytes(SIDE * SIDE)
        label, split = f"class {number % CLASSES}", SPLIT_OF[number // CLASSES % len(SPLIT_OF)]
        yield {"image": encode_png(pixels, SIDE, SIDE, level=0), "label": label, "split": split, "number": number}


def examples_7000() -> Iterator[dict[str, Any]]:
    """Yield 7,000 examples, as a `module:` source."""
    return examples(7_000)


def examples_70000() -> Iterator[dict[str, Any]]:
    """Yield 70,000 examples, as a `module:` source."""
    return examples(70_000)


def examples_700000() -> Iterator[dict[str, Any]]:
    """Yield 700,000 examples, as a `module:` source."""
    return examples(700_000)


def write_archive(path: Path, count: int) -> None:
    """Write a tar file of the same examples."""
    with tarfile.open(path, "w") as archive:
        for example in examples(count):
            about = tarfile.TarInfo(f"{example['split']}/{example['label']}/{example['number']:07d}.png")
            about.size = len(example["image"])
            archive.addfile(about, io.BytesIO(example["image"]))
            archive.members = []  # type: ignore[attr-defined]


def write_files(folder: Path, count: int) -> None:
    """Write a folder of the same examples, except the first ones that it has already.

    Raises:
        ValueError: The folder has more examples.
    """
    existing = sum(1 for _ in folder.glob("*/*/*.png"))
    if existing > count:
        raise ValueError(f"{folder} has {existing:,} files; the counts must ascend")
    for example in examples(count, existing):
        path = folder / example["split"] / example["label"] / f"{example['number']:07d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(example["image"])


def main() -> None:
    """Measure all data sets in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="prepare files in this folder, which is kept")
    parser.add_argument("--counts", type=int, nargs="+", default=FILE_COUNTS, help="numbers of files, ascending")
    arguments = parser.parse_args()
    if arguments.source:
        print(json.dumps(measure(arguments.source, arguments.store)))
        return
    if arguments.files:
        found = []
        for count in arguments.counts:
            write_files(arguments.files, count)
            found.append(in_a_process(f"images:{arguments.files}"))
        show({"images:FOLDER": found})
        return
    measured: dict[str, list[dict[str, float]]] = {"images:ARCHIVE": [], "module:function": []}
    with tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            archive = Path(folder) / f"{count}.tar"
            write_archive(archive, count)
            measured["images:ARCHIVE"].append(in_a_process(f"images:{archive}"))
            archive.unlink()
            measured["module:function"].append(in_a_process(f"benchmarks.scale:examples_{count}"))
    show(measured)


def in_a_process(source: str) -> dict[str, float]:
    """Prepare one data set in a new process and return its last line of output, parsed."""
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "-m", "benchmarks.scale", "--source", source, "--store", store]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(source: str, store: str) -> dict[str, float]:
    """Prepare the data set; return examples, seconds, CPU seconds and the largest process's peak memory in MiB."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    imports = time.process_time()
    started = time.perf_counter()
    prepared = prepare(DataSettings(source=source, store=store, name="scale"), replicas=1)
    seconds = time.perf_counter() - started
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak, cpu = max(one.ru_maxrss for one in used), sum(one.ru_utime + one.ru_stime for one in used) - imports
    count = sum(split.examples for split in prepared.manifest.splits.values())
    return {"examples": count, "seconds": seconds, "cpu": cpu, "mebibytes": peak / 1024}


def show(measured: dict[str, list[dict[str, float]]]) -> None:
    """Print the table and the ratios."""
    from rich.console import Console
    from rich.table import Table

    table = Table("source", *("examples", "seconds", "CPU seconds", "examples/s", "peak MiB"))
    ratios: dict[str, float] = {}
    for source, found in measured.items():
        for one in found:
            table.add_row(
                source, f"{one['examples']:,}", f"{one['seconds']:.2f}", f"{one['cpu']:.2f}",
                f"{one['examples'] / one['seconds']:,.0f}", f"{one['mebibytes']:.0f}",
            )  # fmt: skip
        if len(found) < 2:
            continue
        name, few, (some, many) = source.partition(":")[0], found[0], found[-2:]
        ratios[f"{name}_memory_largest_to_smallest"] = many["mebibytes"] / few["mebibytes"]
        ratios[f"{name}_seconds_per_example_at_10_times_the_size"] = many["seconds"] / some["seconds"] / 10
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
