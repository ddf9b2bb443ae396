"""The chart of prices and times: where its marks, ticks, lines and labels are.

Positions across are in percent of the plot's width and positions down in pixels, so that the page's width stretches the
chart but not its marks and texts. Labels and ticks are chosen for the least width of two kinds of pages, `WIDTHS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slipway.core.formatting import brief
from slipway.core.values import JsonObject

HEIGHT = 340  # pixels, as all lengths below
WIDTHS = {"wide": 500, "narrow": 210}
TICK_WIDTH, TICK_HEIGHT = 52, 26
LETTER, LABEL_HEIGHT, LABEL_GAP, MARK = 7.7, 15, 4, 6
Box = tuple[float, float, float, float]
# Lines of a deadline or a budget farther from the marks than this factor would squeeze them.
FAR = 10.0
# Values for ticks, those to prefer first.
PRICES = [factor * 10.0**power for factor in (1, 5, 2) for power in range(-6, 9)]
TIMES = [
    *(unit * factor for factor in (1, 10, 30, 5, 20, 2) for unit in (1, 60)),
    *(3600.0 * factor * 10**power for factor in (1, 5, 2) for power in range(5)),
    *(factor * 10.0**power for factor in (1, 5, 2) for power in range(-6, 0)),
]


@dataclass(frozen=True)
class Shape:
    """How a kind of hardware is drawn: a path around 0,0, in a color, hollow for TPUs."""

    kind: str
    name: str
    path: str
    color: str
    is_hollow: bool


@dataclass(frozen=True)
class Tick:
    """A tick at a position, and whether narrow pages have room for it."""

    at: float
    value: float
    is_narrow: bool = True


@dataclass(frozen=True)
class Mark:
    """A choice in the chart, with the ends of its ranges: of the price in percent, of the time in pixels."""

    choice: JsonObject
    shape: Shape
    x: float
    y: float
    left: float
    right: float
    top: float
    bottom: float

    @property
    def label(self) -> str:
        """The choice without its machine type and options."""
        return re.sub(r"@[^*+]*|\+.*", "", str(self.choice["hardware"]))


@dataclass(frozen=True)
class Label:
    """The label of a mark: its upper edge, and its `anchor`, `offset` pixels from `x`."""

    mark: Mark
    top: int
    x: float
    offset: int
    anchor: str

    @property
    def is_apart(self) -> bool:
        """Whether a line connects it with its mark."""
        return self.top > self.mark.y + LABEL_HEIGHT


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale between two values that are ticks, if there are such."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], ticks: Sequence[float]) -> Scale:
        """Return the scale between the ticks around all values."""
        ordered = sorted(values)
        low, high = ordered[0] / 1.15, ordered[-1] * 1.15
        return cls(
            max((tick for tick in ticks if tick <= low), default=low),
            min((tick for tick in ticks if tick >= high), default=high),
        )

    def fraction(self, value: float) -> float:
        """Return where a value lies between both ends, 0 to 1; those beyond the ends are at the ends."""
        inside = min(max(value, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)

    def ticks(self, values: Sequence[float], room: float) -> list[float]:
        """Return the values that are at least `room`, a fraction of the scale, apart; earlier ones are preferred."""
        kept: list[float] = []
        for value in values:
            if self.low <= value <= self.high and all(
                abs(self.fraction(value) - self.fraction(other)) >= room for other in kept
            ):
                kept.append(value)
        return sorted(kept)


@dataclass(frozen=True)
class Chart:
    """All that is drawn; `deadline` is in pixels and `budget` in percent, None if they are not in the chart."""

    shapes: Sequence[Shape]
    marks: Sequence[Mark]
    front: Sequence[Mark]
    labels: dict[str, list[Label]]
    prices: Sequence[Tick]
    times: Sequence[Tick]
    deadline: float | None
    budget: float | None


def kind_of(hardware: str) -> str:
    """Return the kind of accelerator of a choice: "l4", "tpu-v5e", "cpu"."""
    base = re.split(r"[@*+]", hardware)[0]
    return base.rpartition("-" if base.startswith("tpu") else "x")[0] or base


def draw(choices: Sequence[JsonObject], deadline: float | None, budget: float | None) -> Chart | None:
    """Return the chart of the choices that fit and have a price; None if there are none."""
    shown = [choice for choice in choices if choice["fits"] and choice["cost"] and choice["cost"]["low"] > 0]
    if not shown:
        return None
    prices = _scale(shown, "cost", budget, PRICES)
    times = _scale(shown, "seconds", deadline, TIMES)
    shapes = {shape.kind: shape for shape in _shapes({kind_of(choice["hardware"]) for choice in shown})}

    def across(value: float) -> float:
        return 100 * prices.fraction(value)

    def down(value: float) -> float:
        return HEIGHT * (1 - times.fraction(value))

    marks = []
    for choice in shown:
        cost, seconds = choice["cost"], choice["seconds"]
        x, left, right = (across(cost[name]) for name in ("middle", "low", "high"))
        y, bottom, top = (down(seconds[name]) for name in ("middle", "low", "high"))
        marks.append(Mark(choice, shapes[kind_of(choice["hardware"])], x, y, left, right, top, bottom))
    front = [mark for mark in marks if mark.choice["on_front"]]
    wide, narrow = (prices.ticks(PRICES, TICK_WIDTH / WIDTHS[name]) for name in ("wide", "narrow"))
    return Chart(
        shapes=list(shapes.values()),
        marks=marks,
        front=front,
        labels={name: _labels(marks, front, width) for name, width in WIDTHS.items()},
        prices=[Tick(across(value), value, value in narrow) for value in sorted({*wide, *narrow})],
        times=[Tick(down(value), value) for value in times.ticks(TIMES, TICK_HEIGHT / HEIGHT)],
        deadline=down(deadline) if deadline and times.low <= deadline <= times.high else None,
        budget=across(budget) if budget and prices.low <= budget <= prices.high else None,
    )


def _scale(choices: Sequence[JsonObject], name: str, limit: float | None, ticks: Sequence[float]) -> Scale:
    values = [choice[name]["middle"] for choice in choices]
    values += [choice[name][end] for choice in choices if choice["on_front"] for end in ("low", "high")]
    if limit and min(values) / FAR <= limit <= max(values) * FAR:
        values.append(limit)
    return Scale.around(values, ticks)


def price_tick(value: float) -> str:
    """Return the text of a tick of the prices."""
    return f"${brief(value)}"


def _shapes(kinds: Iterable[str]) -> list[Shape]:
    """Return a shape and a color for each kind: GPUs, TPUs, CPUs."""
    ordered = sorted(kinds, key=lambda kind: (kind == "cpu", kind.startswith("tpu"), kind))
    tpus = [kind for kind in ordered if kind.startswith("tpu")]
    drawn = []
    for number, kind in enumerate(ordered):
        index = tpus.index(kind) if kind in tpus else number
        name, path = SHAPES[index % len(SHAPES)]
        drawn.append(Shape(kind, name, path, f"oklch(.62 .17 {(number * 137.5 + 30) % 360:.0f})", kind in tpus))
    return drawn


def _star(corners: int, inner: float = 1.0, turn: float = 0.0, size: float = MARK) -> str:
    """Return the path of a polygon with a corner at the top, turned clockwise; with `inner` below 1, of a star."""
    points = []
    for index in range(2 * corners):
        radius = size * (1.0 if index % 2 == 0 else inner * math.cos(math.pi / corners))
        angle = math.pi * (index / corners + turn / 180)
        points.append(f"{radius * math.sin(angle):.1f},{-radius * math.cos(angle):.1f}")
    return f"M{'L'.join(points)}z"


SHAPES = (
    ("circle", "M-5,0a5,5 0 1 1 10,0a5,5 0 1 1 -10,0z"),
    ("square", _star(4, turn=45)),
    ("triangle", _star(3, size=6.5)),
    ("diamond", _star(4, size=6.5)),
    ("five-pointed star", _star(5, 0.5, size=7)),
    ("triangle pointing down", _star(3, turn=180, size=6.5)),
    ("cross", _star(4, 0.5, turn=45, size=8)),
    ("hexagon", _star(6)),
    ("triangle pointing right", _star(3, turn=90, size=6.5)),
    ("four-pointed star", _star(4, 0.5, size=7.5)),
    ("pentagon", _star(5, turn=180)),
    ("triangle pointing left", _star(3, turn=270, size=6.5)),
    ("three-pointed star", _star(3, 0.7, size=8)),
    ("six-pointed star", _star(6, 0.6, size=7)),
)


def _labels(marks: Sequence[Mark], front: Sequence[Mark], width: float) -> list[Label]:
    """Return the labels of the front for which there is room below their marks, on the left or else on the right.

    Below and left of a mark of the front is no other mark, as nothing is both cheaper and faster.
    """
    taken = []
    for mark in marks:
        x = mark.x * width / 100
        taken.append((x - MARK, mark.y - MARK, x + MARK, mark.y + MARK))
    labels = []
    for mark in front:
        for label, box in _candidates(mark, width):
            if not any(_overlap(box, other) for other in taken):
                x = mark.x * width / 100
                taken += [box, (x - 1, mark.y, x + 1, label.top)]
                labels.append(label)
                break
    return labels


def _candidates(mark: Mark, width: float) -> Iterator[tuple[Label, Box]]:
    """Yield labels of a mark and the space that they take, those to prefer first."""
    x, length = mark.x * width / 100, LETTER * len(mark.label)
    tops = range(math.ceil(mark.y) + 3, HEIGHT - LABEL_HEIGHT, 3)
    end, start = x - LABEL_GAP, x + LABEL_GAP
    for top in tops:
        if end >= length:
            yield Label(mark, top, mark.x, -LABEL_GAP, "end"), (end - length, top, end, top + LABEL_HEIGHT)
        else:
            yield Label(mark, top, 0, LABEL_GAP, "start"), (0, top, LABEL_GAP + length, top + LABEL_HEIGHT)
    for top in tops if start + length <= width else ():
        yield Label(mark, top, mark.x, LABEL_GAP, "start"), (start, top, start + length, top + LABEL_HEIGHT)


def _overlap(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
