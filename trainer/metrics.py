"""A run's history: metrics.jsonl, one JSON object a line, and the same scalars for TensorBoard; the chief writes."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

FILE_NAME = "metrics.jsonl"
KINDS = ("train", "validation")
_NOT_SCALARS = ("kind", "step", "time")


class Metrics:
    """The history in `folder`, from which everything after `step` is dropped first.

    A resumed run starts from its checkpoint's step and writes again what came after it. TensorBoard's files can not
    lose lines, so they are written anew from those that are kept.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE_NAME
        self._scalars = {kind: Scalars(folder / kind) for kind in KINDS}
        kept = [line for line in _read(self.path) if line["step"] <= step]
        beside = self.path.with_name(f".{FILE_NAME}.new")
        beside.write_text("".join(json.dumps(line) + "\n" for line in kept))
        beside.replace(self.path)
        self._file = self.path.open("a")
        for line in kept:
            self._scalars[line["kind"]].write(line)

    def write(self, kind: str, step: int, epoch: float, **values: float | None) -> None:
        """Append one line: `kind` is train or validation, `epoch` the epochs done, which may be a fraction."""
        line = {"kind": kind, "step": step, "epoch": round(epoch, 6), **values, "time": round(time.time(), 3)}
        self._file.write(json.dumps(line) + "\n")
        self._scalars[kind].write(line)

    def flush(self) -> None:
        """Make what was written visible to those who watch."""
        self._file.flush()
        for scalars in self._scalars.values():
            scalars.flush()

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        for scalars in self._scalars.values():
            scalars.close()


class Scalars:
    """An event file of TensorBoard's, the only one in its folder: a TFRecord file of Event protos.

    Written directly, since TensorFlow's own writer needs the tensorboard package and half a millisecond a scalar.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._event = tf.compat.v1.Event
        self._summary = tf.compat.v1.Summary
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        now = time.time()
        self._file = tf.io.TFRecordWriter(str(folder / f"events.out.tfevents.{int(now)}.slipway"))
        self._file.write(self._event(wall_time=now, file_version="brain.Event:2").SerializeToString())

    def write(self, line: dict[str, Any]) -> None:
        """Append a line of the history."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in line.items()
            if name not in _NOT_SCALARS and value is not None
        ]
        event = self._event(wall_time=line["time"], step=line["step"], summary=self._summary(value=values))
        self._file.write(event.SerializeToString())

    def flush(self) -> None:
        """Make what was written visible."""
        self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines of an earlier history; a last one that was cut short is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            break
        lines.append(line)
    return lines
