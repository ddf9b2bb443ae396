"""The history: JSON lines and TensorBoard event files, truncated when a run resumes."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")


def lines(folder: Path) -> list[tuple[str, int, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line["loss"]) for line in found]


def scalars(folder: Path, kind: str) -> list[tuple[str, int, float]]:
    """Return the scalars that TensorBoard would show."""
    import tensorflow as tf

    found = []
    for path in sorted((folder / kind).iterdir()):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
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


def test_on_a_full_disk_lines_wait_and_none_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from slipway.trainer.metrics.history import Metrics

    class FullDisk:
        """Write up to the limit, possibly only part of the data, then fail like a full disk."""

        def __init__(self, file: Any, room: int) -> None:
            self.file, self.room = file, room

        def write(self, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = self.file.write(data[: self.room])
            self.room -= written
            return written

        def close(self) -> None:
            self.file.close()

    metrics = Metrics(tmp_path, 0)
    metrics._file = disk = FullDisk(metrics._file, room=100)
    for step in range(1, 6):
        metrics.write("train", step, step / 5, loss=1 / step)
        metrics.flush()
    assert (tmp_path / "metrics.jsonl").stat().st_size == 100
    assert caplog.text.count("No space left") == 1, "said once, not at each log point"
    disk.room = 10**6
    metrics.close()
    assert lines(tmp_path) == [("train", step, 1 / step) for step in range(1, 6)]


def test_tensorboards_file_ends_where_it_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import tensorflow as tf

    from slipway.trainer.metrics.history import Metrics

    metrics = Metrics(tmp_path, 0)

    class FullDisk:
        def write(self, _record: bytes) -> None:
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

        flush = close = None

    metrics._scalars["train"]._file = FullDisk()
    metrics.write("train", 1, 0.2, loss=1.0)
    metrics.write("train", 2, 0.4, loss=0.5)
    metrics.close()
    assert caplog.text.count("ends here: No space left on device") == 1
    assert lines(tmp_path) == [("train", 1, 1.0), ("train", 2, 0.5)]
