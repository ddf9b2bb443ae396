"""Numbers as people write them, with separators and signs, and markers of missing values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple, TypeAlias

from slipway.core.values import canonical

# How 1234.56 is written.
NumberFormat: TypeAlias = Literal["1234.56", "1,234.56", "1234,56", "1.234,56", "1 234,56", "1 234.56", "1'234.56"]
# Spaces and apostrophes are whatever a keyboard, a locale or an editor made of them.
_SPACES = " \u00a0\u2007\u2009\u202f"
_APOSTROPHES = "'`´ʹʼ‘’′＇"
_SIGNS = "$€£¥₹%"


class _Marks(NamedTuple):
    """The characters between thousands, and the one before the decimals."""

    thousands: str
    decimal: str

    @property
    def pattern(self) -> str:
        """The regular expression of a number; of RE2, too."""
        digits = f"[1-9][0-9]{{0,2}}(?:[{self.thousands}][0-9]{{3}})+|[0-9]+" if self.thousands else "[0-9]+"
        sign = rf"[{_SIGNS}]?[{_SPACES}]?"
        return rf"^\(?[+-]?{sign}[+-]?(?:{digits})(?:[{self.decimal}][0-9]+)?[{_SPACES}]?[{_SIGNS}]?\)?$"


# The first one that all cells have is that of a column.
NUMBER_FORMATS: dict[NumberFormat, _Marks] = {
    "1234.56": _Marks("", "."),
    "1,234.56": _Marks(",", "."),
    "1234,56": _Marks("", ","),
    "1.234,56": _Marks(".", ","),
    "1 234,56": _Marks(_SPACES, ","),
    "1 234.56": _Marks(_SPACES, "."),
    "1'234.56": _Marks(_APOSTROPHES, "."),
}


def format_of(texts: Iterable[str]) -> NumberFormat | None:
    """Return how numbers are written in texts, all of which are numbers; None if one is not, or two ways are mixed."""
    all_texts = list(texts)
    formats = (
        name for name, marks in NUMBER_FORMATS.items() if all(re.match(marks.pattern, text) for text in all_texts)
    )
    return next(formats, None) if all_texts else None


def plain_number(text: str, written: NumberFormat) -> str:
    """Return a number without separators and signs, other texts as they are; (5) is -5, as accountants write it."""
    marks = NUMBER_FORMATS[written]
    if re.match(marks.pattern, text) is None:
        return text
    digits = re.sub(f"[{_SPACES}{_SIGNS}{marks.thousands}()]", "", text).replace(marks.decimal, ".")
    return f"-{digits}" if text.startswith("(") else digits


def spellings(markers: Collection[str]) -> frozenset[str]:
    """Return all texts of markers of missing values: of -999 also -999.0, as a column with decimals has it."""
    whole = {f"{canonical(text)}.0" for text in markers if re.fullmatch(r"-?\d+", canonical(text))}
    return frozenset({*markers, *map(canonical, markers), *whole})
