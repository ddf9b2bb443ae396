"""Estimated durations as texts."""

from __future__ import annotations

UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def duration(seconds: float, space: str = " ") -> str:
    """Return a time with at least two digits: "12 s", "3.4 min", "5.1 h"; `space` is before the unit."""
    size, unit = unit_of(seconds)
    return f"{two_digits(seconds / size)}{space}{unit}"


def between(low: float, high: float) -> str:
    """Return a range of times: "12 to 24 min", "50 s to 2.0 min"."""
    first, last = duration(low), duration(high)
    return f"{first.partition(' ')[0]} to {last}" if first.split()[-1] == last.split()[-1] else f"{first} to {last}"


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the unit that suits a time, in seconds and by name."""
    return next((row for row in UNITS if seconds >= 0.9995 * row[0]), UNITS[-1])


def two_digits(value: float) -> str:
    """Return a number with at least two digits: "3.4", "12"."""
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
