"""Numbers as people write them: the formatter of all pages and of the gate's sentences."""

from __future__ import annotations

import math

SMALLEST, LARGEST = 1e-6, 1e15  # beyond these, a person writes a power of ten
MINUS = "−"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimals(*values: float | None, digits: int = 4) -> int:
    """Return with how many decimals values side by side are shown.

    Below 1, these are `digits`; a larger value has one less for each digit before the point, and values that all are
    below 0.01 have three digits that are not 0.
    """
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    if largest < SMALLEST:
        return digits
    magnitude = math.floor(math.log10(largest))
    return max(digits, 2 - magnitude) if largest < 0.01 else max(0, digits - max(0, magnitude))


def number(value: float | None, places: int | None = None, *, digits: int = 4) -> str:
    """Format a value with `places` decimals, or as many as `decimals` says; None and NaN are a dash."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    if size >= LARGEST or (places is None and 0 < size < SMALLEST):
        factor, _, power = f"{size:.2e}".partition("e")
        text = f"{factor} × 10{str(int(power)).translate(_RAISED)}"
    else:
        text = f"{size:,.{decimals(value, digits=digits) if places is None else places}f}"
    return f"{MINUS}{text}" if value < 0 and text.strip("0.,") else text


def brief(value: float) -> str:
    """Format a value as `number` does, without zeros at its end: of data and settings, not of metrics."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text and "×" not in text else text


def interval(low: float, high: float, places: int | None = None, *, digits: int = 4) -> str:
    """Format both ends of an interval with the same decimals."""
    places = decimals(low, high, digits=digits) if places is None else places
    return f"{number(low, places)} to {number(high, places)}"


def difference(value: float, other: float, places: int) -> str:
    """Format a difference with its sign, as who subtracts the two formatted values finds it."""
    gain = round(value, places) - round(other, places)
    text = number(gain, places)
    return f"+{text}" if gain > 0 and text.strip("0.,") else text


def told_apart(first: float, second: float, rounding: float, fewest: int | None = None) -> tuple[str, str]:
    """Format two values with `fewest` decimals, or as usual; with more if only these show that they differ."""
    fewest = decimals(first, second) if fewest is None else fewest
    for places in range(fewest, fewest + 6):
        texts = number(first, places), number(second, places)
        if texts[0] != texts[1] or abs(first - second) <= rounding:
            break
    return texts


def size(count: int) -> str:
    """Format a number of bytes."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def binary_size(count: int) -> str:
    """Format a number of bytes in binary units."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >> shift:
            return f"{count / (1 << shift):.1f} {unit}"
    return f"{count} bytes"


def elided(names: list[str], length: int) -> list[str]:
    """Shorten different names in the middle to `length` characters; they stay different, if need be numbered."""
    taken = {name for name in names if len(name) <= length}
    head = (length - 1) // 2

    def shortened(name: str) -> str:
        short, count = f"{name[:head]}…{name[len(name) - (length - 1 - head) :]}", 2
        while short in taken:
            ending = f"… ({count})"
            short, count = name[: length - len(ending)] + ending, count + 1
        taken.add(short)
        return short

    return [name if len(name) <= length else shortened(name) for name in names]
