"""Saving checkpoints in a thread while training continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints

# A failed save (full disk) is retried after this delay, or when the next save is due, whichever comes first.
RETRY_SECONDS = 30.0


class Saver:
    """Writes checkpoints in a thread while training continues, one at a time, each after a call of `first`.

    One with sharded arrays is only complete after `finish`, once all processes have written their parts.
    """

    def __init__(self, checkpoints: Checkpoints, first: Callable[[], None] | None = None) -> None:
        self._checkpoints = checkpoints
        self._first = first
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._failed_at: float | None = None
        self._unfinished: int | None = None  # the step of a checkpoint with sharded arrays that is not complete

    def start(self, checkpoint: Checkpoint) -> None:
        """Start writing a checkpoint, whose arrays must not be modified afterwards.

        Raises:
            Exception: The error of the previous save, unless it was an error of the disk.
        """
        self.wait()
        self._unfinished = checkpoint.step if checkpoint.is_sharded else None
        self._thread = threading.Thread(target=self._write, args=(checkpoint,), name="saver")
        self._thread.start()

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            if self._first:
                self._first()
            self._failed_at = None if self._checkpoints.save(checkpoint) else time.monotonic()
        except BaseException as error:  # raised by wait()
            self._error = error

    @property
    def is_unfinished(self) -> bool:
        """Whether a checkpoint with sharded arrays awaits `finish`; the same on all processes."""
        return self._unfinished is not None

    @property
    def is_writing(self) -> bool:
        """Whether this process is still writing its part of such a checkpoint."""
        return self.is_unfinished and self._thread is not None and self._thread.is_alive()

    @property
    def has_failed(self) -> bool:
        """Whether this process's last save failed."""
        return self._failed_at is not None

    def finish(self, *, failed: bool) -> None:
        """Complete a checkpoint with sharded arrays, unless a process `failed` to write its part.

        Raises:
            Exception: As for `wait`.
        """
        self.wait()
        step, self._unfinished = self._unfinished, None
        if step is None:
            return
        if failed and not self.has_failed:
            self._checkpoints.give_up(step, "another process could not write its part")
        self._failed_at = None if not failed and self._checkpoints.commit() else time.monotonic()

    @property
    def due_again(self) -> bool:
        """Whether the last save failed and its retry is due."""
        return self._failed_at is not None and time.monotonic() - self._failed_at >= RETRY_SECONDS

    def wait(self) -> None:
        """Wait for the current save.

        Raises:
            Exception: The error of the save, unless it was an error of the disk.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
