"""Saving beside the training: a thread writes the state as it was while the next steps run."""

from __future__ import annotations

import threading
import time

from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints

# A save that failed (a full disk) is tried again after so long, or when the next one is due, whichever comes first.
RETRY_SECONDS = 30.0


class Saver:
    """Writes checkpoints one after another; `start` returns when the one before is written."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._failed_at: float | None = None

    def start(self, checkpoint: Checkpoint) -> None:
        """Begin to write it; its arrays are the writer's from then on.

        Raises:
            Exception: What went wrong with the one before, other than the disk.
        """
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(checkpoint,), name="saver")
        self._thread.start()

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            self._failed_at = None if self._checkpoints.save(checkpoint) else time.monotonic()
        except BaseException as error:  # told to the one who waits
            self._error = error

    @property
    def due_again(self) -> bool:
        """Whether the last save failed so long ago that it should be tried again."""
        return self._failed_at is not None and time.monotonic() - self._failed_at >= RETRY_SECONDS

    def wait(self) -> None:
        """Return when nothing is being written.

        Raises:
            Exception: What went wrong, other than the disk.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
