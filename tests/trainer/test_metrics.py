"""The history: JSON lines and what TensorBoard reads, cut back when a run resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")


def lines(folder: Path) -> list[tuple[str, int, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line["loss"]) for line in found]


def scalars(folder: Path, kind: str) -> list[tuple[str, int, float]]:
    """What TensorBoard would show."""
    import tensorflow as tf

    found = []
    for path in sorted((folder / kind).iterdir()):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def test_lines_past_the_step_that_a_run_resumes_from_are_dropped(tmp_path: Path) -> None:
    from trainer.metrics import Metrics

    metrics = Metrics(tmp_path, 0)
    for step in (10, 20, 30):
        metrics.write("train", step, step / 20, loss=1 / step, steps_per_second=None)
    metrics.write("validation", 20, 1.0, loss=0.5)
    metrics.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # killed while it wrote

    metrics = Metrics(tmp_path, 20)
    metrics.write("train", 25, 1.25, loss=0.25)
    metrics.close()
    assert lines(tmp_path) == [("train", 10, 0.1), ("train", 20, 0.05), ("validation", 20, 0.5), ("train", 25, 0.25)]
    shown = [("loss", 10, pytest.approx(0.1)), ("loss", 20, pytest.approx(0.05)), ("loss", 25, 0.25)]
    assert [entry for entry in scalars(tmp_path, "train") if entry[0] == "loss"] == shown
    assert scalars(tmp_path, "validation") == [("epoch", 20, 1.0), ("loss", 20, 0.5)]


def test_a_fresh_run_starts_an_empty_history(tmp_path: Path) -> None:
    from trainer.metrics import Metrics

    metrics = Metrics(tmp_path, 0)
    metrics.write("train", 5, 0.1, loss=1.0)
    metrics.close()
    Metrics(tmp_path, 0).close()
    assert lines(tmp_path) == []
