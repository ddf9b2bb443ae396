"""The learning rate of each step, the same for every engine: a warm-up, then a schedule that decays to a final value.

With W of T steps as warm-up, peak p and final rate f, the rate of step k (from 0) is p (k + 1) / (W + 1) while k < W.
After that, with x = (k - W) / (T - W):

- linear: p + (f - p) x
- cosine: f + (p - f) (1 + cos πx) / 2
- exponential: p (f / p)^x
- piecewise: p multiplied by `factor` once for each milestone reached by k, but at least f

The first three would reach f right after the last step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway.trainer.config import Plan, TrainSettings

# Default factor of a piecewise schedule at each milestone.
FACTOR = 0.1


def rates(train: TrainSettings, plan: Plan, step: int, count: int) -> NDArray[np.float32]:
    """Return the learning rates of `count` steps starting at `step` (from 0), float32 [count]."""
    steps = np.arange(step, step + count, dtype=np.float64)
    warmup = warmup_steps(train, plan)
    rising = train.learning_rate * (steps + 1) / (warmup + 1)
    return np.where(steps < warmup, rising, _after_warmup(train, plan, steps, warmup)).astype(np.float32)


def warmup_steps(train: TrainSettings, plan: Plan) -> int:
    """Return the number of warm-up steps, which may exceed the length of the run."""
    warmup = train.schedule.warmup
    return 0 if warmup is None else warmup.in_steps(train.batch_size, plan.steps_per_epoch)


def _after_warmup(train: TrainSettings, plan: Plan, steps: NDArray[np.float64], warmup: int) -> NDArray[np.float64]:
    peak, schedule = train.learning_rate, train.schedule
    final = schedule.final or 0.0
    over = np.clip((steps - warmup) / max(1, plan.steps - warmup), 0.0, 1.0)
    match schedule.shape:
        case "constant":
            return np.full_like(steps, peak)
        case "linear":
            return peak + (final - peak) * over
        case "cosine":
            return final + (peak - final) * (1 + np.cos(np.pi * over)) / 2
        case "exponential":
            return peak * (final / peak) ** over
        case "piecewise":
            ends = [each.in_steps(train.batch_size, plan.steps_per_epoch) for each in schedule.milestones]
            reached = np.searchsorted(np.sort(ends), steps, side="right")
            return np.maximum(peak * (schedule.factor or FACTOR) ** reached, final)
