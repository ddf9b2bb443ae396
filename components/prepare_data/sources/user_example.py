"""Convert the examples that a user's function yields to their stored form."""

from __future__ import annotations

import hashlib
import marshal
import os
import stat
from typing import Any, NamedTuple

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.png import COLORS, encode_png
from slipway.components.prepare_data.encoding.unusable import Unusable
from slipway.components.prepare_data.sources.again import DIGEST_BYTES
from slipway.components.prepare_data.sources.layout import SPLIT_FOLDERS
from slipway.components.prepare_data.validation.check import check_bytes, check_pixels
from slipway.core.paths import local_path


class Taken(NamedTuple):
    """An example in its stored form: key, class, split, encoded image and additional features."""

    key: bytes
    label: str
    split: str | None
    image: bytes
    further: list[tuple[bytes, bytes]]


def digest(taken: Taken | None) -> bytes:
    """Return a digest of an example."""
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    if taken is not None:
        hashed.update(marshal.dumps((taken.key, taken.label, taken.split, len(taken.image), taken.further), 2))
        hashed.update(taken.image)
    return hashed.digest()


def encoded_image(value: Any) -> bytes:
    """Return the encoded bytes of a user's image, which are validated when they are written.

    Raises:
        Unusable: It is not an image, is too large, or its file cannot be read.
    """
    if isinstance(value, bytes):
        check_bytes(len(value))
        return value
    if isinstance(value, str | os.PathLike):
        return _content(os.fspath(value))
    value = value.numpy() if hasattr(value, "numpy") else value
    if not hasattr(value, "dtype") or not hasattr(value, "tobytes"):
        raise Unusable(f"its image is a {type(value).__name__}, not encoded bytes, a path or an array")
    shape = tuple(value.shape)
    if str(value.dtype) != "uint8" or len(shape) not in (2, 3) or 0 in shape or (*shape, 1)[2] not in COLORS:
        raise Unusable(f"its image is an array {value.dtype} {list(shape)}, not uint8 [height, width(, channels)]")
    check_pixels(*shape[:2])
    return encode_png(value.tobytes(), *shape)


def _content(path: str) -> bytes:
    file = local_path(path).expanduser()
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unusable(f"its image {path} is not a file")
        check_bytes(status.st_size)
        return file.read_bytes()
    except OSError as error:
        raise Unusable(f"its image {path} cannot be read: {error.strerror}") from None


def label_of(value: Any) -> str:
    value = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unusable("it has no label" if value is None else f"its label {value!r} is neither text nor an integer")
    text = str(value)
    if not text or not text.isprintable():
        raise Unusable(f"its label {text!r} is empty or unprintable")
    return text


def split_of(value: Any) -> str | None:
    if value is None:
        return None
    found = SPLIT_FOLDERS.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise Unusable(f"its split {value!r} is not train, validation or test")
    return found


def encoded_feature(name: str, kind: Kind, value: Any) -> bytes:
    try:
        if kind.name == "image":
            value = [encoded_image(part) for part in value] if kind.is_list else encoded_image(value)
        return kind.encode(value)
    except Unusable as reason:
        raise Unusable(f"its {name}: {reason}") from None
