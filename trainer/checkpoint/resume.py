"""Where a run stands, and going on from a checkpoint: the same on every replica, and never from another run's."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

from slipway.core.errors import UserError
from slipway.trainer.checkpoint.best import Selection
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints
from slipway.trainer.config import JobConfig
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines.base import Engine

logger = logging.getLogger(__name__)


@dataclass
class Interval:
    """Sums over steps; saved with a checkpoint, so that a resumed history is exact.

    Every step has the same number of examples, so a mean over steps is the mean over their examples.
    """

    steps: int = 0
    loss: float = 0.0
    accuracy: float = 0.0

    def add(self, loss: float, accuracy: float) -> None:
        """Add one step's figures."""
        self.steps += 1
        self.loss += loss
        self.accuracy += accuracy

    def means(self) -> dict[str, float]:
        """Mean loss and accuracy of the steps."""
        return {"loss": self.loss / self.steps, "accuracy": self.accuracy / self.steps}


@dataclass
class Progress:
    """Steps done, the figures since the last log point and since the epoch's start, what the validations decided.

    Data order and epoch follow from the step.
    """

    step: int = 0
    interval: Interval = field(default_factory=Interval)
    epoch: Interval = field(default_factory=Interval)
    selection: Selection = field(default_factory=Selection)


# What of the progress is in a checkpoint's record, beside its step and the run's identity.
_PARTS: dict[str, Any] = {"interval": Interval, "epoch": Interval, "selection": Selection}


def identity(job: JobConfig, data_fingerprint: str) -> dict[str, Any]:
    """What a checkpoint and the run that goes on from it must have in common, by the setting's name."""
    return {
        "train.engine": job.train.engine,
        "model.builder": job.model.builder,
        "model.arguments": job.model.arguments,
        "train.optimizer": job.train.optimizer,
        "train.momentum": job.train.momentum,
        "train.precision": job.train.precision,
        "train.batch_size": job.train.batch_size,
        "train.seed": job.train.seed,
        "train.augment": job.train.augment.model_dump(),
        "data": data_fingerprint,
    }


def checkpoint_of(progress: Progress, engine: Engine, identity: dict[str, Any]) -> Checkpoint:
    """The run as it stands, to be saved."""
    record = {"identity": identity, **{name: asdict(getattr(progress, name)) for name in _PARTS}}
    return Checkpoint(progress.step, engine.state(), record)


def resume(
    checkpoints: Checkpoints, cluster: Cluster, engine: Engine, identity: dict[str, Any], steps: int
) -> Progress:
    """Bring the engine to the newest whole checkpoint's state; a fresh start where there is none.

    Raises:
        UserError: It was made with other settings or by another version, its state is another network's, or it is past
            the run's `steps`.
    """
    # The chief chooses: on a mounted bucket another replica may not see the newest one yet.
    checkpoint = checkpoints.newest() if cluster.is_chief else None
    (agreed,) = engine.agree([checkpoint.step if checkpoint else -1])
    step = round(agreed)
    if step < 0:
        return Progress()
    if checkpoint is None:
        checkpoint = checkpoints.newest(at_most=step)
    if checkpoint is None or checkpoint.step != step:
        raise RuntimeError(f"the chief goes on from step {step}, whose checkpoint this replica cannot read")
    _check_form(checkpoint, identity)
    _check(checkpoint, identity, steps)
    engine.load_state(checkpoint.state)
    logger.info("going on from the checkpoint at step %d of %d", step, steps)
    return Progress(step, **{name: part(**checkpoint.record[name]) for name, part in _PARTS.items()})


def _check_form(checkpoint: Checkpoint, identity: dict[str, Any]) -> None:
    """Raise UserError where the checkpoint's record has other entries than `checkpoint_of` gives it."""
    parts: dict[str, Any] = {"identity": identity, **{name: asdict(part()) for name, part in _PARTS.items()}}
    expected = {(name, key) for name, entries in parts.items() for key in entries}
    record = checkpoint.record
    found = {(name, key) for name, entries in record.items() if isinstance(entries, dict) for key in entries}
    if different := sorted(expected ^ found):
        name, key = different[0]
        what = "does not have" if different[0] in expected else "has"
        raise UserError(
            f"The checkpoint of step {checkpoint.step} was written by another version of Slipway: its {name} {what} "
            f"{key}.",
            allowed="a checkpoint that this version wrote",
            fix="go on with the version that wrote it, or start anew in an empty checkpoint folder",
        )


def _check(checkpoint: Checkpoint, identity: dict[str, Any], steps: int) -> None:
    saved = checkpoint.record["identity"]
    for setting, value in identity.items():
        if saved[setting] != value:
            raise UserError(
                f"The checkpoint to go on from was made with another {setting}: {saved[setting]!r}.",
                setting=setting,
                value=value,
                allowed="the setting that the checkpoint was made with",
                nearest=str(saved[setting]),
                fix="go back to that setting, or start anew in an empty checkpoint folder",
            )
    if checkpoint.step > steps:
        raise UserError(
            f"The checkpoint to go on from is at step {checkpoint.step}, past this run's last step {steps}.",
            allowed=f"a run of at least {checkpoint.step} steps",
            fix="train for longer (train.epochs, train.steps or train.examples), or start anew in an empty folder",
        )
