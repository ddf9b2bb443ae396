"""How cost grows with rows, columns, listed images, classes, shards, runs and versions: `python -m benchmarks.growth`.

Each size is measured in a process of its own: CPU and wall seconds, the peak memory of its largest process, and what it
has written. The exponent is that of the CPU seconds from one size to the next: 1 is linear, and a start that costs the
same at each size makes it less. Images are sparse files, which are listed and not read.
`--only rows --sizes 10000000` measures one size.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROWS = 100_000
ROWS_OF_COLUMNS = 10_000  # of tables whose columns grow
IMAGE_BYTES = 100_000
NUMBERS = 20
# Rows that differ in more than one column.
DIFFERENT = 1000


class Growth(NamedTuple):
    """Something that grows: its sizes, and what makes it that large and returns what is measured."""

    sizes: tuple[int, ...]
    make: Callable[[int, Path], Callable[[], object]]


def rows(size: int, folder: Path) -> Callable[[], object]:
    """Prepare a table of this many rows."""
    return preparing(folder, size)


def columns(size: int, folder: Path) -> Callable[[], object]:
    """Prepare a table of this many columns and a class."""
    return preparing(folder, ROWS_OF_COLUMNS, numbers=size)


def classes(size: int, folder: Path) -> Callable[[], object]:
    """Prepare a table with this many classes."""
    return preparing(folder, ROWS, classes=size)


def shards(size: int, folder: Path) -> Callable[[], object]:
    """Prepare a table as this many shards of each split."""
    return preparing(folder, ROWS, replicas=size)


def preparing(
    folder: Path, count: int, *, numbers: int = NUMBERS, classes: int = 3, replicas: int = 1
) -> Callable[[], object]:
    """Write a table; return what prepares it."""
    rng = random.Random(0)
    table = folder / "table.csv"
    with table.open("w") as file:
        file.write(",".join([*(f"column_{number}" for number in range(numbers)), "label"]) + "\n")
        ends = [",".join(f"{rng.gauss(0, 10):.6g}" for _ in range(numbers - 1)) for _ in range(DIFFERENT)]
        for row in range(count):
            file.write(f"{row / 8},{ends[row % DIFFERENT]},class {row % classes}\n")

    def prepare_table() -> None:
        from slipway.components.prepare_data.prepare import prepare
        from slipway.components.prepare_data.settings import DataSettings

        prepare(DataSettings(source=f"csv:{table}", store=str(folder / "sets")), replicas=replicas)

    return prepare_table


def images(size: int, folder: Path) -> Callable[[], object]:
    """List a folder of this many images."""
    root = folder / "images"
    for number in range(size):
        path = root / f"class {number % 10}" / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(IMAGE_BYTES)

    def list_images() -> None:
        from slipway.components.prepare_data.prepare import list_source
        from slipway.components.prepare_data.settings import DataSettings
        from slipway.components.prepare_data.sources import open_source

        settings = DataSettings(source=f"images:{root}")
        scratch = folder / "scratch"
        scratch.mkdir()
        list_source(open_source(settings, "classification"), settings, scratch)

    return list_images


def runs(size: int, folder: Path) -> Callable[[], object]:
    """List the newest runs of a project that has this many."""
    from slipway.pipelines.config.config import validate
    from slipway.pipelines.runs.record import RunRecord, StepRecord, create

    os.chdir(folder)
    values = {"data": {"source": "digits"}, "model": {"builder": "a:b"}, "train": {"epochs": 1}}
    config = validate({"name": "digits", **values}, "growth")
    for _ in range(size):
        run = create(config)
        run.write(
            RunRecord(
                run_id=run.run_id, name="digits", platform="local", hardware="cpu", status="succeeded",
                created=datetime.now(UTC), steps=[StepRecord(name="evaluate")],
            )
        )  # fmt: skip

    def list_runs() -> None:
        from slipway.pipelines.cli.existing_runs import list_

        with contextlib.redirect_stdout(io.StringIO()):
            list_(as_json=True)

    return list_runs


def versions(size: int, folder: Path) -> Callable[[], object]:
    """Register the next version of a model that has this many."""
    from slipway.components.register_model.registry import METADATA, Registry

    source = folder / "model"
    source.mkdir()
    (source / "model.keras").write_bytes(bytes(IMAGE_BYTES))
    registry = Registry(folder / "models")
    for number in range(1, size + 1):
        version = registry.root / "digits" / str(number)
        version.mkdir(parents=True)
        (version / METADATA).write_text(json.dumps({"run_id": str(number), "weights_checksum": ""}))
    return lambda: registry.register("digits", source, {"run_id": "next", "weights_checksum": ""}, "any")


GROWTH = {
    "rows": Growth((100_000, 1_000_000, 10_000_000), rows),
    "columns": Growth((10, 100, 1_000), columns),
    "images": Growth((10_000, 100_000, 1_000_000), images),
    "classes": Growth((10, 100, 1_000, 10_000), classes),
    "shards": Growth((1, 16, 256, 2_048), shards),
    "runs": Growth((100, 1_000, 10_000), runs),
    "versions": Growth((10, 100, 1_000), versions),
}


def main() -> None:
    """Measure all sizes in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=GROWTH, nargs="+", default=list(GROWTH), help="what grows")
    parser.add_argument("--sizes", type=int, nargs="+", help="its sizes")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.size:
        print(json.dumps(measure(GROWTH[arguments.only[0]], arguments.size)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*("", "size", "CPU s", "wall s", "CPU µs each", "exponent", "peak MB", "files", "MB written"))
    for name in arguments.only:
        previous_size, previous_cpu = 0, 0.0
        for size in arguments.sizes or GROWTH[name].sizes:
            cpu, wall, memory, files, written = in_a_process(name, size)
            exponent = f"{math.log(cpu / previous_cpu, size / previous_size):.2f}" if previous_size else ""
            previous_size, previous_cpu = size, cpu
            table.add_row(
                name, f"{size:,}", f"{cpu:.2f}", f"{wall:.2f}", f"{cpu / size * 1e6:,.1f}", exponent, f"{memory:,.0f}",
                f"{files:,.0f}", f"{written:,.1f}",
            )  # fmt: skip
    Console(width=110).print(table)


def in_a_process(name: str, size: int) -> list[float]:
    """Return what `measure` returns in a new process."""
    command = [sys.executable, "-m", "benchmarks.growth", "--only", name, "--size", str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(growth: Growth, size: int) -> tuple[float, float, float, int, float]:
    """Return the CPU and wall seconds, the peak memory in megabytes, and the files and megabytes that were written."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = growth.make(size, folder)
        before = used_by(folder)
        started, cpu = time.perf_counter(), cpu_seconds()
        run()
        seconds, used = time.perf_counter() - started, cpu_seconds() - cpu
        files, written = (after - early for after, early in zip(used_by(folder), before, strict=True))
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return used, seconds, peak / 1024, files, written / 1e6


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def used_by(folder: Path) -> tuple[int, int]:
    """Return the number of files below a folder, and their size on disk."""
    count, size = 0, 0
    for root, _, names in os.walk(folder):  # holds the names of one folder: the peak is that of what is measured
        count += len(names)
        size += sum(Path(root, name).stat().st_blocks * 512 for name in names)
    return count, size


if __name__ == "__main__":
    main()
