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
        self._writers = _writers(folder)
        kept = [line for line in _read(self.path) if line["step"] <= step]
        beside = self.path.with_name(f".{FILE_NAME}.new")
        beside.write_text("".join(json.dumps(line) + "\n" for line in kept))
        beside.replace(self.path)
        self._file = self.path.open("a")
        for line in kept:
            self._show(line)

    def write(self, kind: str, step: int, epoch: float, **values: float | None) -> None:
        """Append one line: `kind` is train or validation, `epoch` the epochs done, which may be a fraction."""
        line = {"kind": kind, "step": step, "epoch": round(epoch, 6), **values, "time": round(time.time(), 3)}
        self._file.write(json.dumps(line) + "\n")
        self._show(line)

    def flush(self) -> None:
        """Make what was written visible to those who watch."""
        self._file.flush()
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self.flush()
        self._file.close()
        for writer in self._writers.values():
            writer.close()

    def _show(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name not in _NOT_SCALARS and value is not None:
                _write_scalar(self._writers[line["kind"]], name, value, line["step"])


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


def _write_scalar(writer: Any, name: str, value: float, step: int) -> None:
    """What tf.summary.scalar does, which needs the tensorboard package."""
    import tensorflow as tf

    metadata = tf.compat.v1.SummaryMetadata(data_class=1)  # DATA_CLASS_SCALAR
    metadata.plugin_data.plugin_name = "scalars"
    with writer.as_default(step=step):
        tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)


def _writers(folder: Path) -> dict[str, Any]:
    import tensorflow as tf

    for kind in KINDS:
        shutil.rmtree(folder / kind, ignore_errors=True)
    return {kind: tf.summary.create_file_writer(str(folder / kind)) for kind in KINDS}
