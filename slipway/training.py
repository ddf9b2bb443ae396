"""What a custom training program (`train.module`) can use of its run; see docs/your-own-training-loop.md.

All functions read the environment variables of the run, the same on every platform. A program may use any of them, or
none. Importing this module loads no framework.

    from slipway import training

    cluster, data = training.cluster(), training.data()
    for step in range(first, last):
        ...
        training.report(step, total=last, loss=loss)
        if training.should_stop():
            save(training.checkpoint_dir())
            training.stop()
    if cluster.is_chief:
        training.export(model)
    training.finish({"accuracy": accuracy})

It owns two formats in the model's folder: metrics.json, an object of metric names and finite numbers, and
metrics.jsonl, the history: one object per line with `kind` (train or validation), `step`, `epoch` (optional), `time`,
and any metrics.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsFloat

from slipway.core import errors, events, idle
from slipway.core import manifest as manifests
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.exit_codes import STOPPED, leave
from slipway.core.manifest import Manifest
from slipway.core.paths import DATA_VARIABLE, REHEARSAL_VARIABLE, REHEARSED_FILE, local_path, output_paths
from slipway.trainer.distributed import accelerators
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed.cluster import HOSTS_VARIABLE, SLICE, Cluster, Task
from slipway.trainer.distributed.libraries import LIBRARIES
from slipway.trainer.distributed.signals import ASKED_TO_STOP, StopRequest
from slipway.trainer.distributed.verification import verify_loaded
from slipway.trainer.engines import quick_import
from slipway.trainer.metrics.history import FILE_NAME as HISTORY_FILE
from slipway.trainer.metrics.history import KINDS, METRICS_FILE, Metrics

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf
    import torch
    from numpy.typing import NDArray

    from slipway.trainer.tasks import ThresholdRule

__all__ = [
    "Cluster",
    "Data",
    "checkpoint_dir",
    "cluster",
    "data",
    "export",
    "finish",
    "model_dir",
    "report",
    "should_stop",
    "stop",
]

# Written to the checkpoint folder when the chief has finished.
FINISHED_FILE = "finished"
PROGRESS_SECONDS = 0.5
READ_TOGETHER = 64  # examples
ROWS_TOGETHER = 1024
# How long the other replicas wait for the chief's `finish`, while it exports and evaluates.
FINISH_SECONDS = 1800.0
FINISH_POLL_SECONDS = 0.1
# Fields of the history's records, which are not names for metrics.
_FIELDS = ("kind", "step", "epoch", "time", "total")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """The run's data.

    Attributes:
        uri: The folder or URI, as in SLIPWAY_DATA.
        path: The same as a local path: gs://bucket/folder is /gcs/bucket/folder. None for other kinds of URIs.
        manifest: The manifest of a data set that Slipway has prepared; None for other data.
    """

    uri: str
    path: Path | None
    manifest: Manifest | None

    def files(self, split: str) -> list[Path]:
        """Return the TFRecord shards of a split of a prepared data set, in order.

        Raises:
            UserError: Slipway has not prepared the data, or they have no such split.
        """
        folder, prepared = _prepared(self, "TFRecord shards")
        if split not in prepared.splits:
            raise UserError.unknown("split", split, prepared.splits)
        return [folder / shard.file for shard in prepared.splits[split].shards]

    def examples(self, split: str) -> tf.data.Dataset:
        """Return a split of a prepared set of labeled images: uint8 [height, width, channels], and int64 labels.

        The images are decoded, and resized to the manifest's size. In a process that has imported torch or jax,
        TensorFlow leaves the GPUs to that.

        Raises:
            UserError: Slipway has not prepared the data, or they have no such split.
        """
        _, prepared = _prepared(self, "labeled images")
        files = [str(path) for path in self.files(split)]
        _import_tensorflow()
        import tensorflow as tf

        from slipway.trainer.data.images import as_it_is, decode_images

        if {"torch", "jax"} & set(sys.modules):
            quick_import.let_tensorflow_only_read()
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

        def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            found = tf.io.parse_example(records, features)
            return decode_images(found["image"], prepared, upright=True), found["label"]

        batches = tf.data.TFRecordDataset(files).batch(READ_TOGETHER)
        return batches.map(as_it_is(parse), num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    def table(self, split: str) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return a split of a prepared table: its inputs as columns, float32 [examples, columns], and the labels.

        A category is a column of 0 and 1 for each of its values, a missing number the mean and a column of 1. Labels
        are positions in the manifest's classes, or the standardized target.

        Raises:
            UserError: Slipway has not prepared the data, or they have no such split.
        """
        _, prepared = _prepared(self, "columns")
        files = [str(path) for path in self.files(split)]
        _import_tensorflow()
        import numpy as np
        import tensorflow as tf

        from slipway.trainer.data.features import Features, matrix
        from slipway.trainer.data.images import as_it_is

        features = Features(prepared)

        def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs, labels = features.parse(records)
            return matrix(inputs, prepared), labels

        batches = tf.data.TFRecordDataset(files).batch(ROWS_TOGETHER).map(as_it_is(parse)).as_numpy_iterator()
        columns, labels = zip(*batches, strict=True)
        return np.concatenate(columns), np.concatenate(labels)


def cluster() -> Cluster:
    """Return this process's `rank`, the `world_size`, `is_chief`, and all processes' `addresses`, the chief's first.

    On a TPU slice of several machines, call `jax.distributed.initialize()` before.

    Raises:
        UserError: The environment variables are not valid, a slice's machines have not joined, or TensorFlow or PyTorch
            is imported and sees none of the accelerators of the run's hardware.
    """
    hosts = clusters.slice_hosts(os.environ)
    if hosts == 1:
        if "jax" not in sys.modules:  # asking it would keep the program from joining other processes
            _verify_accelerators()
        return clusters.read(os.environ)
    jax = importlib.import_module("jax")
    if jax.process_count() != hosts:
        raise UserError(
            f"JAX has {jax.process_count()} processes, but the TPU slice has {hosts} machines.",
            setting=HOSTS_VARIABLE,
            value=hosts,
            fix="call jax.distributed.initialize() before the functions of slipway.training",
        )
    tasks = tuple(Task("host", number, "") for number in range(hosts))
    return Cluster(tasks, jax.process_index(), SLICE, accelerators.find(os.environ))


def data() -> Data | None:
    """Return the run's data; None for a run without data.

    Raises:
        UserError: The manifest cannot be read.
    """
    uri = os.environ.get(DATA_VARIABLE)
    if not uri:
        return None
    path = local_path(uri)
    if "://" in uri and str(path) == str(Path(uri)):
        return Data(uri, None, None)
    is_prepared = (path / manifests.FILE_NAME).is_file()
    return Data(uri, path, manifests.read(path) if is_prepared else None)


def checkpoint_dir() -> Path:
    """Return the folder for checkpoints, which keeps its contents when the program is restarted or resumed.

    All replicas share it. On Vertex AI it is in a mounted bucket: a file is stored once it is closed.
    """
    return _created(output_paths(os.environ).checkpoints)


def model_dir() -> Path:
    """Return the folder for the model, AIP_MODEL_DIR, which is evaluated and registered. The chief writes it."""
    return _created(output_paths(os.environ).model)


def report(
    step: int,
    /,
    *,
    total: int | None = None,
    epoch: float | None = None,
    kind: Literal["train", "validation"] = "train",
    **metrics: SupportsFloat,
) -> None:
    """Show the progress, and add a record to the history and to TensorBoard's scalars. Only the chief reports.

    Reading a metric may wait for the device: report every hundredth step or so, rather than every one. In a rehearsal
    (`slipway rehearse --steps COUNT`), the report of step COUNT or a later one ends all replicas.

    Args:
        step: Number of completed steps. A restarted program's first report drops the history's later records.
        total: Number of steps of the whole training, for the progress bar; remembered for later calls.
        epoch: Number of completed epochs, which may be a fraction.
        kind: The split that the metrics were measured on.
        metrics: Any metrics by name. A number that is not finite is stored as null.

    Raises:
        UserError: The kind, or a metric's name or value, is not valid; or the program's framework sees none of the
            accelerators of the run's hardware.
    """
    _verify_accelerators()
    if kind not in KINDS:
        raise UserError.unknown("kind of metrics", kind, KINDS)
    values = {name: _number(name, value) for name, value in metrics.items()}
    if not cluster().is_chief:
        return
    if _program.metrics is None:
        _program.has_tensorflow = "tensorflow" in sys.modules
        _import_tensorflow()
        _program.metrics = Metrics(output_paths(os.environ).logs, step, kind)
        atexit.register(_save_history)
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    _program.metrics.write(kind, step, epoch, **finite)
    idle.sign(f"the report of step {step}")
    _program.total = total or _program.total
    _program.step = step
    now = time.monotonic()
    if kind == "train" and (step == _program.total or now - _program.shown_at >= PROGRESS_SECONDS):
        _program.shown_at = now
        events.progress(step, _program.total or 0, "steps", **values)
    if kind == "train" and step >= int(os.environ.get(REHEARSAL_VARIABLE, sys.maxsize)):
        _end_rehearsal(step)


def should_stop() -> bool:
    """Return whether this process was asked to stop (SIGTERM), because its machine is preempted or the run cancelled.

    From the first call on, the signal no longer ends the process, which has 15 seconds to save a checkpoint and call
    `stop`. The signal may reach only one of several replicas: let them agree before they stop together, for example by
    summing up the answers; those that are not asked to restart from the last checkpoint anyway.
    """
    if threading.current_thread() is threading.main_thread():
        if _program.stop is None:
            _program.stop = StopRequest()
            _program.deferred.enter_context(_program.stop.deferred())
        _program.stop.install()  # again, because libraries replace signal handlers
    return _program.stop is not None and _program.stop.requested


def stop() -> NoReturn:
    """End this process at once with the exit code that restarts it, after it has saved a checkpoint."""
    asked = _program.stop is not None and _program.stop.requested
    print(f"{ASKED_TO_STOP if asked else 'another replica was asked to stop'}: ended by the program", flush=True)
    if _program.metrics:
        _program.metrics.close()
    sys.stderr.flush()
    leave(STOPPED)


def export(
    model: keras.Model | torch.nn.Module | Any, *, from_logits: bool = True, scale: float = 1 / 255,
    threshold: ThresholdRule | float | None = None,
) -> None:  # fmt: skip
    """Write the model to AIP_MODEL_DIR with the serving interface of Slipway's own models. Call it on the chief.

    A Keras model on the tensorflow or jax backend becomes a SavedModel that accepts encoded images and returns class
    names and probabilities, with Keras's own file beside it. A Keras model on the torch backend, or a torch.nn.Module,
    becomes a torch.export program. Trees become a SavedModel that accepts a table's rows: boosters of LightGBM, of
    which the raw scores of several are averaged, and HistGradientBoosting estimators of scikit-learn. The folder's
    previous content is deleted.

    Args:
        model: Maps float32 images [batch, height, width, channels] to one output per class, [batch, classes]. A
            torch.nn.Module that is not a Keras model receives [batch, channels, height, width].
        from_logits: Whether the outputs are logits; False if they are probabilities, as after a softmax.
        scale: Factor from pixels of 0 to 255 to the model's input; 1 for a model that scales them itself.
        threshold: With two classes, the probability of the second one from which it is predicted: a number, or the one
            with the highest F1 score (f1) or Youden's index (youden) on the validation split. None: 0.5.

    Raises:
        UserError: The run has no data set prepared by Slipway, or another number of classes than the model.
    """
    from slipway.trainer.export.export import export_custom

    prepared = _prepared(data(), "class names and an image size for the serving signature")
    folder = output_paths(os.environ).model
    idle.sign("the export", busy=True)
    digest = export_custom(
        folder, model, *prepared, scale, from_logits=from_logits, steps=_program.step, threshold=threshold
    )
    idle.sign("the export")
    _save_history()
    print(f"model written to {folder}, weights checksum {digest}", flush=True)


def finish(metrics: Mapping[str, SupportsFloat] | None = None) -> None:
    """Finish the training: every replica calls it last.

    The other replicas wait for the chief: one that leaves earlier may break the chief's connections.

    Args:
        metrics: Finite numbers by name, which the chief writes to metrics.json. The promotion gate then judges these.
            None if the exported model is to be evaluated on the test split, or by `evaluate.module`.

    Raises:
        UserError: A metric is not a finite number, or the program's framework sees none of the accelerators of the
            run's hardware.
    """
    _verify_accelerators()
    values = {name: _number(name, value) for name, value in (metrics or {}).items()}
    for name, value in values.items():
        if not math.isfinite(value):
            raise UserError(
                f"The metric {name} is {value}, which no gate can compare.",
                setting=f"{METRICS_FILE}: {name}",
                value=value,
                allowed="a finite number",
                fix=f"check how {name} is computed before slipway.training.finish",
            )
    finished = checkpoint_dir() / FINISHED_FILE
    if cluster().is_chief:
        _save_history()
        if values:
            replace_file(model_dir() / METRICS_FILE, (json.dumps(values, indent=2) + "\n").encode())
        finished.touch()
        return
    deadline = time.monotonic() + FINISH_SECONDS
    while not finished.is_file():
        if time.monotonic() > deadline:
            logger.warning("the chief has not finished within %g s", FINISH_SECONDS)
            return
        time.sleep(FINISH_POLL_SECONDS)


@dataclass
class _Program:
    """What the functions keep between calls."""

    metrics: Metrics | None = None
    total: int | None = None
    step: int | None = None
    shown_at: float = -math.inf
    stop: StopRequest | None = None
    has_tensorflow: bool = True  # False if only `report` has imported it, for TensorBoard
    deferred: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


_program = _Program()


def _end_rehearsal(step: int) -> NoReturn:
    """End this process; the step train then ends the other replicas."""
    print(f"rehearsal ended after the report of step {step}", flush=True)
    if _program.metrics:
        _program.metrics.close()
    replace_file(checkpoint_dir() / REHEARSED_FILE, str(step).encode())
    sys.stderr.flush()
    leave(0)


def _save_history() -> None:
    """Copy the history to the model's folder, if the program has reported anything."""
    if _program.metrics:
        _program.metrics.flush()
        shutil.copyfile(_program.metrics.path, model_dir() / HISTORY_FILE)


def _verify_accelerators() -> None:
    verify_loaded([name for name in LIBRARIES if name != "tensorflow" or _program.has_tensorflow])


def _import_tensorflow() -> None:
    """Import TensorFlow, if it is installed, after what must precede it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    quick_import.import_before_tensorflow()
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorflow")


def _created(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _prepared(found: Data | None, what: str) -> tuple[Path, Manifest]:
    """Return the folder and the manifest of the data that Slipway has prepared."""
    if found is None or found.path is None or found.manifest is None:
        raise UserError(
            f"The run has no data set that Slipway has prepared, and so no {what}.",
            setting=DATA_VARIABLE,
            value=None if found is None else found.uri,
            fix="set data.source, or use the framework's own functions with slipway.training.model_dir()",
        )
    return found.path, found.manifest


def _number(name: str, value: SupportsFloat) -> float:
    if name in _FIELDS:
        raise UserError(f"A metric cannot be called {name}, which is a field of the history.", value=name)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(
            f"The metric {name} is not a number.",
            value=repr(value)[:200],
            allowed="a number, or a tensor of one number",
        ) from None


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show a UserError that the program did not catch without a traceback."""
    if isinstance(error, UserError):
        errors.report(error)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
