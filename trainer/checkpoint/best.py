"""What the validations decide: when to end early, and which weights are the best; kept with every checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from slipway.core.errors import UserError
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints
from slipway.trainer.config import TrainSettings
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines.base import Engine, Measured

FOLDER = "best"  # of the best weights, among the checkpoints

logger = logging.getLogger(__name__)


@dataclass
class Selection:
    """Where the validations stand. `best` is the best monitored figure, `best_step` when that was (0: never yet);
    `reference` what the next has to be better than to count as progress, `waited` how many have not been since."""

    best: float | None = None
    best_step: int = 0
    reference: float | None = None
    waited: int = 0

    def take(self, train: TrainSettings, figure: float, step: int) -> bool:
        """Take note of the monitored figure after `step` steps; whether it is the best so far."""
        change = train.early_stop.minimum_change if train.early_stop else 0.0
        if _better(train, figure, self.reference, change):
            self.reference, self.waited = figure, 0
        else:
            self.waited += 1
        if not _better(train, figure, self.best, 0.0):
            return False
        self.best, self.best_step = figure, step
        return True

    def ends(self, train: TrainSettings) -> bool:
        """Whether there was no progress for so long that training ends."""
        return train.early_stop is not None and self.waited >= train.early_stop.patience


def _better(train: TrainSettings, figure: float, than: float | None, by: float) -> bool:
    if than is None:
        return not np.isnan(figure)
    return figure < than - by if train.monitor == "loss" else figure > than + by


def agreed_figure(train: TrainSettings, measured: Measured, engine: Engine, cluster: Cluster) -> float:
    """The monitored figure as the chief has it, the same on all replicas: what follows from it must be, too."""
    own = measured.loss if train.monitor == "loss" else measured.accuracy
    # No figure is below 0, so the greatest is the chief's.
    (figure,) = engine.agree([own if cluster.is_chief else -1.0])
    return figure


def no_validation(train: TrainSettings) -> UserError:
    """The error of what needs a validation split, where the data set has none."""
    setting, value = ("train.early_stop", "on") if train.early_stop else ("train.export", train.export)
    return UserError(
        "There is no validation split to decide by.",
        setting=setting,
        value=value,
        allowed="with a data set that has a validation split",
        fix=f"let prepare_data make one (data.split.validation), or leave {setting} out",
    )


class BestWeights:
    """The state with the best validation, beside the checkpoints; the chief writes it."""

    def __init__(self, checkpoints: Checkpoints, cluster: Cluster) -> None:
        self._checkpoints, self._cluster = checkpoints, cluster
        self._unsaved: Checkpoint | None = None

    def keep(self, engine: Engine, step: int) -> None:
        """Save the engine's state, the best so far; every replica calls it. On a full disk it is tried again later."""
        state = engine.state()
        if self._cluster.is_chief:
            self._unsaved = Checkpoint(step, state, {})
            self.save_again()

    def save_again(self) -> None:
        """Try again what could not be saved."""
        if self._unsaved is not None and self._checkpoints.save(self._unsaved):
            self._unsaved = None

    def restore(self, engine: Engine, step: int) -> bool:
        """Bring the engine to the state of `step`; every replica calls it. False where it could not be saved."""
        self.save_again()
        found = self._unsaved or self._checkpoints.newest(at_most=step)
        there = found is not None and found.step == step
        # The chief knows whether it was saved; another may not see it in time, and must not go its own way.
        (whole,) = engine.agree([float(there and self._unsaved is None) if self._cluster.is_chief else 0.0])
        if not whole:
            logger.warning("the best weights, of step %d, could not be saved: the last ones are exported", step)
            return False
        if not there or found is None:
            raise RuntimeError(f"the chief has the best weights, of step {step}, which this replica cannot read")
        engine.load_state(found.state)
        return True
