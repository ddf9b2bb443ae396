"""When a run saves its checkpoints, and that all replicas take part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from slipway.trainer.checkpoint.best import BestWeights
from slipway.trainer.checkpoint.resume import Progress, checkpoint_of
from slipway.trainer.checkpoint.saver import Saver
from slipway.trainer.config import CheckpointSettings
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines.base import Engine
from slipway.trainer.metrics import spent


@dataclass(kw_only=True)
class Saving:
    """Saves a run's checkpoints as the settings say. All replicas must call `save` and `finish` at the same step."""

    settings: CheckpointSettings
    cluster: Cluster
    engine: Engine
    saver: Saver
    identity: Mapping[str, object]
    progress: Progress
    best: BestWeights | None
    spent: spent.Spent

    def __post_init__(self) -> None:
        self._saved_step = self.progress.step
        self._saved_at = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the seconds between checkpoints are over by this process's clock, or those after a failed save."""
        every = self.settings.every_seconds
        return self.saver.due_again or (every is not None and time.monotonic() - self._saved_at >= every)

    def is_due(self, step: int) -> bool:
        """Return whether the settings have a checkpoint of this step."""
        every = self.settings.every_steps
        return every is not None and step % every == 0

    def save(self) -> None:
        """Save a checkpoint unless this step is already saved; the chief writes, or each its part of sharded arrays."""
        if self.progress.step == self._saved_step:
            return
        self.finish()
        with self.spent.on(spent.CHECKPOINTS):
            checkpoint = checkpoint_of(self.progress, self.engine, self.identity)
            if self.cluster.is_chief or checkpoint.is_sharded:
                self.saver.start(checkpoint)
            if self.best:
                self.best.save_again(self.engine)
        self._saved_step = self.progress.step
        self._saved_at = time.monotonic()

    def finish(self) -> None:
        """Wait until all replicas have written their parts of a checkpoint, and complete it."""
        if not self.saver.is_unfinished:
            return
        with self.spent.on(spent.CHECKPOINTS):
            self.saver.wait()
            (failed,) = self.engine.agree([float(self.saver.has_failed)])
            self.saver.finish(failed=failed > 0)

    def finish_written(self, *, writing: bool, failed: bool) -> None:
        """Complete a checkpoint unless a replica is still `writing` its part, or `failed` to."""
        if self.saver.is_unfinished and not writing:
            with self.spent.on(spent.CHECKPOINTS):
                self.saver.finish(failed=failed)

    def wait(self) -> None:
        """Wait until this process has written its checkpoint."""
        with self.spent.on(spent.CHECKPOINTS):
            self.saver.wait()
