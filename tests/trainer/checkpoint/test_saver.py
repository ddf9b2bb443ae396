"""Asynchronous saving: one checkpoint at a time, in order, errors raised."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.trainer.checkpoint import saver as saving
from slipway.trainer.checkpoint.saver import Saver
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints


class SlowDisk(Checkpoints):
    """Starts writing on demand; records the maximum number of concurrent writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, keep=3)
        self.go = threading.Event()
        self.writing = self.most = 0

    def save(self, checkpoint: Checkpoint) -> bool:
        self.writing += 1
        self.most = max(self.most, self.writing)
        assert self.go.wait(20)
        self.writing -= 1
        return super().save(checkpoint)


def checkpoint(step: int, weights: Any) -> Checkpoint:
    return Checkpoint(step, {"weights": weights}, {})


def test_training_goes_on_while_it_is_written(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    saver = Saver(disk)
    saver.start(checkpoint(1, np.arange(1000.0)))  # returns though nothing can be written yet
    assert disk.newest() is None
    disk.go.set()
    saver.wait()
    found = disk.newest()
    assert found is not None
    np.testing.assert_array_equal(found.state["weights"], np.arange(1000.0))


def test_the_history_is_written_in_the_same_thread_before_the_checkpoint(tmp_path: Path) -> None:
    disk, calls = SlowDisk(tmp_path), []
    saver = Saver(disk, lambda: calls.append((threading.current_thread().name, disk.writing)))
    disk.go.set()
    saver.start(checkpoint(1, np.ones(1)))
    saver.wait()
    assert calls == [("saver", 0)]
    assert disk.newest() is not None


def test_one_is_written_at_a_time_in_their_order(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    saver = Saver(disk)
    saver.start(checkpoint(1, np.ones(1)))
    threading.Timer(0.1, disk.go.set).start()
    for step in (2, 3, 4):
        saver.start(checkpoint(step, np.full(1, step)))
    saver.wait()
    assert disk.most == 1
    assert disk.newest().step == 4  # type: ignore[union-attr]
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-0000000{step}" for step in (2, 3, 4)]


def test_an_error_that_is_not_the_disks_is_told_to_the_next_who_waits_once(tmp_path: Path) -> None:
    saver = Saver(Checkpoints(tmp_path, keep=3))
    saver.start(Checkpoint(1, {"weights": np.ones(1)}, {"not JSON": object()}))
    with pytest.raises(TypeError, match="not JSON serializable"):
        saver.wait()
    saver.wait()
    saver.start(checkpoint(2, np.ones(1)))
    saver.wait()


def test_after_a_full_disk_it_is_due_again_soon_and_no_longer_once_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    saver = Saver(Checkpoints(tmp_path, keep=3))
    with monkeypatch.context() as patch:

        def full(*_arguments: Any, **_named: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(np, "savez", full)
        saver.start(checkpoint(1, np.ones(1)))
        saver.wait()
    assert "no space left" in caplog.text
    assert not saver.due_again
    now[0] += saving.RETRY_SECONDS
    assert saver.due_again
    saver.start(checkpoint(2, np.ones(1)))
    saver.wait()
    assert not saver.due_again
