"""Preparing a table beside reading it: `python -m benchmarks.tables`.

Makes two CSV files in a temporary folder: 20 columns of numbers and a class; 17 of numbers, three of categories and a
target. Slipway prepares them, with `--against TREE` also with the code of another checkout. Beside it, the same file is
read by pandas and by pyarrow, which write nothing, and by a hand-written loop that writes TFRecords with the csv
module, tf.train.Example and tf.io.TFRecordWriter, without keys, splits or checks.

Each variant runs in its own process, one after the other, for `--rounds` rounds, of which the median counts. CPU time
is that of the process and its workers, after imports and a first table of 100 rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

TABLES = {"numbers": "20 numbers, a class", "mixed": "17 numbers, 3 categories, a target"}
TASKS = {"numbers": "classification", "mixed": "regression"}
VARIANTS = {
    "slipway": "Slipway",
    "before": "Slipway before",
    "tfrecords": "hand-written TFRecords",
    "pandas": "pandas.read_csv",
    "pyarrow": "pyarrow.csv.read_csv",
}
TEXTS = ("north", "south", "east", "west")
FIRST_ROWS = 100


def main() -> None:
    """Measure all variants in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="Slipway's processes; by default one per core")
    parser.add_argument("--against", metavar="TREE", type=Path, help="another checkout to compare with, as `before`")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments.variant, arguments.table, arguments.workers)))
        return
    variants = [name for name in VARIANTS if name != "before" or arguments.against]
    if importlib.util.find_spec("pandas") is None:
        variants.remove("pandas")
    with tempfile.TemporaryDirectory() as name:
        for kind in TABLES:
            table = Path(name, f"{kind}.csv")
            make_table(table, arguments.rows)
            make_table(first_of(table), FIRST_ROWS)
            found: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}
            for _, variant in itertools.product(range(arguments.rounds), variants):
                found[variant].append(in_a_process(variant, table, arguments))
            show(kind, {variant: middle(rounds) for variant, rounds in found.items()}, arguments.rows)


def make_table(path: Path, rows: int) -> None:
    """Write a table of this many rows, whose kind is the file's name."""
    rng = random.Random(0)
    is_mixed = path.stem.startswith("mixed")
    texts = 3 if is_mixed else 0
    with path.open("w") as file:
        file.write(",".join([*(f"column_{number}" for number in range(20)), "label"]) + "\n")
        for _ in range(rows):
            cells = [f"{rng.gauss(0, 10):.6g}" for _ in range(15)]
            cells += [rng.choice(TEXTS) for _ in range(texts)] + [f"{rng.randrange(100)}" for _ in range(5 - texts)]
            file.write(",".join([*cells, f"{rng.random():.4f}" if is_mixed else rng.choice("abc")]) + "\n")


def first_of(table: Path) -> Path:
    """Return the path of the table that each process prepares or reads first."""
    return table.with_stem(f"{table.stem}-first")


def in_a_process(variant: str, table: Path, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return the CPU and the wall seconds of a variant, measured in a process of its own."""
    command = [sys.executable, Path(__file__).absolute(), "--variant", variant, "--table", table]
    if arguments.workers:
        command += ["--workers", str(arguments.workers)]
    tree = arguments.against.absolute() if variant == "before" else Path(__file__).absolute().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([*map(str, command)], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    cpu, wall = json.loads(done.stdout.splitlines()[-1])
    return cpu, wall


def measure(variant: str, table: Path, workers: int | None) -> tuple[float, float]:
    """Return the CPU and the wall seconds of a variant."""
    run = {"tfrecords": write_tfrecords, "pandas": read_pandas, "pyarrow": read_pyarrow}.get(variant)
    run = run or (lambda path: prepare_table(path, workers))
    run(first_of(table))
    cpu, wall = cpu_seconds(), time.perf_counter()
    run(table)
    return cpu_seconds() - cpu, time.perf_counter() - wall


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def prepare_table(table: Path, workers: int | None) -> None:
    """Prepare the table with Slipway."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    with tempfile.TemporaryDirectory(dir=table.parent) as store:
        settings = DataSettings.model_validate({"source": f"csv:{table}", "store": store, "workers": workers})
        prepare(settings, replicas=1, task=TASKS[table.stem.partition("-")[0]])


def write_tfrecords(table: Path) -> None:
    """Write the table's rows as tf.train.Examples to one file, as tutorials do."""
    import csv

    import tensorflow as tf

    is_mixed = table.stem.startswith("mixed")
    with table.open(newline="") as file, tf.io.TFRecordWriter(str(table.with_suffix(".tfrecord"))) as writer:
        for row in csv.DictReader(file):
            features = {}
            for name, cell in row.items():
                try:
                    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[float(cell)]))
                except ValueError:
                    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[cell.encode()]))
                features[name] = feature
            if not is_mixed:
                label = tf.train.Int64List(value=["abc".index(row["label"])])
                features["label"] = tf.train.Feature(int64_list=label)
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def read_pandas(table: Path) -> None:
    """Read the table with pandas."""
    import pandas as pd

    pd.read_csv(table)


def read_pyarrow(table: Path) -> None:
    """Read the table with pyarrow, in one thread."""
    import pyarrow.csv

    pyarrow.csv.read_csv(table, pyarrow.csv.ReadOptions(use_threads=False))


def middle(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians of the CPU and the wall seconds."""
    cpu, wall = zip(*rounds, strict=True)
    return median(cpu), median(wall)


def show(kind: str, found: dict[str, tuple[float, float]], rows: int) -> None:
    """Print the table, and the ratios to Slipway's CPU time."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{rows:,} rows of {TABLES[kind]}")
    for heading in ("", "CPU µs per row", "wall µs per row", "CPU / Slipway's"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    own = found["slipway"][0]
    for variant, (cpu, wall) in found.items():
        row = (f"{cpu / rows * 1e6:.1f}", f"{wall / rows * 1e6:.1f}", f"{cpu / own:.2f}")
        table.add_row(VARIANTS[variant], *row)
    Console().print(table)


if __name__ == "__main__":
    main()
