"""First epoch over 12-megapixel photographs, with and without data.resize: `python -m benchmarks.large_photographs`.

Makes JPEG files of 4000x3000 pixels and prepares them twice: unchanged, and with data.resize. All variants deliver
224x224 pixels into an empty step, as in `read_rate`. Each runs in its own process, one after the other, for `--rounds`
rounds; the best round counts, to reduce the effect of other work on the machine. `image_dataset_from_directory`
includes listing the files, which Slipway does during data preparation, and resizes without antialiasing. Preparing is
measured once; both ways decode every image, since data.check does so by default.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.photographs import make_large
from benchmarks.read_rate import directory_rates, in_a_process, memory_rates

MODULE = "benchmarks.large_photographs"
VARIANTS = {
    "directory": "image_dataset_from_directory",
    "original": "Slipway, original bytes",
    "resized": "Slipway, data.resize",
}
BATCH = 32
IMAGE_SIZE = 224


def main() -> None:
    """Measure all variants in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=1000, help="number of photographs to create")
    parser.add_argument("--size", type=int, default=256, help="data.resize.size")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--images", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments.variant, arguments.images)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_large(folder / "photographs", arguments.photographs)
        roots, found = {"directory": folder / "photographs"}, {variant: {"first": 0.0} for variant in VARIANTS}
        for variant, resize in (("original", "original"), ("resized", {"size": arguments.size})):
            roots[variant], found[variant] = prepared(folder, variant, resize)
        for _, variant in itertools.product(range(arguments.rounds), VARIANTS):
            rates = in_a_process(variant, roots[variant], MODULE)
            if rates["first"] > found[variant].get("first", 0):
                found[variant] |= rates
    show(found)


def prepared(folder: Path, name: str, resize: dict[str, Any] | str) -> tuple[Path, dict[str, float]]:
    """Prepare the data set; return its folder, and the time and the size of its shards."""
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.settings import DataSettings

    settings = {"source": f"images:{folder / 'photographs'}", "store": str(folder), "name": name, "resize": resize}
    started = time.perf_counter()
    found = prepare(DataSettings.model_validate({**settings, "image_size": [IMAGE_SIZE] * 2}), replicas=1)
    seconds = time.perf_counter() - started
    size = sum(shard.bytes for split in found.manifest.splits.values() for shard in split.shards)
    return found.folder, {"prepare": seconds, "megabytes": size / 1e6}


def measure(variant: str, root: Path) -> dict[str, float]:
    """Return the examples/s of the first epoch, and the examples per CPU second."""
    import numpy as np
    import tensorflow as tf

    tf.data.Dataset.range(2).map(lambda number: number + 1).reduce(np.int64(0), lambda one, other: one + other)
    np.ones(1 << 29, np.uint8)  # the first use of memory can be slow on a virtual machine
    if variant == "directory":
        rates = directory_rates(root, IMAGE_SIZE, BATCH, epochs=1)
        return {**rates, "first": rates["whole"]}
    from slipway.core import manifest as manifests
    from slipway.trainer.data.assignment import ShardAssignment

    return memory_rates(ShardAssignment(root, manifests.read(root), rank=0, workers=1), BATCH, epochs=1)


def show(found: dict[str, dict[str, float]]) -> None:
    """Print the table, and the ratios."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Photographs of 12 megapixels as {IMAGE_SIZE}x{IMAGE_SIZE} pixels, first epoch")
    columns = {"examples/s": "first", "per CPU s": "cpu", "preparing, s": "prepare", "MB": "megabytes"}
    for heading in ("", *columns):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for variant, title in VARIANTS.items():
        metrics = [found[variant].get(column) for column in columns.values()]
        table.add_row(title, *("" if metric is None else f"{metric:,.1f}" for metric in metrics))
    Console().print(table)
    directory, original, resized = (found[variant] for variant in VARIANTS)
    ratios = {
        f"{rate}_to_{name}": resized[rate] / other[rate]
        for rate in ("first", "cpu")
        for name, other in (("original", original), ("directory", directory))
    }
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
