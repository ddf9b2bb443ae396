"""Memory and time of prepare_data as a data set grows from 7,000 to 700,000 examples: `python -m benchmarks.scale`.

The images are generated, 16x16 random pixels each and all different. They come from a tar archive (`images:`), since
700,000 files would measure the file system and take long to delete, and from a function (`module:`), a source that can
be read only once. With `--files`, they are files: 100,000 and 1,000,000. Each data set is prepared in its own process.
Memory is the peak of the largest process, time that of the whole call.
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
FILE_COUNTS = (100_000, 1_000_000)
SIDE = 16
CLASSES = 10
SPLIT_OF = ("train",) * 8 + ("validation", "test")


def examples(count: int) -> Iterator[dict[str, Any]]:
    """Yield `count` examples; the content of each depends only on its number."""
    from slipway.components.prepare_data.validation.image import encode_png

    for number in range(count):
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
    """Write a folder of the same examples, except those that it has already."""
    for example in examples(count):
        path = folder / example["split"] / example["label"] / f"{example['number']:07d}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(example["image"])


def main() -> None:
    """Measure all data sets in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--files", action="store_true", help="prepare folders of files")
    arguments = parser.parse_args()
    if arguments.source:
        print(json.dumps(measure(arguments.source, arguments.store)))
        return
    measured: dict[str, list[dict[str, float]]] = {"images:ARCHIVE": [], "module:function": []}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.files:
            measured = {"images:FOLDER": []}
            for count in FILE_COUNTS:
                write_files(Path(folder), count)
                measured["images:FOLDER"].append(in_a_process(f"images:{folder}"))
        for count in COUNTS if not arguments.files else ():
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
    """Prepare the data set; return examples, seconds and the largest process's peak memory in MiB."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    started = time.perf_counter()
    prepared = prepare(DataSettings(source=source, store=store, name="scale"), replicas=1)
    seconds = time.perf_counter() - started
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    count = sum(split.examples for split in prepared.manifest.splits.values())
    return {"examples": count, "seconds": seconds, "mebibytes": peak / 1024}


def show(measured: dict[str, list[dict[str, float]]]) -> None:
    """Print the table and the ratios."""
    from rich.console import Console
    from rich.table import Table

    table = Table("source", *("examples", "seconds", "examples/s", "peak MiB"))
    ratios: dict[str, float] = {}
    for source, found in measured.items():
        for one in found:
            table.add_row(
                source, f"{one['examples']:,}", f"{one['seconds']:.2f}", f"{one['examples'] / one['seconds']:,.0f}",
                f"{one['mebibytes']:.0f}",
            )  # fmt: skip
        name, few, (some, many) = source.partition(":")[0], found[0], found[-2:]
        ratios[f"{name}_memory_largest_to_smallest"] = many["mebibytes"] / few["mebibytes"]
        ratios[f"{name}_seconds_per_example_at_10_times_the_size"] = many["seconds"] / some["seconds"] / 10
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
