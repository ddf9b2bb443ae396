"""What a run reports of its steps: records of the history at log points, and its progress."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipway.core import events
from slipway.trainer.checkpoint.resume import Interval, Progress
from slipway.trainer.config import JobConfig
from slipway.trainer.engines.base import StepMetrics, Work
from slipway.trainer.metrics.history import Metrics
from slipway.trainer.metrics.speed import Speed
from slipway.trainer.plan import ends_epoch

PROGRESS_SECONDS = 0.5
LOG_POINTS_PER_EPOCH = 10
MAX_STEPS_BETWEEN_LOG_POINTS = 100


@dataclass(kw_only=True)
class StepReport:
    """Counts steps, and reports them on the chief.

    Attributes:
        job: The job.
        metric: Name of the task's metric.
        metrics: The history; None on all replicas but the chief.
        progress: The completed steps.
        speed: The speed since the epoch began.
    """

    job: JobConfig
    metric: str
    metrics: Metrics | None
    progress: Progress
    speed: Speed = field(default_factory=Speed)

    def __post_init__(self) -> None:
        self._shown_at = -math.inf

    def add(self, metrics: StepMetrics, rates: NDArray[np.float32], work: Work) -> None:
        """Count a call's steps, and write records at the log points among them."""
        plan, progress = self.job.plan, self.progress
        every = max(1, min(plan.steps_per_epoch // LOG_POINTS_PER_EPOCH, MAX_STEPS_BETWEEN_LOG_POINTS))
        speed = self.speed.metrics(self.job.train.batch_size, work) if self.metrics else {}
        steps = zip(metrics.losses.tolist(), metrics.values.tolist(), rates.tolist(), strict=True)
        for loss, metric, learning_rate in steps:
            progress.step += 1
            progress.interval.add(loss, metric)
            progress.epoch.add(loss, metric)
            is_last = ends_epoch(plan, progress.step)
            if progress.step % every and not is_last:
                continue
            if self.metrics:
                values = {**progress.interval.means(self.metric), "learning_rate": learning_rate, **speed}
                if is_last:
                    values |= {f"epoch_{name}": mean for name, mean in progress.epoch.means(self.metric).items()}
                self.metrics.write("train", progress.step, progress.step / plan.steps_per_epoch, **values)
            progress.interval = Interval()
            if progress.step % plan.steps_per_epoch == 0:  # not at the last step: a longer run may resume from it
                progress.epoch = Interval()

    def show(self, metrics: StepMetrics) -> None:
        """Show the progress after a call, at most every PROGRESS_SECONDS."""
        now, step, steps = time.monotonic(), self.progress.step, self.job.plan.steps
        if not self.metrics or not (step == steps or now - self._shown_at >= PROGRESS_SECONDS):
            return
        self._shown_at = now
        values = {"loss": float(metrics.losses.mean()), self.metric: float(metrics.values.mean())}
        rate = self.speed.steps_per_second
        if rate is not None:
            values["steps_per_second"] = rate
        events.progress(step, steps, "steps", **values)

    def show_phase(self, phase: str) -> None:
        """Show another phase than the steps, until the next call of `show`."""
        events.phase(phase)
        self._shown_at = -math.inf
