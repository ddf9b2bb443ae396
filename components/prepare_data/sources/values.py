"""Labels of each task and other values, from cells of a CSV file and from Python objects of a user's function."""

from __future__ import annotations

import math
import numbers
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.image import (
    COLORS,
    check_bytes,
    check_pixels,
    encode_png,
)
from slipway.components.prepare_data.encoding.messages import bytes_feature
from slipway.components.prepare_data.examples import LABEL_SEPARATOR, SPLIT_FOLDERS, Unusable
from slipway.core.errors import UserError
from slipway.core.images import format_of
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path
from slipway.core.values import is_missing, parts_of, text_of

# Separates the names in a label cell of the task multilabel.
SEPARATOR = "|"


class NotANumber(ValueError):
    """A label of the task regression that is text."""


def is_number(text: str) -> bool:
    """Whether a cell is a number, finite or not."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def is_list(text: str) -> bool:
    """Whether a cell is a list of JSON or Python."""
    return text.startswith("[") and text.endswith("]")


def label_cell(task: TaskName, text: str, name: str) -> tuple[str, bytes | None]:
    """Return the label of a listed example, and the Feature of a label that is not one class.

    Args:
        task: What is learned.
        text: The cell.
        name: The column.

    Raises:
        Unusable: A target is missing or not finite, or a name is not printable.
        NotANumber: A target is text.
    """
    if task == "regression":
        if not is_missing(text) and not is_number(text):
            raise NotANumber
        target = math.nan if is_missing(text) else float(text)
        try:
            feature = Kind("number").encode(target)
        except Unusable:
            target = math.inf
        if not math.isfinite(target):
            raise Unusable(f"its target in the column {name} is {text or 'empty'}, not a finite number")
        return "", feature
    if task == "multilabel":
        parts = parts_of(text) if is_list(text) else text.split(SEPARATOR)
        names = sorted({part.strip() for part in parts} - {""})
        if not all(part.isprintable() for part in names):
            raise Unusable(f"its label {text!r:.80} is unprintable")
        return LABEL_SEPARATOR.join(names), bytes_feature(part.encode() for part in names)
    return text, None


def label_value(task: TaskName, value: object) -> tuple[str, bytes | None]:
    """Return the label of a listed example, and the Feature of a label that is not one class.

    Raises:
        Unusable: The label is not of the task's form, or a target is not finite.
    """
    if task == "regression":
        target = target_of(value)
        if target is None or not math.isfinite(target):
            raise Unusable(f"its target {value!r:.80} is not a finite number")
        return "", Kind("number").encode(target)
    if task == "multilabel":
        label_names = names_of(value)
        if label_names is None:
            raise Unusable(f"its label {value!r:.80} is not a list of names")
        names = sorted({label_of(name) for name in label_names})
        return LABEL_SEPARATOR.join(names), bytes_feature(name.encode() for name in names)
    return label_of(value), None


def check_label(task: TaskName, label: object, reference: str) -> None:
    """Check that the first label has the form of the task.

    Raises:
        UserError: It has the form of another task's labels.
    """
    several, target = names_of(label) is not None, target_of(label)
    fraction = target is not None and not isinstance(label, numbers.Integral)
    expected = {
        "classification": not several and not fraction, "multilabel": several, "regression": target is not None
    }[task]  # fmt: skip
    if not expected:
        fitting = "multilabel" if several else "regression" if fraction else "classification"
        raise UserError(
            f"The first label of {reference} is {label!r:.80}, which the task {task} cannot learn.",
            setting="task",
            value=task,
            allowed={
                "classification": "text or an integer",
                "multilabel": "a list of names",
                "regression": "a number",
            }[task],
            fix=f"--set task={fitting}",
        )


def label_of(value: object) -> str:
    value = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    if not isinstance(value, str | int):
        raise Unusable("it has no label" if value is None else f"its label {value!r} is neither text nor an integer")
    text = text_of(value)
    if not text or not text.isprintable():
        raise Unusable(f"its label {text!r} is empty or unprintable")
    return text


def names_of(value: object) -> list[object] | None:
    """Return the names in a list of labels, or None if the value is no list."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple | set | frozenset) else None


def target_of(value: object) -> float | None:
    """Return a number to predict, or None if the value is no number."""
    value = value.tolist() if hasattr(value, "tolist") else value
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def split_of(value: object) -> str | None:
    if value is None:
        return None
    split = SPLIT_FOLDERS.get(value.lower()) if isinstance(value, str) else None
    if split is None:
        raise Unusable(f"its split {value!r} is not train, validation or test")
    return split


@runtime_checkable
class Pixels(Protocol):
    """An array, such as NumPy's."""

    dtype: object
    shape: tuple[int, ...]

    def tobytes(self) -> bytes:
        """Return the content."""


def encoded_image(value: object) -> bytes:
    """Return the encoded bytes of a user's image, which are validated when they are written.

    Raises:
        Unusable: It is not an image, is too large, or its file cannot be read.
    """
    if isinstance(value, bytes):
        check_bytes(len(value))
        return value
    if isinstance(value, str | os.PathLike):
        return file_content(local_path(os.fspath(value)).expanduser(), f"its image {os.fspath(value)}")
    if isinstance(value, Mapping):  # as Hugging Face's data sets have images
        content = next((value[name] for name in ("bytes", "path") if value.get(name) is not None), None)
        if isinstance(content, Mapping) or not value.keys() <= {"bytes", "path"} or content is None:
            raise Unusable("its image is a dict without bytes and path")
        return encoded_image(content)
    if hasattr(value, "numpy"):
        value = value.numpy()
    elif hasattr(value, "getbands"):  # Pillow's
        value = _pixels_of(value)
    if not isinstance(value, Pixels):
        raise Unusable(f"its image is a {type(value).__name__}, not encoded bytes, a path, a Pillow image or an array")
    shape = tuple(value.shape)
    if len(shape) not in (2, 3) or 0 in shape or (*shape, 1)[2] not in COLORS:
        raise Unusable(f"its image is an array {value.dtype} {list(shape)}, not [height, width(, channels)]")
    check_pixels(*shape[:2])
    return encode_png(value.tobytes() if str(value.dtype) == "uint8" else _as_bytes(value), *shape)


def _pixels_of(image: Any) -> Any:
    """Return the pixels of a Pillow image as an array; those without a known range as they are."""
    import numpy as np

    from slipway.core.images import GRAY_MODES

    check_pixels(image.height, image.width)
    is_plain = image.mode in ("L", "RGB", "RGBA", "LA", "F", "I") or image.mode.startswith("I;")
    return np.asarray(image if is_plain else image.convert("L" if image.mode in GRAY_MODES else "RGB"))


def _as_bytes(pixels: Any) -> bytes:
    """Return pixels as bytes: truth values, fractions from 0 to 1, and whole numbers from 0 to 255 have one meaning.

    Raises:
        Unusable: They have other values.
    """
    import numpy as np

    values = np.asarray(pixels)
    if values.dtype == bool:
        return (values.astype(np.uint8) * np.uint8(255)).tobytes()
    if values.dtype.kind in "fiu" and np.isfinite(values).all():
        low, high = float(values.min()), float(values.max())
        if values.dtype.kind == "f" and low >= 0 and high <= 1:
            return np.rint(values * 255).astype(np.uint8).tobytes()
        if low >= 0 and high <= np.iinfo(np.uint8).max and (values == np.trunc(values)).all():
            return values.astype(np.uint8).tobytes()
    raise Unusable(
        f"its image is an array {values.dtype} {list(values.shape)} with values from {values.min()} to {values.max()}; "
        "whole numbers from 0 to 255, or fractions from 0 to 1, are pixels"
    )


def looks_like_image(value: object) -> bool:
    """Whether a value of an example is an encoded image or an array of pixels."""
    if isinstance(value, bytes):
        return format_of(value) is not None
    return hasattr(value, "getbands") or (
        isinstance(value, Pixels) and str(value.dtype) == "uint8" and len(value.shape) > 1
    )


def file_content(path: Path, subject: str) -> bytes:
    """Return the bytes of an image file, which the message of Unusable calls `subject`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unusable(f"{subject} is not a file")
        check_bytes(status.st_size)
        return path.read_bytes()
    except OSError as error:
        raise Unusable(f"{subject} cannot be read: {error.strerror}") from None


def encoded_feature(name: str, kind: Kind, value: object) -> bytes:
    try:
        if kind.name == "image":
            if kind.is_list and isinstance(value, Iterable):
                value = [encoded_image(part) for part in value]
            else:
                value = encoded_image(value)
        return kind.encode(value)
    except Unusable as reason:
        raise Unusable(f"its {name}: {reason}") from None
