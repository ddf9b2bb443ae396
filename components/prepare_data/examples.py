"""What all stages know of examples: splits, keys, and why an example cannot be used."""

from __future__ import annotations

# A source's split (None if it defines none) and class.
Group = tuple[str | None, str]

SPLITS = ("train", "validation", "test")
# The names of splits in sources, in lower case.
SPLIT_FOLDERS = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}
# The features that every stored example has.
OWN = ("image", "label", "key")
# Separates the labels of an example in its entry.
LABEL_SEPARATOR = "\n"


class Unusable(Exception):
    """An example that cannot be used; the text is the reason. The run skips it or stops (data.skip_corrupt)."""


class Undecodable(Unusable):
    """An image with a valid header that cannot be decoded in full."""


class Damaged(Unusable):
    """An image that decoders accept with warnings, if data.damaged is `refuse`."""


def readable(key: bytes) -> str:
    """Decode a key to text; bytes that are not UTF-8 are escaped."""
    return key.decode("utf-8", "backslashreplace")


def stored_name(name: str) -> str:
    """Return the name under which an additional feature is stored; names that clash with ours get a prefix."""
    return f"source_{name}" if name in OWN else name
