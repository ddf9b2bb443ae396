"""The end of a training before its last step: early stopping, and the user's function."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from slipway.core import events
from slipway.core.formatting import number
from slipway.trainer.checkpoint.best import BestWeights, agreed_metric
from slipway.trainer.checkpoint.resume import Progress
from slipway.trainer.config import JobConfig
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.signals import StopRequest
from slipway.trainer.engines.base import Engine, Measured
from slipway.trainer.metrics import spent
from slipway.trainer.metrics.history import Metrics

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Stopping:
    """Decides after each validation whether training ends; the chief decides for all replicas.

    `metrics` is None on all replicas but the chief. `best` stores the best weights if those are to be exported.
    """

    job: JobConfig
    cluster: Cluster
    engine: Engine
    metrics: Metrics | None
    stop: StopRequest
    progress: Progress
    best: BestWeights | None
    spent: spent.Spent

    def __post_init__(self) -> None:
        self._is_ended = False  # by the user's function

    @property
    def ends(self) -> bool:
        """Whether training ends now."""
        return self._is_ended or self.progress.selection.ends(self.job.train)

    def select(self, measured: Measured) -> None:
        """Update the best weights, and log if training stops early."""
        train, selection, step = self.job.train, self.progress.selection, self.progress.step
        if not train.needs_validation:
            return
        metric = agreed_metric(train, measured, self.engine, self.cluster)
        if selection.take(train, metric, step) and self.best:
            with self.spent.on(spent.CHECKPOINTS):
                self.best.keep(self.engine, step)
        if selection.ends(train) and step < self.job.plan.steps:
            text = f"stopping early at step {step} of {self.job.plan.steps}: the validation {train.monitor} did not "
            text += f"improve in {selection.waited} validations; "
            if selection.best is None:
                text += "it was never a number"
            else:
                text += f"the best was {number(selection.best)} at step {selection.best_step}"
            logger.info("%s", text)
            if self.metrics:
                events.message(text)

    def call_function(self, values: dict[str, float]) -> None:
        """Call the user's function, if there is one, on the chief with the validation's metrics.

        A run that resumes from the end of an epoch calls it again, as it validates again.
        """
        train, plan, step = self.job.train, self.job.plan, self.progress.step
        if train.on_epoch_end is None:
            return
        ended = False
        if self.metrics:
            from slipway.trainer.engines import hooks  # imports Keras

            self.metrics.flush()
            with self.stop.at_once(), self.spent.on(spent.FUNCTION):
                function = hooks.load(train, "train.on_epoch_end")
                ended = function(step / plan.steps_per_epoch, step, dict(values), self.metrics.folder) is True
        (agreed,) = self.engine.agree([float(ended)])
        self._is_ended = agreed > 0
        if self._is_ended and self.metrics and step < plan.steps:
            text = f"{train.on_epoch_end} ended the training at step {step} of {plan.steps}"
            logger.info("%s", text)
            events.message(text)
