"""Scanning and preparing a table beside reading it, and predicting on it: `python -m benchmarks.tables`.

Makes two CSV files in a temporary folder: 20 columns of numbers and a class; 17 of numbers, three of categories and a
target. Slipway prepares them, and scans them as `slipway init --table` and `slipway data check` do; with
`--against TREE`, also with the code of another checkout. Beside it, the same file is read by pandas and by pyarrow,
which write nothing, by a builder of TensorFlow Datasets, and by a hand-written loop that writes TFRecords with the csv
module, tf.train.Example and tf.io.TFRecordWriter, without keys, splits or checks.

With `--predict`, a network of one layer predicts on the rows by the code of `slipway predict` and of `slipway batch`
with one process, without their start, also of a Parquet file. Beside it: the network alone, on batches that are in
memory; and pandas, Keras' predict, and a CSV file of the probabilities.

Each variant runs in its own process, one after the other, for `--rounds` rounds, of which the median counts. CPU time
is that of the process and its workers, after imports and a first table of 100 rows; memory is the peak of the largest
of these processes.
"""

from __future__ import annotations

import argparse
import functools
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

    from slipway.serving.model import Model

TABLES = {"numbers": "20 numbers, a class", "mixed": "17 numbers, 3 categories, a target"}
TASKS = {"numbers": "classification", "mixed": "regression"}
VARIANTS = {
    "slipway": "Slipway",
    "before": "Slipway before",
    "init": "slipway init --table",
    "init-before": "slipway init before",
    "check": "slipway data check",
    "check-before": "slipway data check before",
    "tfrecords": "hand-written TFRecords",
    "tfds": "TFDS builder",
    "pandas": "pandas.read_csv",
    "pyarrow": "pyarrow.csv.read_csv",
}
PREDICT = {
    "network": "the network alone",
    "predict": "slipway predict",
    "predict-before": "slipway predict before",
    "predict-csv": "slipway predict, to CSV",
    "predict-parquet": "slipway predict of Parquet",
    "batch": "slipway batch",
    "batch-before": "slipway batch before",
    "keras": "pandas and Keras",
}
MODEL = "model"
TEXTS = ("north", "south", "east", "west")
FIRST_ROWS = 100
PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
BATCH = 256


def main() -> None:
    """Measure all variants in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="the variants to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="Slipway's processes; by default one per core")
    parser.add_argument("--against", metavar="TREE", type=Path, help="another checkout to compare with, as `before`")
    parser.add_argument("--predict", action="store_true", help="measure predictions rather than preparation")
    parser.add_argument("--variant", choices=[*VARIANTS, *PREDICT], help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments.variant, arguments.table, arguments.workers)))
        return
    rows = PREDICT if arguments.predict else VARIANTS
    variants = [name for name in rows if not name.endswith("before") or arguments.against]
    variants = [name for name in variants if name in (arguments.only or variants)]
    if importlib.util.find_spec("pandas") is None:
        variants = [name for name in variants if name not in ("pandas", "keras")]
    for count, kind in itertools.product(arguments.rows, ("numbers",) if arguments.predict else TABLES):
        with tempfile.TemporaryDirectory() as name:
            table = Path(name, f"{kind}.csv")
            make_table(table, count)
            make_table(first_of(table), FIRST_ROWS)
            if arguments.predict:
                make_model(Path(name, MODEL))
                for path in (table, first_of(table)):
                    write_parquet(path)
            found: dict[str, list[tuple[float, ...]]] = {variant: [] for variant in variants}
            for _, variant in itertools.product(range(arguments.rounds), variants):
                found[variant].append(in_a_process(variant, table, arguments))
            medians = {variant: middle(rounds) for variant, rounds in found.items()}
            show(f"{count:,} rows of {TABLES[kind]}", rows, medians, count)


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


def in_a_process(variant: str, table: Path, arguments: argparse.Namespace) -> tuple[float, ...]:
    """Return the CPU and the wall seconds of a variant, and its peak memory, measured in a process of its own."""
    command = [sys.executable, Path(__file__).absolute(), "--variant", variant, "--table", table]
    if arguments.workers:
        command += ["--workers", str(arguments.workers)]
    tree = arguments.against.absolute() if variant.endswith("before") else Path(__file__).absolute().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([*map(str, command)], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def measure(variant: str, table: Path, workers: int | None) -> tuple[float, float, float]:
    """Return the CPU and the wall seconds of a variant, and its peak memory in megabytes."""
    run = {
        "tfrecords": write_tfrecords, "tfds": write_with_tfds, "pandas": read_pandas, "pyarrow": read_pyarrow,
        "init": scan_new, "init-before": scan_new, "check": scan_configured, "check-before": scan_configured,
        "batch": predict_batch, "batch-before": predict_batch,
        **dict.fromkeys(PREDICT.keys() - {"batch", "batch-before"}, None),
    }.get(variant, lambda path: prepare_table(path, workers))  # fmt: skip
    run = run or predictor(variant, table.parent / MODEL)
    start = timed(run, first_of(table))
    cpu, wall = timed(run, table)
    if run is predict_batch:  # each starts a process, which loads the model
        cpu, wall = cpu - start[0], wall - start[1]
    return cpu, wall, max(resource.getrusage(who).ru_maxrss for who in PROCESSES) / 1024


def timed(run: Callable[[Path], object], table: Path) -> tuple[float, float]:
    """Return the CPU and the wall seconds of a call."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    run(table)
    return cpu_seconds() - cpu, time.perf_counter() - wall


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its processes that have ended."""
    used = [resource.getrusage(who) for who in PROCESSES]
    return sum(each.ru_utime + each.ru_stime for each in used)


def prepare_table(table: Path, workers: int | None) -> None:
    """Prepare the table with Slipway."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    with tempfile.TemporaryDirectory(dir=table.parent) as store:
        settings = DataSettings.model_validate({"source": f"csv:{table}", "store": store, "workers": workers})
        prepare(settings, replicas=1, task=TASKS[table.stem.partition("-")[0]])


def scan_new(table: Path) -> None:
    """Scan the table, and write the configuration that trains on it."""
    from slipway.components.prepare_data.scan_table import scan_table
    from slipway.pipelines.cli.table_file import configuration, summary

    scanned = scan_table(table, "label")
    summary(str(table), scanned)
    configuration("project", f"csv:{table}", scanned)


def scan_configured(table: Path) -> None:
    """Scan the table of a configuration."""
    from slipway.components.prepare_data.scan_table import scan
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.pipelines.cli.table_file import summary

    settings = DataSettings(source=f"csv:{table}", label="label")
    summary(settings.source, scan(settings, TASKS[table.stem.partition("-")[0]]))


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


def write_with_tfds(table: Path) -> None:
    """Write the table's rows by a builder of TensorFlow Datasets, which shuffles them by a hash of their keys."""
    import csv

    import numpy as np
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered

    tfds.disable_progress_bar()

    is_mixed = table.stem.startswith("mixed")
    texts = {"column_15", "column_16", "column_17"} if is_mixed else {"label"}
    kinds = {f"column_{number}": "float32" for number in range(20)} | dict.fromkeys(texts, "text")
    features = {name: tfds.features.Text() if kind == "text" else np.float32 for name, kind in kinds.items()}
    label = np.float32 if is_mixed else tfds.features.ClassLabel(names=list("abc"))

    with registered.skip_registration():

        class Table(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")

            def _info(self) -> tfds.core.DatasetInfo:
                return tfds.core.DatasetInfo(
                    builder=self, features=tfds.features.FeaturesDict({**features, "label": label})
                )

            def _split_generators(self, _manager: object) -> dict[str, object]:
                return {"train": self._generate_examples()}

            def _generate_examples(self) -> Iterator[tuple[int, dict[str, object]]]:
                with table.open(newline="") as file:
                    for number, row in enumerate(csv.DictReader(file)):
                        yield number, {name: cell if name in texts else float(cell) for name, cell in row.items()}

    with tempfile.TemporaryDirectory(dir=table.parent) as store:
        Table(data_dir=store).download_and_prepare()


def read_pandas(table: Path) -> None:
    """Read the table with pandas."""
    import pandas as pd

    pd.read_csv(table)


def read_pyarrow(table: Path) -> None:
    """Read the table with pyarrow, in one thread."""
    import pyarrow.csv

    pyarrow.csv.read_csv(table, pyarrow.csv.ReadOptions(use_threads=False))


def make_model(folder: Path) -> None:
    """Export a softmax of one layer of weights over the 20 numbers, as a run does, and the same for Keras."""
    import keras
    import numpy as np
    import tensorflow as tf

    from slipway.core.manifest import Input, Manifest
    from slipway.trainer.export import saved_model
    from slipway.trainer.export.export import inputs_and_classes

    names = [f"column_{number}" for number in range(20)]
    manifest = Manifest(
        name="numbers", fingerprint="0" * 64, source="csv:numbers.csv", settings={}, task="classification",
        classes=list("abc"), inputs={name: Input(kind="number", mean=(0.0,), deviation=(10.0,)) for name in names},
        image_size=(0, 0), channels=3, resize=False, encodings=[], splits={},
    )  # fmt: skip
    weights = np.random.default_rng(0).normal(size=(len(names), 3)).astype(np.float32)

    def network(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.stack([inputs[name] for name in names], axis=1) @ weights

    folder.mkdir()
    saved_model.write(folder, network, [], manifest)
    (folder / "model.json").write_text(json.dumps(inputs_and_classes(manifest)))
    given = keras.Input([len(names)])
    dense = keras.layers.Dense(3, "softmax")
    model = keras.Model(given, dense(given))
    dense.set_weights([weights / 10, np.zeros(3)])
    model.save(folder.with_suffix(".keras"))


def write_parquet(table: Path) -> None:
    """Write a CSV file's table as a Parquet file beside it."""
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(table), table.with_suffix(".parquet"))


def predictor(variant: str, folder: Path) -> Callable[[Path], object]:
    """Return a function that predicts on a table with the model, which is loaded and warm."""
    if variant == "keras":
        return functools.partial(predict_with_keras, load_keras(folder))
    from slipway.pipelines.prediction import inputs, output, prediction
    from slipway.serving import instances
    from slipway.serving.model import load

    model = load(folder)
    instances.warm_up(model)
    kind = output.Format.csv if variant == "predict-csv" else output.Format.jsonl

    def predict(table: Path) -> None:
        (part,) = inputs.listed([str(table)], "test")
        with table.with_suffix(".predictions").open("w") as file:
            for answers in prediction.predict(model, part.read(model, BATCH)):
                file.write(output.lines(answers, kind, model))

    if variant == "network":
        return functools.partial(predict_in_memory, model)
    return (lambda table: predict(table.with_suffix(".parquet"))) if variant == "predict-parquet" else predict


def predict_in_memory(model: Model, table: Path) -> None:
    """Let the network alone predict on batches that are as large as those of the table."""
    import numpy as np

    rows = FIRST_ROWS if table == first_of(table.with_stem("numbers")) else sum(1 for _ in table.open()) - 1
    values = np.random.default_rng(0).normal(size=BATCH).astype(np.float32)
    batch = dict.fromkeys(model.inputs, values)
    with ThreadPoolExecutor(2) as pool:  # as many as predict
        list(pool.map(lambda _: model.predict(batch), range(rows // BATCH)))


def load_keras(folder: Path) -> keras.Model:
    """Return the model as Keras saved it."""
    import keras

    return keras.saving.load_model(folder.with_suffix(".keras"))


def predict_with_keras(model: keras.Model, table: Path) -> None:
    """Predict as a notebook does."""
    import pandas as pd

    rows = pd.read_csv(table)
    found = model.predict(rows[[f"column_{number}" for number in range(20)]].to_numpy("float32"), BATCH, verbose=0)
    answers = pd.DataFrame(found, columns=list("abc"))
    answers.insert(0, "label", [*map("abc".__getitem__, found.argmax(axis=1))])
    answers.to_csv(table.with_suffix(".predictions"))


def predict_batch(table: Path) -> None:
    """Predict with one process of its own."""
    from slipway.pipelines.prediction import batch
    from slipway.pipelines.prediction.models import Chosen
    from slipway.pipelines.prediction.output import Format

    with tempfile.TemporaryDirectory(dir=table.parent) as output:
        chosen = Chosen(table.parent / MODEL, MODEL)
        asked = batch.Batch(chosen, (str(table),), Path(output), Format.jsonl, 4096, BATCH, "test")
        batch.run(asked, 1, lambda _done, _total: None)


def middle(rounds: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the medians of the CPU seconds, the wall seconds and the memory."""
    return tuple(map(median, zip(*rounds, strict=True)))


def show(title: str, names: dict[str, str], found: dict[str, tuple[float, ...]], rows: int) -> None:
    """Print the table, and the ratios to the CPU time of the first variant."""
    from rich.console import Console
    from rich.table import Table

    first = next(iter(found))
    table = Table(title=title)
    for heading in ("", "CPU µs/row", "wall µs/row", f"CPU / {names[first]}", "peak MB"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    own = found[first][0]
    for variant, (cpu, wall, memory) in found.items():
        row = (f"{cpu / rows * 1e6:.1f}", f"{wall / rows * 1e6:.1f}", f"{cpu / own:.2f}", f"{memory:,.0f}")
        table.add_row(names[variant], *row)
    Console().print(table)


if __name__ == "__main__":
    main()
