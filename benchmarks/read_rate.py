"""How fast examples come into an empty step, side by side: `python -m benchmarks.read_rate --images FOLDER`.

Three sets are prepared in a temporary folder: the given one (PNG); photographs, JPEG files of various sizes around
320x240 pixels that either side resizes to 180x180, as one has them; and JPEG files of 256x256 pixels that nobody
resizes. Both are cut from scikit-learn's two sample photographs. Each variant is measured in a process of its own, one
after the other, as often as `--rounds` says (the best round counts, so that other work on the machine does not). The
step is empty but for looking at one pixel and one label, in the graph. The first epoch's examples are also counted by
the CPU seconds that they took: on a machine that others use too this is the steadier figure.

- The first epoch: all of it, from opening the set to its last batch. Ours and `image_dataset_from_directory` shuffle,
  `map` doesn't. What `image_dataset_from_directory` takes to list its files is in one of its two rates, as ours have
  been listed when the set was prepared. Ours resizes with antialiasing, `image_dataset_from_directory` without.
- Five epochs: from opening the set, with its listing, to the last batch. Nothing is kept by
  `image_dataset_from_directory`, as its guide begins with it; ours keeps decoded images where they fit.
- From the second epoch on: ours beside tf.data over the same decoded array, epoch by epoch in one process.

A virtual machine may have to ask its host for memory, at its first use and slowly: each process uses as much as the
decoded set takes once before it is measured.
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

# Each set's title, batch size (for JPEG image_dataset_from_directory's own), and the variants that are measured.
SETS = {
    "png": ("PNG", 64, ("map", "memory", "stream")),
    "photographs": ("JPEG of various sizes, resized to 180x180", 32, ("directory", "memory", "stream")),
    "jpeg": ("JPEG of 256x256", 32, ("directory", "memory", "stream")),
}
IMAGE_SIZES = {"photographs": 180, "jpeg": SIDE}
# The rows of a table: a variant, and what of it is in the columns.
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
    """Measure all variants, or, in a process of its own, one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, type=Path, help="split/class/* or class/*, PNG of one size")
    parser.add_argument("--jpegs", type=int, default=5000, help="how many JPEG files to make of either kind")
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
    """A data set of `images`, all but a few of them in its training split."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    settings = {"source": f"images:{images}", "store": f"{folder}/store", "name": kind, "check": "header"}
    if kind == "photographs":
        settings["image_size"] = [IMAGE_SIZES[kind]] * 2
    return prepare(DataSettings.model_validate(settings), replicas=1).folder


def in_a_process(name: str, place: Path) -> dict[str, float]:
    """Measure one variant in a fresh process; what it printed last."""
    command = [sys.executable, "-m", "benchmarks.read_rate", "--images", str(place), "--variant", name]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(kind: str, variant: str, place: Path) -> dict[str, float]:
    """Examples/s of the first epoch, and of the later ones where the variant has such."""
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
    """What has gone by since it was made, on the wall and on all cores that this process used."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, examples: int) -> dict[str, float]:
        """Examples/s of a first epoch, and examples per CPU second."""
        return {
            "first": examples / (time.perf_counter() - self._wall),
            "cpu": examples / (time.process_time() - self._cpu),
        }


def consume(dataset: Any, batch: int) -> int:
    """Go through a tf.data.Dataset of batches in the graph; how many examples it had."""
    import tensorflow as tf

    def step(state: Any, examples: Any) -> Any:
        images, labels = examples
        return state[0] + 1, state[1] + tf.cast(images[0, 0, 0, 0], tf.int64) + tf.cast(labels[0], tf.int64)

    batches, _ = dataset.reduce((tf.constant(0, tf.int64), tf.constant(0, tf.int64)), step)
    return int(batches) * batch


def map_rate(share: Any, batch: int) -> dict[str, float]:
    """As the guides have it: each record parsed and decoded by itself, then batched."""
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


def directory_rates(images: Path, size: int, batch: int) -> dict[str, float]:
    """Keras's reader of folders of images: its first epoch, that with the listing of the files before it, several."""
    import keras

    opened = Clock()
    dataset = keras.utils.image_dataset_from_directory(
        images / "train", image_size=(size, size), batch_size=batch, verbose=False
    )
    started = Clock()
    examples = consume(dataset, batch)
    rates = {**started.rates(examples), "whole": opened.rates(examples)["first"]}
    for _ in range(SEVERAL_EPOCHS - 1):
        examples += consume(dataset, batch)
    return {**rates, "several": opened.rates(examples)["first"]}


def memory_rates(share: Any, batch: int) -> dict[str, float]:
    """Ours, decoded in memory; from the second epoch on beside tf.data over the same array."""
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
    for number in range(1, SEVERAL_EPOCHS):
        epoch(number)
    rates["several"] = clock.rates(SEVERAL_EPOCHS * steps * batch)["first"]
    array = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch, drop_remainder=True).prefetch(2)
    for number in range(SEVERAL_EPOCHS, SEVERAL_EPOCHS + LATER_EPOCHS):
        clock = Clock()
        epoch(number)
        rates["later"] = max(rates["later"], clock.rates(steps * batch)["first"])
        clock = Clock()
        rates["array"] = max(rates["array"], clock.rates(consume(array, batch))["first"])
    return rates


def stream_rate(share: Any, batch: int) -> dict[str, float]:
    """Ours, as for a set that does not fit in memory."""
    import tensorflow as tf

    from slipway.trainer.data import inputs

    tf.config.experimental.enable_op_determinism()
    steps = share.examples("train") // batch
    clock = Clock()
    training = inputs.training(share, batch, steps, seed=0, budget=0)
    assert isinstance(training, inputs.StreamTraining)
    return clock.rates(consume(training.batches(0).take(steps), batch))


def show(best: dict[str, dict[str, float]]) -> None:
    """Print a table for each set, and the ratios."""
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
