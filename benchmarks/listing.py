"""CPU of listing sources that must be read, by stage: `python -m benchmarks.listing`.

With Apache Beam, its workers list the parts; the other stages are those of the machine that starts the pipeline.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet

from slipway.components.prepare_data.encoding.messages import float_feature
from slipway.components.prepare_data.encoding.records import RecordEncoder
from slipway.components.prepare_data.listing.index import Listing
from slipway.components.prepare_data.listing.parts import list_part
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import open_source

NUMBERS, CLASSES, CITIES, FILES, IMAGE_BYTES = 20, 10, 500, 2, 2000
STAGES = ("kinds", "dividing", "listing", "merging")
LABEL = {"label": {"classes": CLASSES}}


def columns(rows: int, *, text: bool) -> pyarrow.Table:
    """Return numbers, a class, and with `text` a category."""
    rng = np.random.default_rng(0)
    found: dict[str, object] = {f"x{number}": rng.normal(size=rows).round(5) for number in range(NUMBERS)}
    if text:
        found["city"] = np.array([f"city {number}" for number in range(CITIES)])[rng.integers(0, CITIES, rows)]
    return pyarrow.table(found | {"label": rng.integers(0, CLASSES, rows)})


def table(folder: Path, rows: int) -> DataSettings:
    """Write a CSV file of numbers."""
    pyarrow.csv.write_csv(columns(rows, text=False), folder / "table.csv")
    return DataSettings(source=f"csv:{folder / 'table.csv'}")


def quoted(folder: Path, rows: int) -> DataSettings:
    """Write a CSV file of numbers and a category in quotes."""
    pyarrow.csv.write_csv(columns(rows, text=True), folder / "table.csv")
    return DataSettings(source=f"csv:{folder / 'table.csv'}")


def declared(folder: Path, rows: int) -> DataSettings:
    """Write the same file; the kind of the category is declared."""
    return quoted(folder, rows).model_copy(update={"features": {"city": "category"}})


def parquet(folder: Path, rows: int) -> DataSettings:
    """Write a Parquet file of numbers and a category."""
    pyarrow.parquet.write_table(columns(rows, text=True), folder / "table.parquet")
    return DataSettings(source=f"parquet:{folder / 'table.parquet'}")


def records(folder: Path, rows: int) -> DataSettings:
    """Write TFRecord files of numbers."""
    values = np.random.default_rng(0).normal(size=(rows, NUMBERS)).tolist()
    names = [f"x{number}" for number in range(NUMBERS)]

    def record(number: int) -> bytes:
        features = [(name.encode(), float_feature([value])) for name, value in zip(names, values[number], strict=True)]
        return RecordEncoder().encode_with(None, b"", number % CLASSES, features)

    return write_records(folder, rows, record, dict.fromkeys(names, "number"))


def images(folder: Path, rows: int) -> DataSettings:
    """Write TFRecord files of images, which are not decoded."""
    encoder = RecordEncoder()

    def record(number: int) -> bytes:
        return encoder.encode(number.to_bytes(IMAGE_BYTES), b"", number % CLASSES)

    return write_records(folder, rows, record, {"image": "image"})


def write_records(folder: Path, rows: int, record: Callable[[int], bytes], features: dict[str, str]) -> DataSettings:
    """Write records without keys to several files."""
    for file in range(FILES):
        with (folder / f"{file}.tfrecord").open("wb") as opened:
            opened.writelines(record(number) for number in range(file, rows, FILES))
    return DataSettings.model_validate({"source": f"tfrecord:{folder}", "features": features | LABEL})


SOURCES = {each.__name__: each for each in (table, quoted, declared, parquet, records, images)}


def measure(write: Callable[[Path, int], DataSettings], rows: int) -> list[float]:
    """Return the CPU seconds of each stage in this process, and the size of the lists in bytes."""
    with tempfile.TemporaryDirectory() as made:
        folder, scratch = Path(made, "source"), Path(made, "lists")
        folder.mkdir()
        scratch.mkdir()
        settings = write(folder, rows)
        times = [time.process_time()]
        source = open_source(settings)
        times.append(time.process_time())
        parts = source.parts()
        times.append(time.process_time())
        found = [list_part(source, part, 0, scratch / f"part-{number}") for number, part in enumerate(parts)]
        times.append(time.process_time())
        size = sum(path.stat().st_size for path in scratch.glob("part-*"))
        Listing(source, found, scratch / "listing", settings)
        times.append(time.process_time())
        return [*np.diff(times).tolist(), size]


def main() -> None:
    """Print the CPU microseconds of each stage a row, and the bytes of the lists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="rows or records")
    rows = parser.parse_args().rows
    measure(table, rows=1000)  # imports
    print(f"{'CPU µs a row':<14}", *(f"{stage:>9}" for stage in STAGES), f"{'bytes':>9}")
    for name, write in SOURCES.items():
        *stages, size = measure(write, rows)
        print(f"{name:<14}", *(f"{stage / rows * 1e6:>9.2f}" for stage in stages), f"{size / rows:>9.0f}")


if __name__ == "__main__":
    main()
