"""Faults of the storage in a training process, for the tests of each engine."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from slipway.trainer.checkpoint import store
from slipway.trainer.config import JobConfig
from slipway.trainer.data import assignment
from slipway.trainer.data.assignment import ShardAssignment
from tests.trainer.conftest import NETWORKS, ROOT, Finished


def flip_a_label() -> None:
    """Flip a bit of a label once the shards have been verified."""
    verify = assignment.verify

    def verify_and_flip(assignment: ShardAssignment) -> None:
        verify(assignment)
        shard = Path(assignment.paths("train")[-1])
        content = bytearray(shard.read_bytes())
        content[-5] ^= 1  # the label is the last feature of each record, before the checksum of 4 bytes
        shard.write_bytes(content)

    assignment.verify = verify_and_flip


def fail_three_opens() -> None:
    """Let the first three attempts to open a checkpoint's arrays fail."""
    opened, left = Path.open, [errno.EIO] * 3

    def open_or_fail(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if path.name == store.STATE_FILE and "r" in mode and left:
            raise OSError(left.pop(), os.strerror(errno.EIO), str(path))
        return opened(path, mode, *arguments, **named)

    Path.open = open_or_fail  # type: ignore[method-assign]
    store.READ_WAITS = (0.0,) * 4  # type: ignore[assignment]


def train(config: JobConfig, root: Path, fault: str = "") -> Finished:
    """Train with outputs in `root` and the function `fault` of this module, if any."""
    start = ["-m", "tests.programs.train_with_fault", fault] if fault else ["-m", "slipway.trainer"]
    folders = {"MODEL_DIR": "model", "CHECKPOINT_DIR": "checkpoints", "TENSORBOARD_LOG_DIR": "logs"}
    done = subprocess.run(
        [sys.executable, *start, "--config", config.model_dump_json()],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(NETWORKS)]),
            **{f"AIP_{name}": str(root / folder) for name, folder in folders.items()},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def check_flipped_label(config: JobConfig, root: Path) -> None:
    """Check that a bit that flips between verification and use does not train other weights."""
    data = Path(shutil.copytree(config.data, root / "data"))
    ended = train(config.model_copy(update={"data": str(data)}), root, flip_a_label.__name__)
    assert ended.status == 1, ended
    assert "damaged" in ended.user_error["message"]
    assert str(data) in ended.user_error["message"]
    assert not (root / "model").exists()


def check_failing_opens(config: JobConfig, root: Path) -> None:
    """Check that a run ends with the same weights if storage fails for a moment, or the newest checkpoint is damaged.

    The model's record says that an older one was used.
    """
    whole = train(config, root / "whole")
    assert whole.status == 0, whole
    resumed, record = root / "resumed" / "checkpoints", root / "resumed" / "model" / "model.json"
    for step in (5, 10):
        shutil.copytree(root / "whole" / "checkpoints" / f"step-{step:08d}", resumed / f"step-{step:08d}")
    (resumed / store.POINTER).write_text("step-00000010")
    ended = train(config, root / "resumed", fail_three_opens.__name__)
    assert ended.output.count("cannot read a checkpoint") == 3
    assert "resuming from the checkpoint at step 10 of" in ended.output
    assert ended.checksum == whole.checksum
    assert "went_back" not in json.loads(record.read_text())

    shutil.rmtree(record.parent)
    (resumed / store.POINTER).write_text("step-00000010")
    (resumed / "step-00000010" / store.STATE_FILE).write_bytes(b"")
    ended = train(config, root / "resumed")
    assert ended.checksum == whole.checksum
    assert json.loads(record.read_text())["went_back"] == [
        "the checkpoint of step 10 is damaged; training resumes from the one of step 5"
    ]


def check_stalled_stream(engine: Any, data: Any) -> None:
    """Check that an engine marks that it waits for a streamed batch, and only then."""
    import tensorflow as tf

    data = dataclasses.replace(data)
    is_stalled, goes_on = threading.Event(), threading.Event()

    def pause(step: Any) -> Any:
        if step == 3:  # beyond what the stream reads ahead of the first step
            is_stalled.set()
            goes_on.wait(60)
        return step

    batches = data.batches(0)
    pauses = tf.data.Dataset.range(100).map(lambda step: tf.numpy_function(pause, [step], tf.int64))
    object.__setattr__(data, "batches", lambda _step: tf.data.Dataset.zip(batches, pauses).map(lambda batch, _: batch))
    engine.run(data, 0, np.zeros(1, np.float32))
    assert not data.waiting.is_on
    training = threading.Thread(target=engine.run, args=(data, 1, np.zeros(5, np.float32)))
    training.start()
    assert is_stalled.wait(60)
    training.join(1.0)
    assert data.waiting.is_on
    goes_on.set()
    training.join(60)
    assert not data.waiting.is_on
