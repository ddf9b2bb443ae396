"""Plots as inline SVG elements in the colors and the font of the page: lines, bars and dots above a grid.

Pointing at a mark shows its values; a table to unfold below the plot has them for keyboards and screen readers.
Drawn here and not by matplotlib, whose import and layout took longer than the evaluation of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from slipway.components.evaluate.measures.significance import Floats
from slipway.core.formatting import brief, interval, number

INK, MUTED, LINE, ACCENT, SECOND = (f"var(--{name})" for name in ("ink", "muted", "line", "accent", "second"))
# Lengths are in units of the viewBox.
FONT, TITLE_FONT = 9.5, 10.5
DIGIT = 0.56 * FONT  # the usual width of a digit
GAP = 5.0  # between labels and what they belong to
LINE_HEIGHT = 1.5 * FONT
_MAX_DECADES = 6  # with a label each
SCALE = 1.35  # pixels of a unit at most, so that the text of all plots has one size
LISTED, LISTED_OF_MANY, MANY = 24, 10, 3  # points of a line in the table; of each of more than so many lines


# Labels from 100,000 on are in thousands, millions or billions, so that they do not run into each other.
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
WIDE = 1e5


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, with about `ticks` labeled ticks, whole numbers if `whole`."""

    low: float
    high: float
    label: str = ""
    ticks: int = 6
    whole: bool = False
    logarithmic: bool = False

    @classmethod
    def around(
        cls, *values: Sequence[float] | Floats, margin: float = 0.05, zero: bool = False, **options: object
    ) -> Axis:
        """Return an axis of all values, and of 0 if `zero`, with a margin at each other end."""
        everything = np.concatenate([np.asarray(numbers, np.float64) for numbers in values])
        axis = cls(float(everything.min()), float(everything.max()), **options)  # type: ignore[arg-type]
        low, high = axis._scaled(np.array([axis.low, axis.high])).tolist()
        space = margin * (high - low) or 0.05 * abs(high) or 0.05
        low, high = low - space, high + space
        ends = (10**low, 10**high) if axis.logarithmic else (0.0 if zero else low, high)
        return cls(*ends, **options)  # type: ignore[arg-type]

    def fractions(self, values: ArrayLike) -> Floats:
        """Return where values lie between both ends, 0 to 1."""
        low, high = self._scaled([self.low, self.high])
        return (self._scaled(values) - low) / (high - low)

    def labeled(self) -> list[tuple[float, str]]:
        """Return the ticks and their labels."""
        if self.ticks == 0:
            return []
        if self.logarithmic:
            low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            powers = [10.0**power for power in range(low, high + 1, 1 + (high - low) // _MAX_DECADES)]
            values = [factor * power for power in powers for factor in ((1, 2, 5) if high - low <= 2 else (1,))]
            return [(value, brief(value)) for value in values if self.low <= value <= self.high]
        step = self._step()
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [count * step for count in range(first, last + 1)]
        largest = max(map(abs, values), default=0)
        if largest >= 1e13 or step < 1e-5:
            return [(value, brief(value)) for value in values]
        unit, sign = next((row for row in UNITS if largest >= max(row[0], WIDE) and step >= 1e-2 * row[0]), (1.0, ""))
        part = step / unit
        digits = next(digits for digits in range(8) if abs(round(part, digits) - part) < 1e-9 * part)
        return [(value, number(value / unit, digits) + sign * bool(value)) for value in values]

    def _scaled(self, values: ArrayLike) -> Floats:
        array: Floats = np.asarray(values, np.float64)
        return np.log10(array) if self.logarithmic else array

    def _step(self) -> float:
        """Return the distance between ticks: 1, 2, 2.5 or 5 times a power of ten."""
        least = (self.high - self.low) / self.ticks
        least = max(1.0, least) if self.whole else least
        power = 10.0 ** math.floor(math.log10(least))
        steps = (1.0, 2.0, 5.0, 10.0) if self.whole else (1.0, 2.0, 2.5, 5.0, 10.0)
        return next(step * power for step in steps if step * power >= least * (1 - 1e-9))


class Panel:
    """Marks above the grid of two axes, drawn in the order of the calls; `height` is its fraction of the plot's."""

    def __init__(self, x: Axis, y: Axis, height: float = 1.0) -> None:
        self.x, self.y, self.height = x, y, height
        # x and y values, how to draw each of them from its position, and the attributes of them all.
        self._marks: list[tuple[ArrayLike, ArrayLike, Callable[[list[list[float]]], str], str]] = []
        self.legend: list[tuple[str, str]] = []
        # Of each named line and all bars: its name, and the x and y values as texts.
        self.listed: list[tuple[str, list[tuple[str, str]]]] = []
        self._lines: list[tuple[str, Floats, Floats]] = []

    def line(
        self, x: ArrayLike, y: ArrayLike, color: str, width: float = 1.2, *, opacity: float = 1.0,
        dashed: bool = False, dots: float = 0, name: str = "", legend: bool = True,
    ) -> None:  # fmt: skip
        """Draw a line through points, with `dots` of that radius on them; a `name` is shown, and in the legend."""

        def drawn(points: list[list[float]]) -> str:
            return f'<polyline points="{" ".join(f"{left:.1f},{top:.1f}" for left, top in points)}"/>'

        style = f'fill="none" stroke="{color}" stroke-width="{width:g}" opacity="{opacity:g}"'
        self._marks.append((x, y, drawn, style + (' stroke-dasharray="4 4"' if dashed else "")))
        if dots:
            self.dots(x, y, color, dots)
        if name:
            self._lines.append((name, np.asarray(x, np.float64), np.asarray(y, np.float64)))
        if name and legend:
            self.legend.append((name, color))

    def list_lines(self) -> None:
        """Let points of the named lines show their values, and list them for the table."""
        most = LISTED if len(self._lines) <= MANY else LISTED_OF_MANY
        for name, x, y in self._lines:
            kept = np.unique(np.linspace(0, len(x) - 1, min(most, len(x))).round().astype(int))
            texts = [
                (brief(position), number(value))
                for position, value in zip(x[kept].tolist(), y[kept].tolist(), strict=True)
            ]
            self.listed.append((name, texts))
            titles = [f"{name}: {self.x.label} {position}, {self.y.label} {value}" for position, value in texts]
            self._targets(x[kept], y[kept], titles)
        self._lines = []

    def _targets(self, x: Floats, y: Floats, titles: list[str]) -> None:
        """Let invisible circles around points show titles."""

        def drawn(points: list[list[float]]) -> str:
            return "".join(
                f'<circle cx="{left:.1f}" cy="{top:.1f}" r="6"><title>{escape(title)}</title></circle>'
                for (left, top), title in zip(points, titles, strict=True)
            )

        self._marks.append((x, y, drawn, 'fill="transparent"'))

    def dots(self, x: ArrayLike, y: ArrayLike, color: str, radius: float, opacity: float = 1.0) -> None:
        """Draw a dot at each point."""

        def drawn(points: list[list[float]]) -> str:
            return "".join(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{radius:g}"/>' for left, top in points)

        self._marks.append((x, y, drawn, f'fill="{color}" fill-opacity="{opacity:g}"'))

    def bars(self, left: Floats, right: Floats, heights: Floats, color: str, opacity: float, name: str = "") -> None:
        """Draw bars from 0, each between two x values; they are listed under `name`, if they have one."""
        ranges = [interval(*ends, digits=3) for ends in zip(left.tolist(), right.tolist(), strict=True)]
        texts = [(ends, brief(height)) for ends, height in zip(ranges, heights.tolist(), strict=True)]
        if name:
            self.listed.append((name, texts))

        def drawn(points: list[list[float]]) -> str:
            corners = zip(points[: len(left)], points[len(left) :], texts, strict=True)
            return "".join(
                f'<rect x="{start:.1f}" y="{top:.1f}" width="{max(0.6, 0.94 * (end - start)):.1f}" '
                f'height="{base - top:.1f}"><title>{text[0]}: {text[1]}</title></rect>'
                for (start, top), (end, base), text in corners
            )

        x, y = np.concatenate([left, right]), np.concatenate([heights, np.zeros(len(right))])
        self._marks.append((x, y, drawn, f'fill="{color}" fill-opacity="{opacity:g}"'))

    def svg(self, left: float, right: float, top: float, bottom: float, *, with_x_labels: bool) -> str:
        """Return the panel's elements, with the axes at these edges."""

        def across(values: ArrayLike) -> Floats:
            return left + self.x.fractions(values) * (right - left)

        def down(values: ArrayLike) -> Floats:
            return bottom - self.y.fractions(values) * (bottom - top)

        parts = []
        for value, text in self.x.labeled():
            x = float(across(value))
            parts.append(_rule(x, x, top, bottom))
            parts.append(_text(x, bottom + GAP + 0.8 * FONT, text if with_x_labels else "", "middle"))
        for value, text in self.y.labeled():
            y = float(down(value))
            parts += [_rule(left, right, y, y), _text(left - GAP, y + 0.35 * FONT, text, "end")]
        parts += [_rule(left, right, bottom, bottom, MUTED), _rule(left, left, top, bottom, MUTED)]
        for xs, ys, drawn, style in self._marks:
            parts.append(f"<g {style}>{drawn(np.stack([across(xs), down(ys)], axis=1).tolist())}</g>")
        return "".join(parts)


def draw(panels: Sequence[Panel], size: tuple[float, float], description: str, title: str = "") -> str:
    """Return an <svg> element as wide as its container, up to a limit, and the table of its values.

    Args:
        panels: The panels, one below the other. Only the lowest one's x axis has labels.
        size: Width and height, in units of the font size of `FONT`, at most `SCALE` pixels each.
        description: What the plot shows, for screen readers.
        title: Its title, left of the legend, if it has one.
    """
    width, height = size
    for panel in panels:
        panel.list_lines()
    longest = max((len(text) for panel in panels for _, text in panel.y.labeled()), default=0)
    left = longest * DIGIT + GAP + (LINE_HEIGHT + 2 if any(panel.y.label for panel in panels) else 2)
    legend = [entry for panel in panels for entry in panel.legend]
    right, top = width - 12, 2 * LINE_HEIGHT if title or legend else 0.5 * FONT
    bottom = height - 2 * LINE_HEIGHT - 4
    unit = (bottom - top - GAP * (len(panels) - 1)) / sum(panel.height for panel in panels)
    parts = []
    parts.append(_text(left, TITLE_FONT, title, "start", f' fill="{INK}" font-size="{TITLE_FONT}"'))
    end = right
    for name, color in reversed(legend):
        parts.append(_text(end, TITLE_FONT, name, "end"))
        end -= len(name) * 0.58 * FONT + 1.5 * GAP
        parts.append(f'<path d="M{end:.1f},{0.65 * TITLE_FONT:.1f}h-14" stroke="{color}" stroke-width="1.6"/>')
        end -= 14 + 2 * GAP
    for panel in panels:
        end = top + unit * panel.height
        parts.append(panel.svg(left, right, top, end, with_x_labels=panel is panels[-1]))
        middle = (top + end) / 2
        turned = f' transform="rotate(-90 {FONT:.1f} {middle:.1f})"'
        parts.append(_text(FONT, middle, panel.y.label, "middle", turned))
        top = end + GAP
    parts.append(_text((left + right) / 2, height - 0.4 * FONT, panels[-1].x.label, "middle"))
    box = (
        f'viewBox="0 0 {width:g} {height:g}" font-size="{FONT}" fill="{MUTED}" style="max-width: {SCALE * width:.0f}px"'
    )
    drawn = f'<svg class="chart" {box} role="img" aria-label="{escape(description)}">{"".join(parts)}</svg>'
    return drawn + _table(panels, description)


def _table(panels: Sequence[Panel], description: str) -> str:
    """Return the values of the panels' marks as a table to unfold, "" if they list none."""
    rows = "".join(
        f'<tr><th scope="row" class="break">{escape(name)}</th><td>{x}</td><td>{y}</td></tr>'
        for panel in panels
        for name, texts in panel.listed
        for x, y in texts
    )
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{heading}</th>' for heading in ("Series", escape(panels[-1].x.label), "Value"))
    return (
        '<details class="values"><summary>Values</summary><div class="box"><table>'
        f"<caption>{escape(description)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _rule(left: float, right: float, top: float, bottom: float, color: str = LINE) -> str:
    return f'<path d="M{left:.1f},{top:.1f}L{right:.1f},{bottom:.1f}" stroke="{color}" stroke-width=".8"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    """Return a text at a baseline, in the plot's color and size unless `style` says otherwise; "" if it is empty."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>' if text else ""
