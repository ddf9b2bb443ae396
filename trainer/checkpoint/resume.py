"""A run's progress and resuming it from a checkpoint: the same one on every replica, and only from the same run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from slipway.core.errors import UserError
from slipway.trainer.checkpoint.best import UNTIL_THE_END, Selection, numbered
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints
from slipway.trainer.config import JobConfig
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines.base import Engine

logger = logging.getLogger(__name__)


@dataclass
class Interval:
    """Sums of metrics over steps; saved in checkpoints so that a resumed run's history is exact.

    Every step has the same number of examples, so the mean over steps is the mean over examples.
    """

    steps: int = 0
    loss: float = 0.0
    metric: float = 0.0  # the task's metric

    def add(self, loss: float, metric: float) -> None:
        """Add one step's metrics."""
        self.steps += 1
        self.loss += loss
        self.metric += metric

    def means(self, metric: str) -> dict[str, float]:
        """Return the steps' mean loss, and the mean of the task's metric under its name."""
        return {"loss": self.loss / self.steps, metric: self.metric / self.steps}


@dataclass
class Progress:
    """Completed steps, metrics since the last log point and the start of the epoch, and the early stopping state.

    The order of the data and the epoch follow from the step.
    """

    step: int = 0
    interval: Interval = field(default_factory=Interval)
    epoch: Interval = field(default_factory=Interval)
    selection: Selection = field(default_factory=Selection)


# Parts of Progress in a checkpoint's record, besides the step and the run's identity.
_PARTS: dict[str, type[Interval] | type[Selection]] = {"interval": Interval, "epoch": Interval, "selection": Selection}


def identity(job: JobConfig, data_fingerprint: str) -> dict[str, object]:
    """Return the settings, by name, that must be equal for a run and a checkpoint that it resumes from.

    Those of UNTIL_THE_END may differ while there are steps left to train: a run that has finished is not what a run
    with another learning rate would be, such as a clone with its output folder.
    """
    return {
        "train.engine": job.train.engine,
        "model.builder": job.model.builder,
        "model.arguments": job.model.arguments,
        "model.weights": job.model.weights and job.model.weights.model_dump(mode="json", exclude={"file"}),
        "train.optimizer": job.train.optimizer,
        "train.momentum": job.train.momentum,
        "train.precision": job.train.precision,
        "train.batch_size": job.train.batch_size,
        "train.learning_rate": job.train.learning_rate,
        "train.stages": [stage.model_dump(mode="json") for stage in job.train.stages],
        "train.seed": job.train.seed,
        "train.augment": job.train.augment.model_dump(),
        "train.loss": job.train.loss,
        "train.metrics": job.train.metrics,
        "train.on_epoch_end": job.train.on_epoch_end,
        "data": data_fingerprint,
    }


def checkpoint_of(progress: Progress, engine: Engine, identity: Mapping[str, object]) -> Checkpoint:
    """Return a checkpoint of the current state. All processes must call it."""
    record = {"identity": dict(identity), **{name: asdict(getattr(progress, name)) for name in _PARTS}}
    return numbered(Checkpoint(progress.step, engine.state(), record), engine)


def resume(
    checkpoints: Checkpoints, cluster: Cluster, engine: Engine, identity: Mapping[str, object], steps: int
) -> Progress:
    """Restore the engine from the newest valid checkpoint; return a fresh Progress if there is none.

    Raises:
        UserError: It was saved with other settings, by another version or for another network, or it is past the
            run's `steps`.
        StorageUnavailable: The storage fails, or this replica does not see the chief's checkpoint.
    """
    # The chief chooses, since on a mounted bucket other replicas may not see the newest one yet.
    checkpoint = checkpoints.newest() if cluster.is_chief else None
    (agreed,) = engine.agree([checkpoint.step if checkpoint else -1])
    step = round(agreed)
    if step < 0:
        return Progress()
    if checkpoint is None:
        checkpoint = checkpoints.at(step)
    if checkpoint is None:
        raise checkpoints.unseen(step)
    _check_form(checkpoint, identity)
    _check(checkpoint, identity, steps)
    engine.begin(step - 1)  # at the end of a stage, the state is still that stage's
    engine.load_state(checkpoint.state)
    logger.info("resuming from the checkpoint at step %d of %d", step, steps)
    record = checkpoint.record
    return Progress(step, Interval(**record["interval"]), Interval(**record["epoch"]), Selection(**record["selection"]))


def _check_form(checkpoint: Checkpoint, identity: Mapping[str, object]) -> None:
    """Raise UserError if the checkpoint's record has other entries than `checkpoint_of` writes."""
    parts: dict[str, Mapping[str, object]] = {
        "identity": identity,
        **{name: asdict(part()) for name, part in _PARTS.items()},
    }
    expected = {(name, key) for name, entries in parts.items() for key in entries}
    record = checkpoint.record
    recorded = {(name, key) for name, entries in record.items() if isinstance(entries, dict) for key in entries}
    if different := sorted(expected ^ recorded):
        name, key = different[0]
        verb = "does not have" if different[0] in expected else "has"
        raise UserError(
            f"The checkpoint of step {checkpoint.step} was written by another version of Slipway: its {name} {verb} "
            f"{key}.",
            allowed="a checkpoint written by this version",
            fix="resume with the version that wrote it, or start a new run with an empty checkpoint folder",
        )


def _check(checkpoint: Checkpoint, identity: Mapping[str, object], steps: int) -> None:
    saved = checkpoint.record["identity"]
    for setting, value in identity.items():
        if saved[setting] != value and (setting not in UNTIL_THE_END or checkpoint.step == steps):
            raise UserError(
                f"The checkpoint was saved with another {setting}: {saved[setting]!r}.",
                setting=setting,
                value=value,
                allowed="the value that the checkpoint was saved with",
                nearest=str(saved[setting]),
                fix="restore that setting, or start a new run with an empty checkpoint folder",
            )
    if checkpoint.step > steps:
        raise UserError(
            f"The checkpoint is at step {checkpoint.step}, past this run's last step {steps}.",
            allowed=f"a run of at least {checkpoint.step} steps",
            fix="increase train.epochs, train.steps or train.examples, or use an empty checkpoint folder",
        )
