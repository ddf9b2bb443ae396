"""Numbers as people write them, and the same digits wherever values stand side by side."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slipway.core.formatting import brief, decimals, difference, elided, interval, number, size, told_apart

USUAL = st.floats(-1e12, 1e12).filter(lambda value: not value or abs(value) >= 1e-6)


def read(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.9375, "0.9375"), (1, "1.0000"), (59.61111, "59.611"), (214.715, "214.72"), (3553.3988, "3,553.4"),
        (377412.3, "377,412"),
        (-0.138, "−0.1380"), (0.0, "0.0000"), (-1e-30, "−1.00 × 10⁻³⁰"), (0.00002, "0.0000200"),
        (8.67e-19, "8.67 × 10⁻¹⁹"),
        (None, "–"), (math.nan, "–"), (math.inf, "∞"), (2.5e20, "2.50 × 10²⁰"),
    ],
)  # fmt: skip
def test_a_number_is_written_as_people_do(value: float | None, expected: str) -> None:
    assert number(value) == expected


def test_data_have_no_zeros_at_their_end() -> None:
    assert [brief(value) for value in (377400.0, 0.5, 2.0, -1.25, 100.0, 1e-9)] == [
        "377,400", "0.5", "2", "−1.25", "100", "1.00 × 10⁻⁹",
    ]  # fmt: skip


@given(USUAL)
def test_between_a_millionth_and_a_trillion_there_is_no_exponent_and_little_is_lost(value: float) -> None:
    text = number(value)
    assert re.fullmatch(r"−?[\d,]+(\.\d+)?", text)
    assert read(text) == pytest.approx(value, rel=0.006 if abs(value) < 0.01 else 6e-3 if abs(value) < 0.1 else 6e-4)
    assert not text.startswith("−0.0000") or value < 0


@given(low=USUAL, high=USUAL, value=st.floats(-1e8, 1e8), other=st.floats(-1e8, 1e8))
def test_value_interval_and_difference_have_the_same_decimals(
    low: float, high: float, value: float, other: float
) -> None:
    places = decimals(value, other)
    gain = difference(value, other, places)
    texts = [number(value, places), number(other, places), gain, *interval(low, high, places).split(" to ")]
    assert len({len(text.partition(".")[2]) for text in texts}) == 1
    # Who subtracts what the page shows, finds the difference that it shows.
    assert read(gain) == pytest.approx(read(texts[0]) - read(texts[1]), abs=0.1 * 10**-places)
    assert gain[0] in "+−" or not read(gain)


@given(st.floats(0, 1), st.floats(0, 1))
def test_what_differs_looks_different(first: float, second: float) -> None:
    assume(abs(first - second) > 1e-7)
    one, two = told_apart(first, second, 1e-9)
    assert one != two
    assert len(one) == len(two)


@given(st.lists(st.text(max_size=60), unique=True, max_size=40), st.integers(12, 30))
@example([f"{'a' * 20}{number}{'b' * 20}" for number in range(3)], 12)
def test_elided_names_are_short_and_different(names: list[str], length: int) -> None:
    found = elided(names, length)
    assert len(set(found)) == len(names)
    assert all(len(short) <= length for short in found)
    assert all(short == name for short, name in zip(found, names, strict=True) if len(name) <= length)


def test_names_are_elided_in_the_middle() -> None:
    names = [f"Diabetic retinopathy, {each}" for each in ("mild", "severe")]
    assert elided(names, 20) == ["Diabetic …athy, mild", "Diabetic …hy, severe"]


def test_sizes_have_the_unit_that_shows_them() -> None:
    assert [size(count) for count in (7, 12_345, 3_900_000, 2_500_000_000)] == [
        "7 bytes",
        "12.3 kB",
        "3.9 MB",
        "2.5 GB",
    ]
