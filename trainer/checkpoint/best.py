"""Early stopping and selection of the best weights by validation; the state is part of every checkpoint."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from slipway.core.errors import UserError
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints
from slipway.trainer.config import TrainSettings
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines.base import Engine, Measured
from slipway.trainer.tasks import MONITORS

FOLDER = "best"  # subfolder of the checkpoint folder for the best weights
# Settings of a run's identity that may differ between checkpoints of the same run.
UNTIL_THE_END = ("train.learning_rate",)


@dataclass
class Selection:
    """State of early stopping. `best` is the best monitored value, `best_step` its step (0: none yet). `reference` is
    the value that the next validation must beat to count as an improvement, `waited` the validations since then."""

    best: float | None = None
    best_step: int = 0
    reference: float | None = None
    waited: int = 0

    def take(self, train: TrainSettings, metric: float, step: int) -> bool:
        """Record the monitored value after `step` steps; return whether it is the best so far."""
        change = train.early_stop.minimum_change if train.early_stop else 0.0
        if _better(train, metric, self.reference, change):
            self.reference, self.waited = metric, 0
        else:
            self.waited += 1
        if not _better(train, metric, self.best, 0.0):
            return False
        self.best, self.best_step = metric, step
        return True

    def ends(self, train: TrainSettings) -> bool:
        """Return whether training stops because the monitored value no longer improves."""
        return train.early_stop is not None and self.waited >= train.early_stop.patience


def _better(train: TrainSettings, metric: float, than: float | None, by: float) -> bool:
    if than is None:
        return not np.isnan(metric)
    return metric < than - by if MONITORS[train.monitor] == "minimize" else metric > than + by


def agreed_metric(train: TrainSettings, measured: Measured, engine: Engine, cluster: Cluster) -> float:
    """Return the chief's monitored value on all replicas, so that they all make the same decisions."""
    monitored = measured.loss if train.monitor == "loss" else measured.metric
    # The maximum is the chief's. NaN is sent as -inf as well: a maximum of NaN and a number depends on their order.
    (metric,) = engine.agree([monitored if cluster.is_chief and not math.isnan(monitored) else -math.inf])
    return math.nan if metric == -math.inf else metric


def numbered(checkpoint: Checkpoint, engine: Engine) -> Checkpoint:
    """Return a checkpoint with the number that all processes agree on, if each has to write a part of it."""
    if not checkpoint.is_sharded:
        return checkpoint
    (number,) = engine.agree([random.random()])
    return replace(checkpoint, number=number)


def no_validation(train: TrainSettings) -> UserError:
    """Return the error for early stopping or export=best on a data set without a validation split."""
    setting, value = ("train.early_stop", "on") if train.early_stop else ("train.export", train.export)
    return UserError(
        "The data set has no validation split.",
        setting=setting,
        value=value,
        allowed="only with a data set that has a validation split",
        fix="set data.split.validation to create one; or --set train.early_stop=null --set train.export=last",
    )


class BestWeights:
    """Storage for the weights with the best validation, next to the checkpoints; the chief writes it."""

    def __init__(self, checkpoints: Checkpoints, cluster: Cluster, identity: Mapping[str, object]) -> None:
        self._checkpoints, self._cluster = checkpoints, cluster
        self._record = {"identity": {name: value for name, value in identity.items() if name not in UNTIL_THE_END}}
        self._unsaved: Checkpoint | None = None

    def keep(self, engine: Engine, step: int) -> None:
        """Save the engine's state as the best so far. All replicas must call it; on a full disk it is retried later."""
        checkpoint = numbered(Checkpoint(step, engine.state(), self._record), engine)
        if self._cluster.is_chief or checkpoint.is_sharded:
            self._unsaved = checkpoint
            self.save_again(engine)

    def save_again(self, engine: Engine) -> None:
        """Retry a save that failed. All replicas must call it."""
        if self._unsaved is None:
            return
        saved = self._checkpoints.save(self._unsaved)
        if self._unsaved.is_sharded:  # then it is unsaved on all processes or on none
            (failed,) = engine.agree([float(not saved)])
            (failed,) = engine.agree([float(failed > 0 or not self._checkpoints.commit())])
            saved = not failed
        if saved:
            self._unsaved = None

    def restore(self, engine: Engine, step: int) -> None:
        """Restore the engine to the state of `step`. All replicas must call it.

        Raises:
            UserError: The weights could not be saved, are damaged, or belong to another run.
        """
        self.save_again(engine)
        checkpoint = self._checkpoints.at(step) if self._cluster.is_chief and self._unsaved is None else None
        # Only the chief knows whether it was saved; the other replicas read it then.
        (whole,) = engine.agree([float(checkpoint is not None and checkpoint.record == self._record)])
        if not whole:
            problem = "could not be saved" if self._unsaved else "are damaged, missing or of another run"
            raise UserError(
                f"The best weights, of step {step}, {problem}.",
                setting="train.export",
                value="best",
                fix="--set train.export=last, to export the last weights; or slipway run, to train again",
            )
        checkpoint = checkpoint or self._checkpoints.at(step)
        if checkpoint is None:
            raise self._checkpoints.unseen(step)
        engine.begin(step - 1)
        engine.load_state(checkpoint.state)
