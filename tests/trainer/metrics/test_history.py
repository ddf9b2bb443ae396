"""The history: JSON lines and TensorBoard event files, truncated when a run resumes."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.workspace import wait_for
from tests.fakes.mount import Mount

if TYPE_CHECKING:
    from tests.fakes.google import FakeGoogle

pytestmark = pytest.mark.usefixtures("tensorflow")


def lines(folder: Path) -> list[tuple[str, int, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line["loss"]) for line in found]


def scalars(folder: Path, kind: str) -> list[tuple[str, int, float]]:
    """Return the scalars that TensorBoard would show: a START discards those of step 0 and later."""
    import tensorflow as tf

    found = []
    for path in sorted((folder / kind).iterdir()):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            if event.session_log.status == tf.compat.v1.SessionLog.START:
                found = []
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def test_lines_past_the_step_that_a_run_resumes_from_are_dropped(tmp_path: Path) -> None:
    from slipway.trainer.metrics.history import Metrics

    metrics = Metrics(tmp_path, 0)
    for step in (10, 20, 30):
        metrics.write("train", step, step / 20, loss=1 / step, steps_per_second=None)
    metrics.write("validation", 10, 0.5, loss=0.75)
    metrics.write("validation", 20, 1.0, loss=0.5)  # is measured again by the run that resumes
    metrics.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # killed while it wrote

    metrics = Metrics(tmp_path, 20)
    metrics.write("train", 25, 1.25, loss=0.25)
    metrics.close()
    assert lines(tmp_path) == [("train", 10, 0.1), ("train", 20, 0.05), ("validation", 10, 0.75), ("train", 25, 0.25)]
    shown = [("loss", 10, pytest.approx(0.1)), ("loss", 20, pytest.approx(0.05)), ("loss", 25, 0.25)]
    assert [entry for entry in scalars(tmp_path, "train") if entry[0] == "loss"] == shown
    assert scalars(tmp_path, "validation") == [("epoch", 10, 0.5), ("loss", 10, 0.75)]


def test_a_fresh_run_starts_an_empty_history(tmp_path: Path) -> None:
    from slipway.trainer.metrics.history import Metrics

    metrics = Metrics(tmp_path, 0)
    metrics.write("train", 5, 0.1, loss=1.0)
    metrics.close()
    Metrics(tmp_path, 0).close()
    assert lines(tmp_path) == []


def test_on_a_full_disk_the_data_wait_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from slipway.trainer.metrics.history import Metrics, Segments

    def fill(segments: Any, segment: bytes) -> None:
        """Write a part of the segment, then fail like a full disk."""
        with segments._path.open("ab") as file:
            file.write(segment[:40])
        raise OSError(errno.ENOSPC, "No space left on device")

    metrics = Metrics(tmp_path, 0)
    metrics.write("train", 1, 0.2, loss=1.0)
    metrics.flush()
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "_append", fill)
        for step in range(2, 6):
            metrics.write("train", step, step / 5, loss=1 / step)
            metrics.flush()
    assert caplog.text.count("No space left") == 2, "said once per file, not at each log point"
    metrics.close()
    assert lines(tmp_path) == [("train", step, 1 / step) for step in range(1, 6)]
    assert [step for tag, step, _ in scalars(tmp_path, "train") if tag == "loss"] == [1, 2, 3, 4, 5]


def test_nothing_is_open_between_segments_so_a_lost_machine_loses_only_the_last(
    ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway.trainer.metrics import history
    from slipway.trainer.metrics.history import Metrics
    from tests.fakes.ready import BUCKET

    monkeypatch.setattr(history, "SEGMENT_SECONDS", 600.0)
    mount = ready_google.storage.mount = Mount(ready_google.storage, tmp_path)
    logs, found = tmp_path / BUCKET / "logs", tmp_path / "elsewhere/logs"

    metrics = Metrics(logs, 0)
    metrics.write("train", 10, 0.5, loss=1.0)
    metrics.flush()  # as before a checkpoint
    metrics.write("train", 20, 1.0, loss=0.5)
    metrics.flush()
    metrics.write("train", 30, 1.5, loss=0.25)
    mount.copy_to(found.parent, BUCKET)
    assert lines(found) == [("train", 10, 1.0), ("train", 20, 0.5)]
    assert [step for tag, step, _ in scalars(found, "train") if tag == "loss"] == [10, 20]

    again = Metrics(found, 20)  # another machine, at the checkpoint of step 20
    again.write("train", 30, 1.5, loss=0.25)
    again.close()
    metrics.close()
    assert lines(found) == lines(logs) == [("train", 10, 1.0), ("train", 20, 0.5), ("train", 30, 0.25)]
    assert [step for tag, step, _ in scalars(found, "train") if tag == "loss"] == [10, 20, 30]


def test_segments_are_written_while_training_does_not_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.trainer.metrics import history

    monkeypatch.setattr(history, "SEGMENT_SECONDS", 0.01)
    assert history.MOUNTED_SEGMENT_SECONDS < 60
    metrics = history.Metrics(tmp_path, 0)
    metrics.write("train", 1, 0.2, loss=1.0)
    wait_for(lambda: lines(tmp_path), seconds=10)
    metrics.close()


def test_records_are_added_while_a_slow_segment_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.trainer.metrics.history import Segments

    append, started, proceed = Segments._append, threading.Event(), threading.Event()

    def slow(segments: Segments, segment: bytes) -> None:
        started.set()
        assert proceed.wait(20)
        append(segments, segment)

    monkeypatch.setattr(Segments, "_append", slow)
    segments = Segments(tmp_path / "file")
    segments.add(b"1")
    writer = threading.Thread(target=segments.flush)
    writer.start()
    assert started.wait(20)
    segments.add(b"2")  # returns though nothing can be written yet
    proceed.set()
    writer.join()
    assert (tmp_path / "file").read_bytes() == b"1"
    segments.flush()
    assert (tmp_path / "file").read_bytes() == b"12"


def test_the_history_is_on_the_disk_before_a_checkpoint_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from slipway.trainer.metrics import history

    metrics = history.Metrics(tmp_path, 0)
    metrics.write("train", 1, None, loss=0.5)
    seen: list[tuple[int, bytes]] = []
    monkeypatch.setattr(os, "fsync", lambda number: seen.append((os.fstat(number).st_ino, metrics.path.read_bytes())))
    metrics.sync()
    assert [(inode, content.count(b"\n")) for inode, content in seen] == [(metrics.path.stat().st_ino, 1)]
    monkeypatch.setattr(history, "sync", lambda _path: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    metrics.sync()
    assert caplog.messages == [f"could not flush {metrics.path}: [Errno 5] Input/output error; training continues"]
    metrics.close()
