"""Input throughput into an empty step: `python -m benchmarks.read_rate --images FOLDER`.

Prepares three data sets in a temporary folder: FOLDER (PNG); JPEG photographs of about 320x240 pixels, resized to
180x180 by all variants; and JPEG files of 256x256 pixels that need no resizing. The JPEG files are cropped from
scikit-learn's two sample photographs. Each variant runs in its own process, one after the other, for `--rounds` rounds;
the best round counts, to reduce the effect of other work on the machine. The step only reads one pixel and one label in
the graph. The first epoch is also reported in examples per CPU second, which varies less on a shared machine.

- First epoch: from opening the data set to the last batch. Slipway and `image_dataset_from_directory` shuffle, `map`
  does not. `image_dataset_from_directory` is shown with and without the time to list the files, which Slipway does
  during data preparation. Slipway resizes with antialiasing, `image_dataset_from_directory` without.
- Five epochs: from opening the data set, including listing, to the last batch. `image_dataset_from_directory` caches
  nothing, as at the start of its guide; Slipway keeps decoded images in memory if they fit.
- Later epochs: Slipway compared with tf.data over the same decoded array, alternating epochs in one process.

First use of memory can be slow on a virtual machine, so each process touches as much memory as the decoded data set
needs before it is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.photographs import SIDE, make_jpegs, make_photographs

# Title, batch size (for JPEG, the default of image_dataset_from_directory) and measured variants of each data set.
SETS = {
    "png": ("PNG", 64, ("map", "memory", "stream")),
    "photographs": ("JPEG of various sizes, resized to 180x180", 32, ("directory", "memory", "stream")),
    "jpeg": ("JPEG of 256x256", 32, ("directory", "memory", "stream")),
}
IMAGE_SIZES = {"photographs": 180, "jpeg": SIDE}
# Rows of a table: the variant and its measurement in each column.
COLUMNS = ("1st epoch", "per CPU s", "5 epochs", "later")
ROWS = {
    "map(parse + decode), batch": ("map", "first", "cpu", "", ""),
    "image_dataset_from_directory": ("directory", "first", "cpu", "", ""),
    "the same, with its listing": ("directory", "whole", "", "several", ""),
    "Slipway, kept in memory": ("memory", "first", "cpu", "several", "later"),
    "Slipway, streamed": ("stream", "first", "cpu", "", ""),
    "tf.data over that array": ("memory", "", "", "", "array"),
}
SEVERAL_EPOCHS = 5
LATER_EPOCHS = 8
STEPS_PER_CALL = 50


def main() -> None:
    """Measure all variants in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, type=Path, help="split/class/* or class/*, PNG of one size")
    parser.add_argument("--jpegs", type=int, default=5000, help="number of JPEG files to create of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(*arguments.variant.split(":"), arguments.images)))
        return
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sources = {"png": arguments.images, "photographs": Path(folder, "photographs"), "jpeg": Path(folder, "jpeg")}
        make_photographs(sources["photographs"], arguments.jpegs)
        make_jpegs(sources["jpeg"], arguments.jpegs)
        sets = {kind: prepared(images, folder, kind) for kind, images in sources.items()}
        wanted = [(kind, variant) for kind, (_, _, variants) in SETS.items() for variant in variants]
        for _, (kind, variant) in itertools.product(range(arguments.rounds), wanted):
            name = f"{kind}:{variant}"
            found = in_a_process(name, sources[kind] if variant == "directory" else sets[kind])
            kept = best.setdefault(name, found)
            best[name] = {rate: max(value, kept[rate]) for rate, value in found.items()}
    show(best)


def prepared(images: Path, folder: str, kind: str) -> Path:
    """Prepare a data set from `images`, nearly all of them in the training split."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    settings = {"source": f"images:{images}", "store": f"{folder}/store", "name": kind, "check": "header"}
    if kind == "photographs":
        settings["image_size"] = [IMAGE_SIZES[kind]] * 2
    return prepare(DataSettings.model_validate(settings), replicas=1).folder


def in_a_process(name: str, place: Path, module: str = "benchmarks.read_rate") -> dict[str, float]:
    """Measure one variant in a new process and return its last line of output, parsed."""
    command = [sys.executable, "-m", module, "--images", str(place), "--variant", name]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(kind: str, variant: str, place: Path) -> dict[str, float]:
    """Return examples/s of the first epoch, and of later epochs if the variant measures them."""
    import numpy as np
    import tensorflow as tf

    _, batch, _ = SETS[kind]
    tf.data.Dataset.range(2).map(lambda number: number + 1).reduce(np.int64(0), lambda one, other: one + other)
    if variant == "directory":
        np.ones(1 << 29, np.uint8)
        return directory_rates(place, IMAGE_SIZES[kind], batch)
    from slipway.core import manifest as manifests
    from slipway.trainer.data.assignment import Share

    share = Share(place, manifests.read(place), rank=0, workers=1)
    np.ones(share.decoded_bytes("train") + (1 << 26), np.uint8)
    measures: dict[str, Callable[[Share, int], dict[str, float]]] = {
        "map": map_rate,
        "memory": memory_rates,
        "stream": stream_rate,
    }
    return measures[variant](share, batch)


class Clock:
    """Wall and CPU time of this process since creation."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, examples: int) -> dict[str, float]:
        """Return examples/s of a first epoch, and examples per CPU second."""
        return {
            "first": examples / (time.perf_counter() - self._wall),
            "cpu": examples / (time.process_time() - self._cpu),
        }


def consume(dataset: Any, batch: int) -> int:
    """Iterate over a tf.data.Dataset of batches in the graph; return the number of examples."""
    import tensorflow as tf

    def step(state: Any, examples: Any) -> Any:
        images, labels = examples
        return state[0] + 1, state[1] + tf.cast(images[0, 0, 0, 0], tf.int64) + tf.cast(labels[0], tf.int64)

    batches, _ = dataset.reduce((tf.constant(0, tf.int64), tf.constant(0, tf.int64)), step)
    return int(batches) * batch


def map_rate(share: Any, batch: int) -> dict[str, float]:
    """The way of the guides: each record is parsed and decoded individually, then batched."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        pixels = tf.io.decode_image(example["image"], share.manifest.channels, expand_animations=False)
        return tf.ensure_shape(pixels, share.manifest.image_shape), example["label"]

    clock = Clock()
    records = tf.data.TFRecordDataset(share.paths("train"))
    dataset = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(batch, drop_remainder=True)
    return clock.rates(consume(dataset.prefetch(tf.data.AUTOTUNE), batch))


def directory_rates(images: Path, size: int, batch: int, epochs: int = SEVERAL_EPOCHS) -> dict[str, float]:
    """Measure image_dataset_from_directory: first epoch, first epoch with file listing, several epochs."""
    import keras

    opened = Clock()
    dataset = keras.utils.image_dataset_from_directory(
        images / "train", image_size=(size, size), batch_size=batch, verbose=False
    )
    started = Clock()
    examples = consume(dataset, batch)
    rates = {**started.rates(examples), "whole": opened.rates(examples)["first"]}
    for _ in range(epochs - 1):
        examples += consume(dataset, batch)
    return {**rates, "several": opened.rates(examples)["first"]}


def memory_rates(share: Any, batch: int, epochs: int = SEVERAL_EPOCHS) -> dict[str, float]:
    """Measure Slipway with decoded images in memory; later epochs alternate with tf.data over the same array.

    With one epoch, only that one is measured.
    """
    import tensorflow as tf

    from slipway.trainer.data import inputs

    tf.config.experimental.enable_op_determinism()  # as the engine has it
    steps = share.examples("train") // batch
    clock = Clock()
    training = inputs.training(share, batch, steps, seed=0, budget=sys.maxsize)
    assert isinstance(training, inputs.MemoryTraining)
    images, labels = training.tensors()

    def run_steps(order: Any) -> Any:
        seen = tf.constant(0, tf.int64)
        for number in tf.range(tf.shape(order)[0]):
            some_images, some_labels = tf.gather(images, order[number]), tf.gather(labels, order[number])
            seen += tf.cast(some_images[0, 0, 0, 0], tf.int64) + tf.cast(some_labels[0], tf.int64)
        return seen

    run = tf.function(run_steps, input_signature=[tf.TensorSpec([None, batch], tf.int32)])

    def epoch(number: int) -> None:
        for step in range(0, steps, STEPS_PER_CALL):
            run(training.order(number * steps + step, min(STEPS_PER_CALL, steps - step)))

    epoch(0)
    rates = {**clock.rates(steps * batch), "later": 0.0, "array": 0.0}
    if epochs == 1:
        return rates
    for number in range(1, epochs):
        epoch(number)
    rates["several"] = clock.rates(epochs * steps * batch)["first"]
    array = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch, drop_remainder=True).prefetch(2)
    for number in range(epochs, epochs + LATER_EPOCHS):
        clock = Clock()
        epoch(number)
        rates["later"] = max(rates["later"], clock.rates(steps * batch)["first"])
        clock = Clock()
        rates["array"] = max(rates["array"], clock.rates(consume(array, batch))["first"])
    return rates


def stream_rate(share: Any, batch: int) -> dict[str, float]:
    """Measure Slipway streaming, as for a data set that does not fit in memory."""
    import tensorflow as tf

    from slipway.trainer.data import inputs

    tf.config.experimental.enable_op_determinism()
    steps = share.examples("train") // batch
    clock = Clock()
    training = inputs.training(share, batch, steps, seed=0, budget=0)
    assert isinstance(training, inputs.StreamTraining)
    return clock.rates(consume(training.batches(0).take(steps), batch))


def show(best: dict[str, dict[str, float]]) -> None:
    """Print a table per data set, and the ratios."""
    from rich.console import Console
    from rich.table import Table

    for kind, (title, _, variants) in SETS.items():
        table = Table(title=f"{title}: examples/s into an empty step")
        for heading in ("", *COLUMNS):
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        for text, (variant, *rates) in ROWS.items():
            cells = [best.get(f"{kind}:{variant}", {}).get(rate) for rate in rates]
            if variant in variants:
                table.add_row(text, *("" if cell is None else f"{cell:,.0f}" for cell in cells))
        Console().print(table)
    png = best["png:memory"]
    ratios = {
        "png_first_epoch_to_map": png["first"] / best["png:map"]["first"],
        "png_streamed_to_map": best["png:stream"]["first"] / best["png:map"]["first"],
        "png_first_epoch_to_map_by_cpu": png["cpu"] / best["png:map"]["cpu"],
        "png_later_epochs_to_array": png["later"] / png["array"],
    }
    for kind in ("photographs", "jpeg"):
        memory, stream, directory = (best[f"{kind}:{variant}"] for variant in ("memory", "stream", "directory"))
        found = {
            "first_epoch_to_directory": memory["first"] / directory["whole"],
            "first_epoch_to_listed_directory": memory["first"] / directory["first"],
            "first_epoch_to_directory_by_cpu": memory["cpu"] / directory["cpu"],
            "streamed_to_directory": stream["first"] / directory["whole"],
            "streamed_to_listed_directory": stream["first"] / directory["first"],
            "streamed_to_directory_by_cpu": stream["cpu"] / directory["cpu"],
            "five_epochs_to_directory": memory["several"] / directory["several"],
            "later_epochs_to_array": memory["later"] / memory["array"],
        }
        ratios |= {f"{kind}_{name}": ratio for name, ratio in found.items()}
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
