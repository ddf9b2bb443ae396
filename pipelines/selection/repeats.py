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

    summaries = {}
    names = [name for name in metrics[0] if all(name in run_metrics for run_metrics in metrics) and name != "examples"]
    for name in names:
        values = [run_metrics[name] for run_metrics in metrics]
        mean = statistics.fmean(values)
        half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / math.sqrt(len(values))
        summaries[name] = OverRuns(mean, mean - half, mean + half, min(values), max(values))
    return summaries


def as_text(metrics: Mapping[str, OverRuns], of: str) -> str:
    """Return a line for each metric below a heading; `of` says what differs between the runs."""
    lines = [f"metrics over {of}: mean, 95% confidence interval of the mean, lowest and highest"]
    for name, summary in metrics.items():
        interval = f"{summary.low:.4f} – {summary.high:.4f}"
        lines.append(f"  {name:<28} {summary.mean:.4f}  {interval}  {summary.lowest:.4f} … {summary.highest:.4f}")
    return "\n".join(lines)
