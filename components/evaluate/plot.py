"""Plots as inline SVG elements in the colours and the font of the page: lines, bars and dots above a grid.

Drawn here and not by matplotlib, whose import and layout took longer than the evaluation of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from slipway.components.evaluate.measures.significance import Floats

INK, MUTED, LINE, ACCENT, SECOND = (f"var(--{name})" for name in ("ink", "muted", "line", "accent", "second"))
# Lengths are in units of the viewBox.
FONT, TITLE_FONT = 9.5, 10.5
DIGIT = 0.56 * FONT  # the usual width of a digit
GAP = 5.0  # between labels and what they belong to
LINE_HEIGHT = 1.5 * FONT
# Distances between ticks, times a power of ten.
_STEPS, _WHOLE_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0), (1.0, 2.0, 5.0, 10.0)
_MOST_DECADES = 6  # with a label each

# Function from x and y values to their positions in the plot, [n, 2].
Positions = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, with about `ticks` labelled ticks, whole numbers if `whole`."""

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
        everything = np.concatenate([np.asarray(each, np.float64) for each in values])
        axis = cls(float(everything.min()), float(everything.max()), **options)  # type: ignore[arg-type]
        low, high = axis._scaled(np.array([axis.low, axis.high])).tolist()
        space = margin * (high - low) or 0.05 * abs(high) or 0.05
        low, high = low - space, high + space
        ends = (10**low, 10**high) if axis.logarithmic else (0.0 if zero else low, high)
        return cls(*ends, **options)  # type: ignore[arg-type]

    def fractions(self, values: Floats) -> Floats:
        """Return where values lie between both ends, 0 to 1."""
        low, high = self._scaled(np.array([self.low, self.high]))
        return (self._scaled(values) - low) / (high - low)

    def labelled(self) -> list[tuple[float, str]]:
        """Return the ticks and their labels."""
        if self.ticks == 0:
            return []
        if self.logarithmic:
            return [(value, f"{value:g}") for value in self._powers()]
        step = self._step()
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        if max(map(abs, values), default=0) >= 1e7 or step < 1e-5:
            return [(value, f"{value:g}") for value in values]
        digits = next(digits for digits in range(8) if abs(round(step, digits) - step) < 1e-9 * step)
        return [(value, f"{value + 0.0:,.{digits}f}") for value in values]

    def _scaled(self, values: Floats) -> Floats:
        return np.log10(values) if self.logarithmic else np.asarray(values, np.float64)

    def _step(self) -> float:
        least = (self.high - self.low) / self.ticks
        least = max(1.0, least) if self.whole else least
        power = 10.0 ** math.floor(math.log10(least))
        steps = _WHOLE_STEPS if self.whole else _STEPS
        return next(step * power for step in steps if step * power >= least * (1 - 1e-9))

    def _powers(self) -> list[float]:
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if high - low <= 2 else (1,)
        found = [
            factor * 10.0**power
            for power in range(low, high + 1, 1 + (high - low) // _MOST_DECADES)
            for factor in factors
        ]
        return [value for value in found if self.low <= value <= self.high]


class Panel:
    """Marks above the grid of two axes, drawn in the order of the calls; `height` is its share of the plot's."""

    def __init__(self, x: Axis, y: Axis, height: float = 1.0) -> None:
        self.x, self.y, self.height = x, y, height
        self._marks: list[Callable[[Positions], str]] = []
        self.legend: list[tuple[str, str]] = []

    def line(
        self,
        x: Sequence[float] | Floats,
        y: Sequence[float] | Floats,
        colour: str,
        width: float = 1.2,
        *,
        opacity: float = 1.0,
        dashed: bool = False,
        dots: bool = False,
        name: str = "",
    ) -> None:
        """Draw a line through points, with `dots` on them; a `name` appears in the legend."""
        dash = ' stroke-dasharray="4 4"' if dashed else ""

        def mark(at: Positions) -> str:
            points = _points(at, x, y)
            path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
            style = f'fill="none" stroke="{colour}" stroke-width="{width:g}" opacity="{opacity:g}"{dash}'
            return f'<polyline points="{path}" {style}/>'

        self._marks.append(mark)
        if dots:
            self.dots(x, y, colour, 1.75)
        if name:
            self.legend.append((name, colour))

    def dots(
        self, x: Sequence[float] | Floats, y: Sequence[float] | Floats, colour: str, radius: float, opacity: float = 1.0
    ) -> None:
        """Draw a dot at each point."""

        def mark(at: Positions) -> str:
            found = (f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{radius:g}"/>' for left, top in _points(at, x, y))
            return f'<g fill="{colour}" fill-opacity="{opacity:g}">{"".join(found)}</g>'

        self._marks.append(mark)

    def bars(self, left: Floats, right: Floats, heights: Floats, colour: str, opacity: float) -> None:
        """Draw bars from 0, each between two x values."""

        def mark(at: Positions) -> str:
            corners = zip(_points(at, left, heights), _points(at, right, np.zeros(len(right))), strict=True)
            found = (
                f'<rect x="{start:.1f}" y="{top:.1f}" width="{end - start:.1f}" height="{base - top:.1f}"/>'
                for (start, top), (end, base) in corners
            )
            return f'<g fill="{colour}" fill-opacity="{opacity:g}">{"".join(found)}</g>'

        self._marks.append(mark)

    def svg(self, left: float, right: float, top: float, bottom: float, *, with_x_labels: bool) -> str:
        """Return the panel's elements, with the axes at these edges."""

        def at(x: Floats, y: Floats) -> Floats:
            across, up = self.x.fractions(x), self.y.fractions(y)
            return np.stack([left + across * (right - left), bottom - up * (bottom - top)], axis=1)

        parts = []
        for value, text in self.x.labelled():
            ((x, _),) = _points(at, [value], [self.y.low])
            parts.append(_rule(x, x, top, bottom))
            parts.append(_text(x, bottom + GAP + 0.8 * FONT, text if with_x_labels else "", "middle"))
        for value, text in self.y.labelled():
            ((_, y),) = _points(at, [self.x.low], [value])
            parts += [_rule(left, right, y, y), _text(left - GAP, y + 0.35 * FONT, text, "end")]
        parts += [_rule(left, right, bottom, bottom, MUTED), _rule(left, left, top, bottom, MUTED)]
        return "".join([*parts, *(mark(at) for mark in self._marks)])


def draw(panels: Sequence[Panel], size: tuple[float, float], description: str, title: str = "") -> str:
    """Return an <svg> element as wide as its container.

    Args:
        panels: The panels, one below the other. Only the lowest one's x axis has labels.
        size: Width and height, in units of the font size of `FONT`.
        description: What the plot shows, for screen readers.
        title: Its title, left of the legend; "" for neither.
    """
    width, height = size
    longest = max((len(text) for panel in panels for _, text in panel.y.labelled()), default=0)
    left = longest * DIGIT + GAP + (LINE_HEIGHT + 2 if any(panel.y.label for panel in panels) else 2)
    right, top = width - 12, 2 * LINE_HEIGHT if title else 0.5 * FONT
    bottom = height - 2 * LINE_HEIGHT - 4
    unit = (bottom - top - GAP * (len(panels) - 1)) / sum(panel.height for panel in panels)
    parts = [_heading(panels, title, left, right)] if title else []
    for panel in panels:
        end = top + unit * panel.height
        parts.append(panel.svg(left, right, top, end, with_x_labels=panel is panels[-1]))
        middle = (top + end) / 2
        parts.append(_text(FONT, middle, panel.y.label, "middle", turned=True))
        top = end + GAP
    parts.append(_text((left + right) / 2, height - 0.4 * FONT, panels[-1].x.label, "middle"))
    box = f'viewBox="0 0 {width:g} {height:g}" font-size="{FONT}"'
    return f'<svg class="chart" {box} role="img" aria-label="{escape(description)}">{"".join(parts)}</svg>'


def _heading(panels: Sequence[Panel], title: str, left: float, right: float) -> str:
    """Return the title at the left and the legend at the right."""
    parts = [_text(left, TITLE_FONT, title, "start", INK, TITLE_FONT)]
    for name, colour in reversed([entry for panel in panels for entry in panel.legend]):
        parts.append(_text(right, TITLE_FONT, name, "end"))
        right -= len(name) * 0.5 * FONT + GAP
        parts.append(f'<path d="M{right:.1f},{0.65 * TITLE_FONT:.1f}h-14" stroke="{colour}" stroke-width="1.6"/>')
        right -= 14 + 2 * GAP
    return "".join(parts)


def _points(at: Positions, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> list[list[float]]:
    found: list[list[float]] = at(np.asarray(x, np.float64), np.asarray(y, np.float64)).tolist()
    return found


def _rule(left: float, right: float, top: float, bottom: float, colour: str = LINE) -> str:
    return f'<path d="M{left:.1f},{top:.1f}L{right:.1f},{bottom:.1f}" stroke="{colour}" stroke-width=".8"/>'


def _text(
    x: float, y: float, text: str, anchor: str, colour: str = MUTED, size: float = FONT, *, turned: bool = False
) -> str:
    """Return a text at a baseline; "" if it is empty."""
    if not text:
        return ""
    more = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    more += f' font-size="{size}"' if size != FONT else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(text)}</text>'
