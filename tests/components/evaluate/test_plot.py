"""Plots: ticks that people read, and marks where the axes say that they are."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.evaluate.plot import ACCENT, Axis, Panel, draw


def labels(axis: Axis) -> list[str]:
    return [text for _, text in axis.labeled()]


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (Axis(-0.02, 1.02), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (Axis(-13, 687, whole=True), ["0", "200", "400", "600"]),
        (Axis(0.9, 3.1, whole=True), ["1", "2", "3"]),
        (Axis(11_000, 32_000), ["15,000", "20,000", "25,000", "30,000"]),
        (Axis(-0.3, 0.25), ["−0.3", "−0.2", "−0.1", "0.0", "0.1", "0.2"]),
        (Axis(0.003, 4, logarithmic=True), ["0.01", "0.1", "1"]),
        (Axis(0.02, 0.9, logarithmic=True), ["0.02", "0.05", "0.1", "0.2", "0.5"]),
        (Axis(0, 3e8), ["0", *(f"{each}0M" for each in (5, 10, 15, 20, 25, 30))]),
        (Axis(-1.2e6, 2.3e6), ["−1M", "0", "1M", "2M"]),
        (Axis(-4e5, 3e5), ["−400k", "−200k", "0", "200k"]),
        (Axis(1_000_000, 1_000_005), [f"1,000,00{each}" for each in range(6)]),
        (Axis(0, 1, ticks=0), []),
    ],
)
def test_ticks_are_round_numbers(axis: Axis, expected: list[str]) -> None:
    assert labels(axis) == expected


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-3, 1e9), whole=st.booleans())
def test_an_axis_of_any_range_has_a_few_different_ticks_within_it(low: float, span: float, whole: bool) -> None:
    axis = Axis(low, low + span, whole=whole)
    found, texts = [value for value, _ in axis.labeled()], labels(axis)
    tolerance = 1e-6 * max(abs(axis.low), abs(axis.high))
    assert all(axis.low - tolerance <= value <= axis.high + tolerance for value in found)
    assert len(found) <= 7
    assert len(found) >= 2 or whole
    assert not whole or all(value == int(value) for value in found)
    assert len(set(texts)) == len(texts) or span < 1e-4 * abs(low)


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-3.0]])
def test_equal_values_have_an_axis_too(values: list[float]) -> None:
    axis = Axis.around(values)
    assert axis.low < values[0] < axis.high


def test_marks_are_where_the_axes_say() -> None:
    panel = Panel(Axis(0, 10), Axis(1, 1000, logarithmic=True))
    panel.line([0, 5, 10], [1, 10**1.5, 1000], ACCENT, name="a<b")
    page = draw([panel], (300, 200), 'the "plot"', "x & y")
    axes = [[float(each) for each in found] for found in re.findall(r'd="M([\d.]+),([\d.]+)L([\d.]+),([\d.]+)"', page)]
    (left, top, _, bottom), right = axes[-1], axes[-2][2]
    (points,) = re.findall(r'polyline points="([^"]+)"', page)
    found = np.array([point.split(",") for point in points.split()], float)
    middle = [(left + right) / 2, (top + bottom) / 2]
    np.testing.assert_allclose(found, [[left, bottom], middle, [right, top]], atol=0.1)
    assert "a&lt;b" in page
    assert "x &amp; y" in page
    assert 'aria-label="the &quot;plot&quot;"' in page
    assert "<title>a&lt;b:  5,  31.623</title>" in page
    assert '<th scope="row" class="break">a&lt;b</th><td>10</td><td>1,000.0</td>' in page


def test_panels_share_the_x_axis_and_the_height() -> None:
    upper, lower = Panel(Axis(0, 4), Axis(0, 1), height=4), Panel(Axis(0, 4, "x"), Axis(0, 1, ticks=0))
    for panel in (upper, lower):
        panel.bars(np.array([1.0]), np.array([2.0]), np.array([1.0]), ACCENT, 0.5)
    page = draw([upper, lower], (300, 200), "bars")
    first, second = (
        [float(each) for each in found]
        for found in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', page)
    )
    assert first[0::2] == second[0::2]
    assert first[3] == pytest.approx(4 * second[3], abs=0.3)
    assert first[1] + first[3] < second[1]
    assert re.findall(r">([\d.x]+)<", page).count("4") == 1
