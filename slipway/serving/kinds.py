"""The kinds of a model's inputs, `KINDS`: how a value of each kind arrives in requests, in files and on the page."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.core import images
from slipway.core.dates import EPOCH, PATTERNS, Order
from slipway.core.formatted import NumberFormat, plain_number, spellings
from slipway.core.manifest import Input
from slipway.core.values import DECIMAL, MAX_PIXELS, TRUTHS, JsonObject, canonical, is_missing, parts_of, text_of
from slipway.core.words import has_unknown_words

PNG_START, PNG_SIZE = images.PNG_START + b"\0\0\0\x0dIHDR", struct.Struct(">II")
PNG_HEADER_BYTES = 33
DATA_URI = re.compile(r"data:[^,]*;base64,")
# The colors of JPEG images with four components.
FOUR_COLORS = ("CMYK", "YCCK")
LARGEST = float(np.finfo(np.float32).max)

Kind: TypeAlias = Literal["image", "number", "integer", "category", "date", "text", "other"]


@dataclass(frozen=True)
class Field:
    """An input: its kind, and the NumPy type (object: bytes) and shape of an example's value.

    `shape` has None for lengths that may differ. `nullable` is whether a value may be missing: null in JSON. `order` is
    that of a date's parts, `vocabulary` the categories of the training data, `words` the entries of its words, and
    `source` its name there, such as a column's header, if they are known. Texts are numbers as they are `written` in
    the training data, or stand for a missing value. `date` is a usual one.
    """

    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    nullable: bool = False
    order: Order = "ymd"
    vocabulary: tuple[str, ...] = ()
    written: NumberFormat | None = None
    missing: frozenset[str] = frozenset()
    date: str = ""
    source: str = ""
    words: frozenset[str] = frozenset()

    @classmethod
    def of(cls, stored: Input, dtype: np.dtype[Any], shape: tuple[int | None, ...], source: str = "") -> Field:
        """Return an input of a model that Slipway's trainer wrote."""
        vocabulary = stored.vocabulary if stored.kind == "category" else ()
        missing = spellings(stored.missing)
        return cls(
            stored.kind, dtype, shape, stored.accepts_null, stored.order, vocabulary, stored.written, missing,
            stored.usual_date, source, frozenset(stored.vocabulary if stored.kind == "text" else ()),
        )  # fmt: skip

    @functools.cached_property
    def has_typed(self) -> bool:
        """Whether some of the categories are truth values or numbers, which JSON may have as such."""
        return any(text in TRUTHS or DECIMAL.fullmatch(text) for text in map(canonical, self.vocabulary))

    @functools.cached_property
    def _known(self) -> frozenset[bytes]:
        return frozenset(text.encode() for text in self.vocabulary)

    @functools.cached_property
    def _spellings(self) -> dict[bytes, bytes]:
        """The vocabulary by canonical text."""
        return {canonical(text).encode(): text.encode() for text in self.vocabulary}

    def plain(self, text: str) -> str | float | None:
        """Return a text of a request as the number that it is in the training data; None if it is missing there."""
        if text in self.missing:
            return None if self.nullable else text
        if self.written and self.kind == "number":
            with contextlib.suppress(ValueError):
                return float(plain_number(text, self.written))
        return text

    def matched(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return categories as the training data writes them: True and TRUE as true, 1.0 as 1."""
        if not self.vocabulary:
            return values
        values = np.asarray(values)  # the evaluation has tensors
        texts = values.ravel().tolist()
        respelled = {text: self._spelled(text) for text in {*texts} - self._known}
        written = {text: spelled for text, spelled in respelled.items() if spelled != text}
        if not written:
            return values
        return np.array([written.get(text, text) for text in texts], object).reshape(values.shape)

    def _spelled(self, text: bytes) -> bytes:
        return self._spellings.get(canonical(text.decode(errors="replace")).encode(), text)

    def unknown(self, values: NDArray[Any]) -> list[str]:
        """Return the categories that the training data does not have, each as often as it occurs; or such texts.

        These are empty, or mostly of words that the training data does not have.
        """
        if self.words:
            texts = (text.decode(errors="replace") for text in np.asarray(values).ravel().tolist())
            return [text for text in texts if has_unknown_words(text, self.words)]
        if not self.vocabulary:
            return []
        matched = self.matched(np.asarray(values)).ravel().tolist()
        return [text.decode(errors="replace") for text in matched if text not in self._known]

    @property
    def type_name(self) -> str:
        """The type's name in a serving signature."""
        return "string" if self.dtype == object else self.dtype.name

    @property
    def is_image(self) -> bool:
        """Whether an example's value is one encoded image."""
        return self.kind == "image" and not self.shape


@dataclass(frozen=True)
class InputKind:
    """A kind of inputs.

    Attributes:
        type_name: The type in a serving signature and in records; "" if each input has its own.
        check: Returns a value of JSON, or a file's bytes, as the model receives it; its ValueError says why it is none.
        is_text: Whether what is typed is the value, also if it is empty or looks like a number.
        is_long: Whether it has several lines.
        media_types: Types of the files that are a value, such as in a request; "" if a value is typed.
        file: What the page calls such a file.
        columns: Columns of a CSV file with the paths of such files, besides one with the input's own name.
    """

    type_name: str
    check: Callable[[Field, Any], Any]
    is_text: bool = False
    is_long: bool = False
    media_types: str = ""
    file: str = ""
    columns: tuple[str, ...] = ()


def checked(field: Field, value: Any, shape: tuple[int | None, ...]) -> Any:
    """Return an input's value of JSON, or a part of it with this shape, as the model receives it.

    Raises:
        ValueError: It does not fit; the text says why.
    """
    if isinstance(value, str) and (field.written or field.missing):
        value = field.plain(value)
    if value is None and field.nullable:
        return b"" if field.dtype == object else math.nan
    if not shape:
        return KINDS[field.kind].check(field, value)
    length = shape[0]
    if not isinstance(value, list) or (length is not None and len(value) != length):
        description = f"a list of {len(value)}" if isinstance(value, list) else noun(value)
        raise ValueError(f"The value is {description}, not a list of {'values' if length is None else length}")
    return [checked(field, element, shape[1:]) for element in value]


def of_cell(field: Field, text: str) -> Any:
    """Return a cell of a CSV file as JSON has it: a text, a number, null if it is missing, or a list of several values.

    Raises:
        ValueError: It is not a number.
    """
    if field.shape:
        return [_of_text(field, part) for part in parts_of(text if text.startswith("[") else text.replace(";", " "))]
    return _of_text(field, text)


def _of_text(field: Field, text: str) -> Any:
    if field.dtype == object:
        return text
    if field.nullable and is_missing(text):
        return None
    # Python also reads 5_9, and the digits of other scripts.
    if "_" in text or not text.isascii():
        raise ValueError
    if math.isnan(value := float(text)):
        if field.nullable:
            return None
        raise ValueError
    return int(text) if text.lstrip("+-").isdigit() else value


def noun(value: Any) -> str:
    """Return what a value of JSON is called, with its article."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", bytes: "an image"}
    return "null" if value is None else names.get(type(value), "a number")


def _refuse(value: Any, expected: str) -> NoReturn:
    raise ValueError(f"The value is {noun(value)}, not {expected}")


def _image(_each: Field, value: Any) -> bytes:
    if isinstance(value, bytes):  # from a file, not from JSON
        data = value
    else:
        text = value.get("b64") if isinstance(value, dict) and len(value) == 1 else value
        if not isinstance(text, str):
            _refuse(value, 'an image: {"b64": "…"}')
        text = DATA_URI.sub("", text)
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("The value is not valid base64") from None
    if fault := image_fault(data):
        raise ValueError(f"The image cannot be decoded: {fault}")
    return data


def image_fault(data: bytes) -> str | None:
    """Return why an image cannot be predicted on, by its header alone; None if that is valid."""
    try:
        width, height = image_size(data)
    except images.BadImage as reason:
        return str(reason)
    if not height or not width:
        return "it has no pixels"
    if height * width > MAX_PIXELS:
        return f"it has {width}x{height} pixels, more than {MAX_PIXELS:,}"
    return None


def image_size(data: bytes) -> tuple[int, int]:
    """Return the width and height in an image's header.

    Raises:
        BadImage: The header is damaged, or of no known format.
    """
    match images.format_of(data):
        case images.PNG if data.startswith(PNG_START) and len(data) >= PNG_HEADER_BYTES:
            width, height = PNG_SIZE.unpack_from(data, len(PNG_START))
            return width, height
        case images.JPEG:
            return _jpeg_header(data)[1::-1]
        case _:
            return images.opened(data).size


def needs_conversion(data: bytes) -> bool:
    """Return whether a model cannot decode an image, or not upright, or not with the colors that it was trained with.

    A model itself turns JPEG images upright that have an EXIF orientation.
    """
    match images.format_of(data):
        case images.PNG:
            return images.png_orientation(data) != 1
        case images.JPEG:
            with contextlib.suppress(images.BadImage):  # fails when it is decoded
                return _jpeg_header(data)[2] in FOUR_COLORS
            return False
        case image_format:
            return image_format is not None


def _jpeg_header(data: bytes) -> tuple[int, int, str]:
    """Return the height, the width and the colors in a JPEG's header."""
    import simplejpeg

    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):
        raise images.BadImage("its JPEG header is damaged or cut short") from None
    return height, width, colors


def _number(_each: Field, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, "a number")
    if not abs(value) <= LARGEST:
        raise ValueError("The value is outside the range of float32")
    return float(value)


def _integer(field: Field, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(value, "an integer")
    limits = np.iinfo(field.dtype)
    if not limits.min <= value <= limits.max:
        raise ValueError(f"The value is outside the range of {field.dtype}")
    return value


def _category(field: Field, value: Any) -> bytes:
    if field.has_typed and isinstance(value, bool | int | float):
        return text_of(value).encode()
    if not isinstance(value, str):
        _refuse(value, "a text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError("The value is not valid Unicode") from None


def _date(field: Field, value: Any) -> bytes:
    written = field.date or EPOCH[field.order]
    if not isinstance(value, str):
        _refuse(value, f"a date: {written}")
    if field.nullable and is_missing(value):
        return b""
    if re.fullmatch(PATTERNS[field.order], value, re.ASCII) is None:
        raise ValueError(f"{value!r:.40} is not a date as the training data has them: {written}, or {written} 12:30")
    return value.encode()


def _other(field: Field, value: Any) -> Any:
    if field.dtype == object:
        return _category(field, value)
    if field.dtype.kind == "b":
        return value if isinstance(value, bool) else _refuse(value, "true or false")
    return _integer(field, value) if field.dtype.kind in "iu" else _number(field, value)


KINDS: dict[Kind, InputKind] = {
    "image": InputKind(
        "string",
        _image,
        media_types=",".join(images.MEDIA_TYPES),
        file="an image",
        columns=("image", "path", "file"),
    ),
    "number": InputKind("float32", _number),
    "integer": InputKind("int64", _integer),
    "category": InputKind("string", _category, is_text=True),
    "date": InputKind("string", _date),
    "text": InputKind("string", _category, is_text=True, is_long=True),
    "other": InputKind("", _other),  # of a SavedModel that Slipway did not export
}


class BadRequest(Exception):
    """A request that cannot be answered, with the index of the instance and the name of the input at fault.

    The text states the problem in full.
    """

    def __init__(self, problem: str, instance: int | None = None, field: str | None = None) -> None:
        place = "" if instance is None else f"instances[{instance}]"
        place += f".{field}" if field and place else ""
        super().__init__(f"{place}: {problem}." if place else f"{problem}.")
        self.problem, self.instance, self.field = problem, instance, field

    def as_dict(self) -> JsonObject:
        return {"message": str(self), "problem": self.problem, "instance": self.instance, "field": self.field}


def array_of(field: Field, values: Sequence[Any]) -> NDArray[Any]:
    """Return an input's values as an array, [examples, …].

    Raises:
        ValueError: They have different shapes.
    """
    return objects(values) if field.dtype == object and not field.shape else np.array(values, field.dtype)


def objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array of objects, also of lists."""
    if isinstance(values, np.ndarray):
        return values
    array = np.empty(len(values), object)
    for index, value in enumerate(values):  # of lists, NumPy would make rows
        array[index] = value
    return array
