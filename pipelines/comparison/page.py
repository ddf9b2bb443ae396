"""The page that compares runs: metrics with intervals, settings that differ, learning curves, data, code and time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slipway.components import page
from slipway.components.evaluate.charts import History, read_history
from slipway.components.evaluate.plot import LINE, Axis, Panel, draw
from slipway.core.atomic import replace_file
from slipway.core.values import JsonObject
from slipway.pipelines.options import check_folder_of
from slipway.pipelines.selection.selection import Row, differences

TEMPLATE = Path(__file__).with_name("comparison.html")
# More learning curves, or coordinates of more runs, could not be told apart.
MAX_CURVES = 20
MAX_PARALLEL = 200
# A browser lays out the rows of more runs only when they are unfolded.
UNFOLDED = 100
MAX_METRICS = 12
MAX_SETTINGS = 12
MAX_VALUE = 60
CURVE_SIZE, PARALLEL_SIZE = (331, 198), (680, 220)
# Metrics of the training about its speed, and those of its epochs, which the validations show.
_NOT_SHOWN = ("per_second", "waiting", "mfu", "learning_rate", "epoch_")


@dataclass(frozen=True)
class Line:
    """A run as the page shows it: its number, its color if it has learning curves, and its run."""

    number: int
    color: str
    row: Row


def render(rows: Sequence[Row]) -> str:
    """Return the page that compares runs as HTML."""
    lines = [Line(number, _color(number), row) for number, row in enumerate(rows, 1)]
    names = differences([row.settings for row in rows])
    metrics = _metrics(rows)
    shown = lines[:MAX_CURVES]
    return page.render(
        TEMPLATE,
        lines=lines,
        metrics=metrics,
        best={name: _best(rows, name) for name in metrics},
        settings=[name for name in names if name not in ("name", "hardware")][:MAX_SETTINGS],
        more_settings=max(0, len(names) - MAX_SETTINGS),
        text=_text,
        curves=list(_curves(shown)),
        curved=len(shown),
        unfolded=UNFOLDED,
        parallel=_parallel(lines[:MAX_PARALLEL], names, next(iter(metrics), None)),
        created=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
    )


def write(rows: Sequence[Row], path: Path | None = None) -> Path:
    """Write the page that compares runs, by default beside them as comparison.html; return its path.

    Raises:
        UserError: The folder does not exist.
    """
    if path is not None:
        check_folder_of(path)
    path = path or rows[0].folder.path.parent / "comparison.html"
    replace_file(path, render(rows).encode())
    return path


def _color(number: int) -> str:
    """Return the color of a run's curves, which differs from its neighbors' and is readable in both color schemes."""
    return f"oklch(.64 .16 {(number * 137.5) % 360:.0f})"


def _metrics(rows: Sequence[Row]) -> list[str]:
    """Return the metrics that runs have, the gate's first."""
    gates = [row.metric for row in rows if row.metric]
    names = dict.fromkeys(gates) | dict.fromkeys(name for row in rows for name in row.record.metrics)
    names.pop("examples", None)
    return list(names)[:MAX_METRICS]


def _best(rows: Sequence[Row], name: str) -> float | None:
    """Return the best value of a metric whose direction is known; None if no two runs differ in it."""
    from slipway.components.evaluate.settings import known

    metric, values = known(name), {row.record.metrics[name] for row in rows if name in row.record.metrics}
    if metric is None or len(values) < 2:
        return None
    return min(values) if metric.direction == "minimize" else max(values)


def _text(value: object) -> str:
    text = "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def _curves(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a plot for each metric of the validations, or of the training if nothing was validated."""
    histories = [(line, read_history(line.row.history_file)) for line in lines]
    names = dict.fromkeys(name for _, history in histories for name in history.names())
    for name in names:
        if not any(word in name for word in _NOT_SHOWN) and (plot := _curve(histories, name)):
            yield plot


def _curve(histories: Sequence[tuple[Line, History]], name: str) -> str | None:
    kind = "validation" if any(len(history.series("validation", name)[0]) for _, history in histories) else "train"
    series = [(line, *history.series(kind, name)) for line, history in histories]
    series = [(line, steps, values) for line, steps, values in series if len(steps)]
    if not series:
        return None
    every = np.concatenate([values for _, _, values in series])
    logarithmic = name == "loss" and every.min() > 0 and math.log10(every.max() / every.min()) > 1
    steps = [series_steps for _, series_steps, _ in series]
    panel = Panel(
        Axis.around(*steps, margin=0.02, label="step", whole=True), Axis.around(every, logarithmic=logarithmic)
    )
    for line, line_steps, values in reversed(series):  # the first above the others
        panel.line(line_steps, values, line.color, 1.4, dots=len(line_steps) == 1)
    title = f"{name.replace('_', ' ')} in {'validation' if kind == 'validation' else 'training'}"
    return draw([panel], CURVE_SIZE, f"{title} by step, a line per run", title)


def _parallel(lines: Sequence[Line], settings: Sequence[str], metric: str | None) -> JsonObject | None:
    """Return the plot of parallel coordinates, settings on the left and the metric on the right, and its labels.

    None unless at least three runs differ in numbers.
    """
    if metric is None:
        return None
    having = [line for line in lines if metric in line.row.record.metrics]
    names = [name for name in settings if _is_numeric(having, name)][: MAX_SETTINGS // 2]
    if len(having) < 3 or not names:
        return None
    columns = [_fractions([line.row.settings[name] for line in having]) for name in names]
    last = _fractions([line.row.record.metrics[metric] for line in having])
    panel = Panel(Axis(0, len(names), ticks=0), Axis(-0.05, 1.05, ticks=0))
    positions = np.arange(len(names) + 1)
    for position in positions:
        panel.line([position, position], [-0.05, 1.05], LINE, 0.8)
    for index in np.argsort(last[0]):
        heights = [*(column[0][index] for column in columns), last[0][index]]
        share = float(last[0][index])
        color = f"color-mix(in oklch, var(--second), var(--accent) {100 * share:.0f}%)"
        panel.line(positions, heights, color, 1.2, opacity=0.35 + 0.6 * share)
    axes = [(name, low, high) for name, (_, low, high) in zip([*names, metric], [*columns, last], strict=True)]
    return {"plot": draw([panel], PARALLEL_SIZE, "settings and metric of each run"), "axes": axes}


def _is_numeric(lines: Sequence[Line], name: str) -> bool:
    values = [line.row.settings.get(name) for line in lines]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numeric and len(set(map(repr, values))) > 1


def _fractions(values: Sequence[float]) -> tuple[list[float], str, str]:
    """Return where values lie between the lowest and the highest, by their logarithm if they span decades; and both."""
    numbers = np.asarray(values, np.float64)
    low, high = float(numbers.min()), float(numbers.max())
    scaled = np.log10(numbers) if low > 0 and high / low > 20 else numbers
    span = float(scaled.max() - scaled.min()) or 1.0
    return [float(fraction) for fraction in (scaled - scaled.min()) / span], f"{low:.3g}", f"{high:.3g}"
