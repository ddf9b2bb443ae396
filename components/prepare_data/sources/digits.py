"""The source `digits`: the 1,797 handwritten digits of scikit-learn, 8x8 pixels.

The images are the test part of the UCI Optical Recognition of Handwritten Digits data set, as shipped with
scikit-learn: a gzip file of comma-separated lines with 64 values from 0 to 16 and the digit. The file is read directly,
because importing scikit-learn takes longer than preparing the data set.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from slipway.components.prepare_data.encoding.image import encode_png
from slipway.components.prepare_data.examples import source_error
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Entry, Ignored, PlainReader, Source
from slipway.core.manifest import TaskName

SIDE = 8
BRIGHTEST = 16
FILE = Path("datasets", "data", "digits.csv.gz")


class DigitsSource(Source):
    """The source `digits`: one part, no predefined splits."""

    name = "digits"
    reference = "digits"
    may_convert = False

    def __init__(self) -> None:
        package = importlib.util.find_spec("sklearn")
        if package is None or not package.submodule_search_locations:
            raise source_error(
                "digits",
                "The source digits requires scikit-learn, which is not installed.",
                fix="pip install scikit-learn",
            )
        self.path = Path(package.submodule_search_locations[0]) / FILE

    def parts(self) -> list[Path]:
        return [self.path]

    def entries(self, part: Path, ignored: Ignored, scratch: Path) -> Iterator[Entry]:  # noqa: ARG002
        """Yield the digits; all have the same stamp, the first bytes of the SHA-256 of scikit-learn's file."""
        stamp = int.from_bytes(hashlib.sha256(part.read_bytes()).digest()[:8])
        for index, line in enumerate(_lines(part)):
            label = line.rpartition(b",")[2].decode()
            yield b"digits/%04d" % index, label, None, len(encode_digit(line)), stamp, index, b""

    def reader(self, scratch: Path) -> DigitsReader:  # noqa: ARG002
        return DigitsReader(self.path)


def open_digits(argument: str, settings: DataSettings, column: str | None, task: TaskName) -> DigitsSource:  # noqa: ARG001
    """Open the source `digits`.

    Raises:
        UserError: scikit-learn is not installed.
    """
    return DigitsSource()


class DigitsReader(PlainReader):
    """Holds the 1,797 lines of the file and encodes images on request."""

    def __init__(self, path: Path) -> None:
        self._lines = _lines(path)

    def read(self, key: bytes, index: int, size: int) -> bytes:  # noqa: ARG002
        return encode_digit(self._lines[index])


def _lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).split()


def encode_digit(line: bytes) -> bytes:
    """Encode one line of the file as an 8-bit grayscale PNG, scaling the values from 0..16 to 0..255.

    The pixels are stored uncompressed, which is smaller here and makes the bytes independent of the zlib version.
    """
    values = [int(value) * 255 // BRIGHTEST for value in line.split(b",")[: SIDE * SIDE]]
    return encode_png(bytes(values), SIDE, SIDE, level=0)
