"""The kinds of additional features: how their values are encoded and described to TensorFlow Datasets.

A kind is one of `NAMES`, followed by `[]` for a list of any length or by a shape, as in `number[3]` or `integer[2,2]`.
A number is a float32, an integer is an int64, a category is text of which the data set has few different ones, a date
is text with year, month and day, or day, month and year (`date_dmy`), or month, day and year (`date_mdy`), and a
bounding box is four numbers from 0 to 1: ymin, xmin, ymax and xmax as fractions of height and width.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from slipway.components.prepare_data.encoding.messages import (
    LARGEST_INTEGER,
    bytes_feature,
    float_feature,
    integer_feature,
)
from slipway.components.prepare_data.examples import Unusable
from slipway.core import dates
from slipway.core.values import JsonObject, parts_of, text_of

# Kinds whose values are text.
TEXTS = ("text", "category", "date", "date_dmy", "date_mdy")
NAMES = (*TEXTS, "integer", "number", "image", "bounding_box")
ALLOWED = ", ".join(NAMES) + "; a list as in text[]; a fixed shape as in number[3]"
PATTERN = re.compile(rf"^({'|'.join(NAMES)})(?:\[(\d+(?:,\d+)*)?\])?$")
BOX = 4
LARGEST_FLOAT = 3.4028235677973366e38
# Values that have a text; see `text_of`.
SCALARS = (str, bool, int, float, Decimal, date)
CLASS = "tensorflow_datasets.core.features."


@dataclass(frozen=True)
class Kind:
    """The kind of a feature: its name, whether it is a list of any length, and its fixed shape."""

    name: str
    is_list: bool = False
    shape: tuple[int, ...] = ()

    @property
    def is_date(self) -> bool:
        """Whether the values are dates."""
        return self.name.startswith("date")

    @property
    def order(self) -> dates.Order:
        """The order of the parts of a date."""
        return next((order for order in dates.PATTERNS if self.name.endswith(order)), "ymd")

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Parse a kind.

        Raises:
            ValueError: The text is not a kind.
        """
        match = PATTERN.match(text.replace(" ", ""))
        if match is None:
            raise ValueError(f"there is no kind of feature {text!r}")
        shape = tuple(int(size) for size in match[2].split(",")) if match[2] else ()
        is_list = "[" in text and not shape
        if (shape and (match[1] not in ("integer", "number") or 0 in shape)) or (is_list and match[1] in TEXTS[1:]):
            raise ValueError(f"the kind of feature {text!r} has an invalid shape")
        return cls(match[1], is_list=is_list, shape=shape)

    @classmethod
    def of(cls, value: object) -> Kind:
        """Infer the kind of a value.

        Raises:
            Unusable: No kind matches the value.
        """
        value = _plain(value)
        if isinstance(value, list | tuple):
            if not value:
                raise Unusable("an empty list has no kind")
            return cls(cls.of(value[0]).name, is_list=True)
        if isinstance(value, str | bytes):
            return cls("text")
        if isinstance(value, date):
            return cls("date")
        if isinstance(value, numbers.Integral):
            return cls("integer")
        if isinstance(value, numbers.Real | Decimal):
            return cls("number")
        raise Unusable(f"there is no kind for a {type(value).__name__}")

    def __str__(self) -> str:
        return self.name + ("[]" if self.is_list else f"[{','.join(map(str, self.shape))}]" if self.shape else "")

    @property
    def description(self) -> JsonObject:
        """The kind in the format of `features.json`."""
        single = self._one()
        if not self.is_list:
            return single
        return {"pythonClassName": f"{CLASS}sequence_feature.Sequence", "sequence": {"feature": single, "length": "-1"}}

    def _one(self) -> JsonObject:
        if self.name in TEXTS:
            return {"pythonClassName": f"{CLASS}text_feature.Text", "text": {}}
        if self.name == "image":
            shape = {"dimensions": ["-1", "-1", "3"]}
            return {"pythonClassName": f"{CLASS}image_feature.Image", "image": {"dtype": "uint8", "shape": shape}}
        if self.name == "bounding_box":
            box = {"bboxFormat": "REL_YXYX", "dtype": "float32", "shape": {"dimensions": [str(BOX)]}}
            return {"pythonClassName": f"{CLASS}bounding_boxes.BBoxFeature", "boundingBox": box}
        dimensions = {"dimensions": [str(size) for size in self.shape]} if self.shape else {}
        tensor = {"dtype": "int64" if self.name == "integer" else "float32", "encoding": "none", "shape": dimensions}
        kind = "tensor_feature.Tensor" if self.shape else "scalar.Scalar"
        return {"pythonClassName": f"{CLASS}{kind}", "tensor": tensor}

    def from_text(self, text: str) -> Any:
        """Parse a value from text, such as a cell of a table. Several values are separated by spaces; images are paths.

        Raises:
            Unusable: The text is not of this kind.
        """
        if self.name == "image":
            return parts_of(text) if self.is_list else [text]
        if self.name in TEXTS:
            return parts_of(text) if self.is_list else text
        read = int if self.name == "integer" else float
        try:
            parsed = [read(part) for part in parts_of(text)]
        except ValueError:
            raise Unusable(f"{text!r} is not a valid {self}") from None
        if self.name == "bounding_box":
            return _in_fours(parsed, text) if self.is_list else parsed
        return parsed if self.is_list or self.shape else parsed[0] if len(parsed) == 1 else parsed

    def encode(self, value: object) -> bytes:
        """Encode a value as a tf.train.Feature. An image is passed as encoded bytes.

        Raises:
            Unusable: The value is not of this kind.
        """
        value = _plain(value)
        values = list(_flat(value)) if self.is_list or self.shape or self.name == "bounding_box" else [value]
        if self.shape and len(values) != math.prod(self.shape):
            raise Unusable(f"{_short(value)} has {len(values)} values; {self} has {math.prod(self.shape)}")
        if self.name in (*TEXTS, "image"):
            return bytes_feature(self._bytes(part) for part in values)
        if self.name == "integer":
            return integer_feature(self._integer(part) for part in values)
        numbers_found = [self._number(part) for part in values]
        if self.name == "bounding_box":
            _check_boxes(numbers_found, self.is_list, value)
        return float_feature(numbers_found)

    def _bytes(self, value: object) -> bytes:
        if isinstance(value, bytes):
            return value
        if self.is_date and isinstance(value, date):
            return dates.written(value, self.order).encode()
        if isinstance(value, SCALARS if self.name == "category" else str) and self.name != "image":
            return text_of(value).encode("utf-8", "surrogateescape")
        raise self._wrong(value)

    def _integer(self, value: object) -> int:
        if isinstance(value, numbers.Integral) and -LARGEST_INTEGER - 1 <= int(value) <= LARGEST_INTEGER:
            return int(value)
        raise self._wrong(value)

    def _number(self, value: object) -> float:
        if isinstance(value, numbers.Real | Decimal) and not (LARGEST_FLOAT < abs(float(value)) < math.inf):
            return float(value)
        raise self._wrong(value)

    def _wrong(self, value: object) -> Unusable:
        return Unusable(f"{_short(value)} is not a valid {self.name}")


def described(description: JsonObject) -> str:
    """Describe a feature of `features.json` briefly: as a kind if it is one of ours, else by its class name."""
    name = str(description.get("pythonClassName", "")).rpartition(".")[2]
    if name == "Sequence" and "feature" in description.get("sequence", {}):
        inner = described(description["sequence"]["feature"])
        return f"{inner}[]"
    if name == "FeaturesDict":
        features = description.get("featuresDict", {}).get("features", {})
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in sorted(features.items())) + "}"
    if name in ("Tensor", "Scalar"):
        tensor = description.get("tensor", {})
        kind = {"int64": "integer", "float32": "number"}.get(tensor.get("dtype"), tensor.get("dtype", name))
        shape = tensor.get("shape", {}).get("dimensions", [])
        return kind + (f"[{','.join(shape)}]" if shape else "")
    return {"Text": "text", "Image": "image", "BBoxFeature": "bounding_box", "ClassLabel": "class"}.get(name, name)


def _plain(value: object) -> object:
    """Convert a NumPy array or number to Python objects."""
    return value.tolist() if hasattr(value, "tolist") else value


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(_plain(part))
    else:
        yield value


def _in_fours(coordinates: list[float], text: str) -> list[list[float]]:
    if len(coordinates) % BOX:
        raise Unusable(f"{text!r} is not a list of bounding boxes: a box has four numbers")
    return [coordinates[start : start + BOX] for start in range(0, len(coordinates), BOX)]


def _check_boxes(coordinates: list[float], several: bool, value: object) -> None:
    if len(coordinates) % BOX or (not several and len(coordinates) != BOX):
        raise Unusable(f"{_short(value)} is not a bounding box: a box has four numbers")
    for ymin, xmin, ymax, xmax in zip(*(iter(coordinates),) * BOX, strict=True):
        if not (0 <= ymin <= ymax <= 1 and 0 <= xmin <= xmax <= 1):
            raise Unusable(
                f"{_short([ymin, xmin, ymax, xmax])} is not a bounding box: ymin, xmin, ymax, xmax must be from "
                "0 to 1, no minimum above its maximum"
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
