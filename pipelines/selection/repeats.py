"""The metrics of a training that was repeated with other seeds or splits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class OverRuns:
    """A metric over several runs: its mean with the confidence interval (Student's t), and its range."""

    mean: float
    low: float
    high: float
    lowest: float
    highest: float


def over_runs(metrics: Sequence[Mapping[str, float]]) -> dict[str, OverRuns]:
    """Return the metrics that all of at least two trainings have, without the number of test examples."""
    from scipy.special import stdtrit

    found = {}
    names = [name for name in metrics[0] if all(name in each for each in metrics) and name != "examples"]
    for name in names:
        values = [each[name] for each in metrics]
        mean = statistics.fmean(values)
        half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / math.sqrt(len(values))
        found[name] = OverRuns(mean, mean - half, mean + half, min(values), max(values))
    return found


def as_text(found: Mapping[str, OverRuns], of: str) -> str:
    """Return a line for each metric below a heading; `of` says what differs between the runs."""
    lines = [f"metrics over {of}: mean, 95% confidence interval of the mean, lowest and highest"]
    for name, each in found.items():
        interval = f"{each.low:.4f} – {each.high:.4f}"
        lines.append(f"  {name:<28} {each.mean:.4f}  {interval}  {each.lowest:.4f} … {each.highest:.4f}")
    return "\n".join(lines)
