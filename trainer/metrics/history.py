"""A run's training history, written by the chief: metrics.jsonl (JSON lines) and the same scalars for TensorBoard."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from slipway.core.atomic import json_lines

# A record of the history: kind, step, epoch, time and the metrics by name.
Record: TypeAlias = dict[str, Any]

FILE_NAME = "metrics.jsonl"
KINDS = ("train", "validation")
_NOT_SCALARS = ("kind", "step", "time")

logger = logging.getLogger(__name__)


class Metrics:
    """The history in `folder`; records after `step` are dropped when it is opened.

    A resumed run starts at its checkpoint's step and writes the later records again. TensorBoard's files cannot be
    truncated, so they are rewritten from the records that are kept.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / FILE_NAME
        self._scalars = {kind: Scalars(folder / kind) for kind in KINDS}
        # The validation at `step` itself runs again: see the loop.
        kept = [
            line for line in _read(self.path) if line["step"] < step or (line["step"], line["kind"]) == (step, "train")
        ]
        beside = self.path.with_name(f".{FILE_NAME}.new")
        beside.write_text("".join(json.dumps(line) + "\n" for line in kept))
        beside.replace(self.path)
        self._file = self.path.open("ab", buffering=0)
        self._waiting = b""  # not yet in the file; Python's own buffer would lose it on a full disk
        self._warned = False
        for line in kept:
            self._scalars[line["kind"]].write(line)

    def write(self, kind: str, step: int, epoch: float, **values: float | None) -> None:
        """Append one record: `kind` is train or validation, `epoch` the completed epochs, which may be a fraction."""
        line = {"kind": kind, "step": step, "epoch": round(epoch, 6), **values, "time": round(time.time(), 3)}
        self._waiting += (json.dumps(line) + "\n").encode()
        self._scalars[kind].write(line)

    def graph(self, serialized: bytes) -> None:
        """Write the network's graph, a serialized tf.GraphDef, for TensorBoard."""
        self._scalars["train"].graph(serialized)

    def history(self) -> list[Record]:
        """Return all records so far."""
        self.flush()
        return _read(self.path)

    def flush(self) -> None:
        """Flush to disk; on a full disk, keep the data and retry at the next flush."""
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
            self._warned = False
        except OSError as error:
            if not self._warned:
                logger.warning("could not write %s: %s; training continues, the write is retried", self.path, error)
            self._warned = True
        for scalars in self._scalars.values():
            scalars.flush()

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._file.close()
        for scalars in self._scalars.values():
            scalars.close()


class Scalars:
    """A TensorBoard event file, the only one in its folder: a TFRecord file of Event protos.

    Written directly, since TensorFlow's writer needs the tensorboard package and half a millisecond per scalar. If the
    disk is full, the file ends there; a run that resumes from a checkpoint rewrites it.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._event = tf.compat.v1.Event
        self._summary = tf.compat.v1.Summary
        self._failure = tf.errors.OpError
        self._broken = False
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        now = time.time()
        self._file = tf.io.TFRecordWriter(str(folder / f"events.out.tfevents.{int(now)}.slipway"))
        self._do(self._file.write, self._event(wall_time=now, file_version="brain.Event:2").SerializeToString())

    def write(self, line: Record) -> None:
        """Append a record of the history."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in line.items()
            if name not in _NOT_SCALARS and value is not None
        ]
        event = self._event(wall_time=line["time"], step=line["step"], summary=self._summary(value=values))
        self._do(self._file.write, event.SerializeToString())

    def graph(self, serialized: bytes) -> None:
        """Append a graph."""
        self._do(self._file.write, self._event(wall_time=time.time(), graph_def=serialized).SerializeToString())

    def flush(self) -> None:
        """Flush to disk."""
        self._do(self._file.flush)

    def close(self) -> None:
        """Flush and close."""
        self._do(self._file.close)

    def _do(self, action: Callable[..., None], *arguments: bytes) -> None:
        if self._broken:
            return
        try:
            action(*arguments)
        except self._failure as error:
            self._broken = True
            logger.warning("TensorBoard's log in %s ends here: %s; training continues", self._folder, error.message)


def _read(path: Path) -> list[Record]:
    """Return the records of an existing history."""
    return json_lines(path.read_bytes()) if path.exists() else []
