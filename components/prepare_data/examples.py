"""What all stages know of examples: splits, keys, why one cannot be used, and the errors that name them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from slipway.core.errors import UserError

# An example for a shard's writer: key, label, size in bytes and offset; see `Entry`.
Example = tuple[bytes, int, int, int]
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
# Prefix of a column name in data.group_by.
COLUMN = "column:"
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


def source_error(
    reference: str, message: str, *, allowed: str | None = None, nearest: str | None = None, fix: str | None = None
) -> UserError:
    """Return an error of data.source, whose value is `reference`."""
    return UserError(message, setting="data.source", value=reference, allowed=allowed, nearest=nearest, fix=fix)


@dataclass(frozen=True)
class Problem:
    """A kind of examples that the settings refuse.

    Attributes:
        message: The sentence that names the first of them.
        setting: The setting that decides.
        value: Its value.
        allowed: What it accepts.
        accepting: The value with which it accepts these examples; None if there is none.
        otherwise: What else fixes it.
    """

    message: str
    setting: str
    value: object
    allowed: str
    accepting: str | None
    otherwise: str


def refuse(problems: Sequence[Problem]) -> None:
    """Check that there are no problems.

    Raises:
        UserError: Names all of them; its fix is one command line.
    """
    if not problems:
        return
    options = [
        f"--set {shlex.quote(f'{problem.setting}={problem.accepting}')}"
        for problem in problems
        if problem.accepting is not None
    ]
    fix = "; or ".join([*([" ".join(options)] if options else []), *(problem.otherwise for problem in problems)])
    first, *remaining = problems
    if not remaining:
        raise UserError(first.message, setting=first.setting, value=first.value, allowed=first.allowed, fix=fix)
    listed = "".join(f"\n  {problem.message}" for problem in problems)
    raise UserError(f"The source has {len(problems)} problems:{listed}", fix=fix)
