"""The page of a comparison for drift: each feature's distance, and its distribution in both samples."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slipway.components import page
from slipway.components.check_drift.drift import DEVIATIONS, Shift
from slipway.components.check_drift.features import Sample, Values
from slipway.components.evaluate.plot import Axis, Panel, draw

TEMPLATE = Path(__file__).with_name("drift.html")
MAX_PLOTS = 24
BINS = 24
SIZE = (331, 198)


def render(model: str, shifts: Sequence[Shift], before: Sample, now: Sample, *, false_alarms: float) -> str:
    """Return the page as HTML; for the arguments, see `slipway.components.check_drift.drift.compare`."""
    drifted = sum(shift.has_drifted for shift in shifts)
    numeric = [shift.feature for shift in shifts if before.features[shift.feature].dtype.kind != "U"]
    return page.render(
        TEMPLATE,
        model=model,
        headline=f"{drifted} of {len(shifts)} features drifted" if drifted else "No drift",
        shifts=shifts,
        before=before,
        now=now,
        false_alarms=false_alarms,
        distance=_distance,
        plots=[_plot(name, before.features[name], now.features[name]) for name in numeric[:MAX_PLOTS]],
        created=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
    )


def _distance(shift: Shift, value: float) -> str:
    return f"{value:.3f}" if shift.measure == DEVIATIONS else f"{value:.1%}"


def _plot(name: str, before: Values, now: Values) -> str:
    """Plot which share of both samples has which values; missing ones are not drawn, but count."""
    known = [values[np.isfinite(values)] for values in (before, now)]
    edges = np.histogram_bin_edges(np.concatenate(known) if any(map(len, known)) else np.zeros(1), BINS)
    shares = [np.histogram(values, edges)[0] / len(sample) for values, sample in zip(known, (before, now), strict=True)]
    panel = Panel(Axis.around(edges, label="value of the feature"), Axis.around(*shares, zero=True, label="share"))
    for kind, heights, color, opacity in zip(
        ("before", "now"), shares, ("var(--muted)", "var(--accent)"), (0.5, 0.6), strict=True
    ):
        panel.bars(edges[:-1], edges[1:], heights, color, opacity, name=kind)
    return draw([panel], SIZE, f"share of the examples by {name}, before and now", name)
