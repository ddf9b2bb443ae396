"""Input throughput into an empty step: `python -m benchmarks.read_rate`.

Prepares four data sets in a temporary folder: PNG and JPEG files of 32x32 pixels, like CIFAR-10; JPEG files of 256x256
pixels; and JPEG photographs of about 320x240 pixels, resized to 180x180 by all variants. All are cropped from
scikit-learn's two sample photographs. Each variant runs in its own process, one after the other, for `--rounds` rounds,
of which the median counts; then again beside a process that keeps one core busy (`--loads`). The step only reads one
pixel and one label. The first epoch is also reported in examples per CPU second, which varies less on a shared machine.

- First epoch: from opening the data set to the last batch. All shuffle but `map`. `image_dataset_from_directory` and
  PyTorch's DataLoader are shown without the time to list the files, which Slipway does during data preparation;
  `image_dataset_from_directory` also with it, and it resizes without antialiasing, unlike Slipway. DataLoader decodes
  with Pillow in a worker process per core; it is skipped where torch is not installed.
- Five epochs: from opening the data set, including listing, to the last batch. `image_dataset_from_directory` caches
  nothing, as at the start of its guide; Slipway keeps decoded images in memory if they fit.
- Later epochs: Slipway compared with tf.data over the same decoded array, alternating epochs in one process.

First use of memory can be slow on a virtual machine, so each process touches as much memory as the decoded data set
needs before it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.photographs import CIFAR_SIDE, SIDE, make_cifar, make_jpegs, make_photographs

# Title, batch size (for JPEG, the default of image_dataset_from_directory) and measured variants of each data set.
SETS = {
    "png": ("PNG of 32x32", 64, ("map", "directory", "loader", "memory", "stream")),
    "cifar": ("JPEG of 32x32", 32, ("map", "directory", "loader", "memory", "stream")),
    "jpeg": ("JPEG of 256x256", 32, ("map", "directory", "loader", "memory", "stream")),
    "photographs": ("JPEG of various sizes, resized to 180x180", 32, ("directory", "memory", "stream")),
}
IMAGE_SIZES = {"png": CIFAR_SIDE, "cifar": CIFAR_SIDE, "jpeg": SIDE, "photographs": 180}
# Small images for each larger one, so that all sets take about as long.
SMALL = 6
LOADS = {"idle": 0, "busy": 1}  # how many cores another process keeps busy
# Rows of a table: the variant and its measurement in each column.
COLUMNS = ("1st epoch", "beside a busy core", "per CPU s", "5 epochs", "later")
ROWS = {
    "map(parse + decode), batch": ("map", "first", "first", "cpu", "", ""),
    "image_dataset_from_directory": ("directory", "first", "first", "cpu", "", ""),
    "the same, with its listing": ("directory", "whole", "whole", "", "several", ""),
    "PyTorch DataLoader": ("loader", "first", "first", "", "", ""),
    "Slipway, kept in memory": ("memory", "first", "first", "cpu", "several", "later"),
    "Slipway, streamed": ("stream", "first", "first", "cpu", "", ""),
    "tf.data over that array": ("memory", "", "", "", "", "array"),
}
SEVERAL_EPOCHS = 5
LATER_EPOCHS = 8
STEPS_PER_CALL = 50


def main() -> None:
    """Measure all variants in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jpegs", type=int, default=5000, help=f"larger images of each kind; small ones: {SMALL}x")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--images", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(*arguments.variant.split(":"), arguments.images)))
        return
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print("PyTorch DataLoader: skipped, torch is not installed")
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sources = {kind: Path(folder, kind) for kind in arguments.sets}
        for kind, images in sources.items():
            make(kind, images, arguments.jpegs)
        sets = {kind: prepared(images, folder, kind) for kind, images in sources.items()}
        wanted = [(kind, variant) for kind in sources for variant in SETS[kind][2] if variant != "loader" or has_torch]
        for load, _, (kind, variant) in itertools.product(arguments.loads, range(arguments.rounds), wanted):
            with busy(LOADS[load]):
                root = sources[kind] if variant in ("directory", "loader") else sets[kind]
                rates = in_a_process(f"{kind}:{variant}", root)
            found.setdefault(f"{load}:{kind}:{variant}", []).append(rates)
            print(f"{load} {kind} {variant}: {rates['first']:,.0f} examples/s in the first epoch", flush=True)
    show({name: {rate: median(one[rate] for one in rounds) for rate in rounds[0]} for name, rounds in found.items()})


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep that many cores busy with other processes."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def make(kind: str, folder: Path, count: int) -> None:
    """Write the images of a data set to `folder`/train."""
    if kind == "photographs":
        make_photographs(folder, count)
    elif kind == "jpeg":
        make_jpegs(folder, count)
    else:
        make_cifar(folder, SMALL * count, 0)
        shutil.rmtree(folder / "test")
        for file in folder.rglob("*.jpg") if kind == "png" else ():
            Image.open(file).save(file.with_suffix(".png"))
            file.unlink()


def prepared(images: Path, folder: str, kind: str) -> Path:
    """Prepare a data set from `images`, nearly all of them in the training split."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    settings = {"source": f"images:{images}", "store": f"{folder}/store", "name": kind, "check": "header"}
    if kind == "photographs":
        settings["image_size"] = [IMAGE_SIZES[kind]] * 2
    return prepare(DataSettings.model_validate(settings), replicas=1).folder


def in_a_process(name: str, root: Path, module: str = "benchmarks.read_rate") -> dict[str, float]:
    """Measure one variant in a new process and return its last line of output, parsed."""
    command = [sys.executable, "-m", module, "--images", str(root), "--variant", name]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(kind: str, variant: str, root: Path) -> dict[str, float]:
    """Return examples/s of the first epoch, and of later epochs if the variant measures them."""
    import tensorflow as tf

    _, batch, _ = SETS[kind]
    tf.data.Dataset.range(2).map(lambda number: number + 1).reduce(np.int64(0), lambda one, other: one + other)
    if variant == "loader":
        return loader_rate(root, batch)
    if variant == "directory":
        np.ones(1 << 29, np.uint8)
        return directory_rates(root, IMAGE_SIZES[kind], batch)
    from slipway.core import manifest as manifests
    from slipway.trainer.data.assignment import ShardAssignment

    assignment = ShardAssignment(root, manifests.read(root), rank=0, workers=1)
    np.ones(assignment.decoded_bytes("train") + (1 << 26), np.uint8)
    measures: dict[str, Callable[[ShardAssignment, int], dict[str, float]]] = {
        "map": map_rate,
        "memory": memory_rates,
        "stream": stream_rate,
    }
    return measures[variant](assignment, batch)


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


def map_rate(assignment: Any, batch: int) -> dict[str, float]:
    """The way of the guides: each record is parsed and decoded individually, then batched."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        pixels = tf.io.decode_image(example["image"], assignment.manifest.channels, expand_animations=False)
        return tf.ensure_shape(pixels, assignment.manifest.image_shape), example["label"]

    clock = Clock()
    records = tf.data.TFRecordDataset(assignment.paths("train"))
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


class Files:
    """The images below a folder as a PyTorch data set, decoded by Pillow."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(file for file in folder.rglob("*") if file.is_file())
        names = sorted({file.parent.name for file in self.files})
        self.labels = [names.index(file.parent.name) for file in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import torch

        with Image.open(self.files[number]) as image:
            return torch.from_numpy(np.array(image)), self.labels[number]


def loader_rate(images: Path, batch: int) -> dict[str, float]:
    """Measure the first epoch of PyTorch's DataLoader, without listing the files."""
    from torch.utils.data import DataLoader

    files: Any = Files(images / "train")
    clock = Clock()
    loader = DataLoader(files, batch, shuffle=True, num_workers=os.cpu_count() or 1, drop_last=True)
    seen = 0
    for pixels, labels in loader:
        seen += int(pixels[0, 0, 0, 0]) + int(labels[0])
    return clock.rates(len(files) // batch * batch)


def memory_rates(assignment: Any, batch: int, epochs: int = SEVERAL_EPOCHS) -> dict[str, float]:
    """Measure Slipway with decoded images in memory; later epochs alternate with tf.data over the same array.

    With one epoch, only that one is measured.
    """
    import tensorflow as tf

    from slipway.trainer.data import inputs
    from slipway.trainer.data.images import traced  # as the engine has it, and determinism too

    tf.config.experimental.enable_op_determinism()
    steps = assignment.examples("train") // batch
    clock = Clock()
    training = inputs.training(assignment, batch, steps, seed=0, budget=sys.maxsize)
    assert isinstance(training, inputs.MemoryTraining)
    images, labels = training.tensors(whole=False)

    @traced(input_signature=[tf.TensorSpec([None, batch], tf.int32)])
    def run(order: Any) -> Any:
        def step(number: Any, seen: Any) -> tuple[Any, Any]:
            some_images, some_labels = tf.gather(images, order[number]), tf.gather(labels, order[number])
            return number + 1, seen + tf.cast(some_images[0, 0, 0, 0], tf.int64) + tf.cast(some_labels[0], tf.int64)

        return tf.while_loop(lambda number, _: number < tf.shape(order)[0], step, (0, tf.constant(0, tf.int64)))[1]

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


def stream_rate(assignment: Any, batch: int) -> dict[str, float]:
    """Measure Slipway streaming, as for a data set that does not fit in memory."""
    import tensorflow as tf

    from slipway.trainer.data import inputs

    tf.config.experimental.enable_op_determinism()
    steps = assignment.examples("train") // batch
    clock = Clock()
    training = inputs.training(assignment, batch, steps, seed=0, budget=0)
    assert isinstance(training, inputs.StreamTraining)
    return clock.rates(consume(training.batches(0).take(steps), batch))


def show(rates: dict[str, dict[str, float]]) -> None:
    """Print a table per data set, and the ratios."""
    from rich.console import Console
    from rich.table import Table

    kinds = [kind for kind in SETS if any(f":{kind}:" in name for name in rates)]
    ratios: dict[str, float] = {}
    for kind in kinds:
        title, _, variants = SETS[kind]
        table = Table(title=f"{title}: examples/s into an empty step")
        for heading in ("", *COLUMNS):
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        for text, (variant, *wanted) in ROWS.items():
            loads = ("idle", "busy", "idle", "idle", "idle")
            cells = [
                rates.get(f"{load}:{kind}:{variant}", {}).get(rate) for load, rate in zip(loads, wanted, strict=True)
            ]
            if variant in variants:
                table.add_row(text, *("" if cell is None else f"{cell:,.0f}" for cell in cells))
        Console(width=120).print(table)
        for load, variant in itertools.product(LOADS, ("map", "directory", "loader")):
            other, own = rates.get(f"{load}:{kind}:{variant}"), rates.get(f"{load}:{kind}:memory")
            if own and other:
                ratios[f"{kind}_{load}_first_epoch_to_{variant}"] = own["first"] / other["first"]
        if own := rates.get(f"idle:{kind}:memory"):
            ratios[f"{kind}_later_epochs_to_array"] = own["later"] / own["array"]
    print(json.dumps({name: round(value, 2) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
