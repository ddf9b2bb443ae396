"""A run's training history, written by the chief: metrics.jsonl (JSON lines) and the same scalars for TensorBoard.

Both are written in segments: a file is open only while one is appended. On a mounted bucket, a lost machine loses only
what follows the last segment, since a file is in the bucket once it is closed (gcsfuse's docs/semantics.md).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

from slipway.core.atomic import json_lines, replace_file, sync
from slipway.core.paths import in_bucket
from slipway.trainer.engines.installed import is_installed
from slipway.trainer.metrics.trial import trial_metric

# A record of the history: kind, step, epoch, time and the metrics by name.
Record: TypeAlias = dict[str, Any]

FILE_NAME = "metrics.jsonl"
# The metrics of a custom program's model, in the model's folder: a JSON object of names and finite numbers.
METRICS_FILE = "metrics.json"
KINDS = ("train", "validation")
_NOT_SCALARS = ("kind", "step", "time")
# Seconds between segments. In a bucket every segment replaces the objects, so there they are longer.
SEGMENT_SECONDS = 0.5
MOUNTED_SEGMENT_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Metrics:
    """The history in `folder`; when it is opened, records from the one of `kind` at `step` on are dropped.

    A resumed run starts at its checkpoint's step, where the trainer validates again, and rewrites the later records.
    For TensorBoard, it writes the kept records to a new file; without TensorFlow, there are none. A thread writes the
    segments; `flush` writes one now.
    """

    def __init__(self, folder: Path, step: int, kind: str = "validation") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / FILE_NAME
        first = (step, KINDS.index(kind))
        kept = [line for line in _read(self.path) if (line["step"], KINDS.index(line["kind"])) < first]
        content = "".join(json.dumps(line) + "\n" for line in kept).encode()
        replace_file(self.path, content)
        self._lines = Segments(self.path, len(content))
        self._scalars = {kind: Scalars(folder / kind) for kind in KINDS} if is_installed("tensorflow") else {}
        self._trial = trial_metric(os.environ)
        for line in kept:
            self._show(line)
        self.flush()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_segments, name="metrics", daemon=True)
        self._thread.start()

    def write(self, kind: str, step: int, epoch: float | None, /, **values: float | None) -> None:
        """Append one record: `kind` is train or validation, `epoch` the completed epochs, which may be a fraction."""
        passes = {} if epoch is None else {"epoch": round(epoch, 6)}
        line = {"kind": kind, "step": step, **passes, **values, "time": round(time.time(), 3)}
        self._lines.add((json.dumps(line) + "\n").encode())
        self._show(line)

    def _show(self, line: Record) -> None:
        if self._scalars:
            self._scalars[line["kind"]].write(line)
        if self._trial and line["kind"] == "validation":
            self._trial.report(line.get(self._trial.metric), line["step"])

    def report_exported(self, step: int) -> None:
        """Let a trial of Vertex AI end with the validation at `step`, whose weights are exported."""
        validations = [line for line in self.history() if line["kind"] == "validation"]
        exported = next((line for line in validations if line["step"] == step), None)
        if self._trial and exported and exported is not validations[-1]:
            self._trial.report(exported.get(self._trial.metric), validations[-1]["step"])

    def graph(self, serialized: bytes) -> None:
        """Write the network's graph, a serialized tf.GraphDef, for TensorBoard."""
        if self._scalars:
            self._scalars["train"].graph(serialized)

    def history(self) -> list[Record]:
        """Return all records so far."""
        self.flush()
        return _read(self.path)

    def flush(self) -> None:
        """Write a segment of each file; on a full disk, keep the data for the next one."""
        self._lines.flush()
        for scalars in self._scalars.values():
            scalars.segments.flush()

    def sync(self) -> None:
        """Flush the records so far to disk, so that a checkpoint refers to nothing that a power cut can remove."""
        self.flush()
        try:
            sync(self.path)
        except OSError as error:
            logger.warning("could not flush %s: %s; training continues", self.path, error)

    def close(self) -> None:
        """Write the last segments."""
        self._closed.set()
        self._thread.join()
        self.flush()

    def _write_segments(self) -> None:
        while not self._closed.wait(MOUNTED_SEGMENT_SECONDS if in_bucket(self.folder) else SEGMENT_SECONDS):
            self.flush()


class Segments:
    """A file that grows by segments: `flush` opens it, appends the data added since the last segment, and closes it.

    If that fails, for example on a full disk, the data waits for the next `flush`, which replaces the failed segment.
    `add` does not wait for a `flush` in another thread.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self._path, self._size = path, size  # the size after the last complete segment
        self._waiting = b""
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._warned = False

    def add(self, data: bytes) -> None:
        """Add data to the next segment."""
        with self._lock:
            self._waiting += data

    def flush(self) -> None:
        """Write a segment."""
        with self._flushing:
            segment = self._waiting
            if not segment:
                return
            try:
                self._append(segment)
            except OSError as error:
                if not self._warned:
                    logger.warning(
                        "could not write %s: %s; training continues, the write is retried", self._path, error
                    )
                self._warned = True
                return
            self._size += len(segment)
            self._warned = False
            with self._lock:
                self._waiting = self._waiting[len(segment) :]

    def _append(self, segment: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            if file.tell() > self._size:
                file.truncate(self._size)
            while segment:
                segment = segment[file.write(segment) :]


class Scalars:
    """A TensorBoard event file, a TFRecord file of Event protos, which replaces earlier ones in its folder.

    Written directly, since TensorFlow's writer needs the tensorboard package, takes half a millisecond per scalar, and
    keeps the file open. One file that grows, not one per segment: for gs:// folders, TensorBoard keeps a buffer of
    128 MiB per event file and requests the bytes after those it has read (its data/server/gcs/logdir.rs).
    Earlier files are kept: without its fast loader, TensorBoard stops following a folder whose newest file was deleted.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._tf = tf
        folder.mkdir(exist_ok=True)
        now = time.time()
        self.segments = Segments(folder / f"events.out.tfevents.{int(now)}.slipway")
        self._add(wall_time=now, file_version="brain.Event:2")
        # TensorBoard discards the points of the earlier files.
        self._add(wall_time=now, session_log=tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START))

    def write(self, line: Record) -> None:
        """Append a record of the history."""
        summary = self._tf.compat.v1.Summary
        values = [
            summary.Value(tag=name, simple_value=value)
            for name, value in line.items()
            if name not in _NOT_SCALARS and value is not None
        ]
        self._add(wall_time=line["time"], step=line["step"], summary=summary(value=values))

    def graph(self, serialized: bytes) -> None:
        """Append a graph."""
        self._add(wall_time=time.time(), graph_def=serialized)

    def _add(self, **event: object) -> None:
        """Append an event, framed as a record by TensorFlow in memory."""
        memory = "ram://slipway/event"
        with self._tf.io.TFRecordWriter(memory) as writer:
            writer.write(self._tf.compat.v1.Event(**event).SerializeToString())
        with self._tf.io.gfile.GFile(memory, "rb") as file:
            self.segments.add(file.read())
        self._tf.io.gfile.remove(memory)


def _read(path: Path) -> list[Record]:
    return json_lines(path.read_bytes()) if path.exists() else []
