"""Export of the trained model: the chief writes the folder atomically."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from slipway import extensions
from slipway.core import events, integrity, seen
from slipway.core.atomic import sync, sync_tree
from slipway.core.errors import UserError
from slipway.core.integrity import RECORD_FILE
from slipway.core.manifest import Manifest
from slipway.core.paths import in_bucket, local_path
from slipway.trainer import weights
from slipway.trainer.config import JobConfig
from slipway.trainer.engines.base import Engine
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.metrics.history import FILE_NAME as METRICS_FILE
from slipway.trainer.metrics.spent import FILE_NAME as SPENT_FILE
from slipway.trainer.tasks import check_threshold

if TYPE_CHECKING:
    from slipway.trainer.export.threshold import Decision

# Writes a model of an extension as a SavedModel to a folder; returns its checksum and the decision threshold.
Writer: TypeAlias = "Callable[[Path, Manifest, Decision], tuple[str, float | None]]"

logger = logging.getLogger(__name__)


def export(
    engine: Engine,
    job: JobConfig,
    manifest: Manifest,
    checksum: str,
    metrics: Path,
    folder: Path,
    steps: int,
    weights_step: int,
    went_back: Sequence[str] = (),
) -> None:
    """Write the engine's model, model.json and the history to `folder`, unless it has these weights.

    Args:
        engine: The engine with the trained network.
        job: The job that was trained.
        manifest: Manifest of the data set.
        checksum: Checksum of the exported weights.
        metrics: The folder of the run's metrics.jsonl and spent.json, which are copied.
        folder: The output folder (AIP_MODEL_DIR).
        steps: Number of trained steps; fewer than planned after early stopping.
        weights_step: The step whose weights are exported.
        went_back: What is known of resumptions from an older checkpoint than the newest.
    """
    record = _record(job, manifest, checksum, steps, weights_step)
    record |= {f"{name}_bytes": size for name, size in asdict(engine.size()).items()}
    record |= {"went_back": list(went_back)} if went_back else {}
    if (_read_record(folder) or {}) | {"threshold": None} == json.loads(json.dumps(record)) | {"threshold": None}:
        logger.info("the model in %s already has these weights", folder)
        _remove_leftovers(folder)
        return
    with replaced(folder) as path:
        if (threshold := engine.export(path, job, manifest)) is not None:
            record["threshold"] = threshold
        for name in (METRICS_FILE, SPENT_FILE):
            shutil.copyfile(metrics / name, path / name)
        base = weights.find(job.model.weights).parent if job.model.weights else None
        seen.write_seen(local_path(job.data), manifest, path, base)
        integrity.seal(path, record)
    logger.info("model written to %s", folder)


def exported(job: JobConfig, manifest: Manifest, folder: Path) -> str | None:
    """Return the checksum of the weights that this job exported to `folder`; None if there is no such whole export."""
    record = _read_record(folder) or {}
    same = (record.get("job_checksum"), record.get("data_fingerprint")) == (_job_checksum(job), manifest.fingerprint)
    return str(record["weights_checksum"]) if same else None


def _job_checksum(job: JobConfig) -> str:
    return hashlib.sha256(job.model_dump_json(exclude={"data"}).encode()).hexdigest()


def inputs_and_classes(manifest: Manifest) -> dict[str, object]:
    """Return the entries of model.json that describe the model's images and classes."""
    return {
        "task": manifest.task,
        "classes": manifest.classes,
        "inputs": {name: feature.model_dump(exclude_defaults=True) for name, feature in manifest.inputs.items()},
        "target": manifest.target and manifest.target.model_dump(exclude_defaults=True),
        "target_name": manifest.settings.get("label") if manifest.target else None,
        "image_size": list(manifest.image_size),
        "channels": manifest.channels,
        "resize_mode": manifest.resize_mode,
    }


def _record(job: JobConfig, manifest: Manifest, checksum: str, steps: int, weights_step: int) -> dict[str, object]:
    stages = [stage.model_dump(mode="json", exclude_none=True) for stage in job.train.stages]
    return {
        **inputs_and_classes(manifest),
        "builder": job.model.builder,
        "arguments": job.model.arguments,
        "engine": job.train.engine,
        "optimizer": job.train.optimizer,
        "learning_rate": job.train.learning_rate,
        **({"stages": stages} if stages else {}),
        "batch_size": job.train.batch_size,
        "replicas": job.plan.replicas,
        "steps": steps,
        "planned_steps": job.plan.steps,
        "weights_step": weights_step,
        "epochs": round(steps / job.plan.steps_per_epoch, 6),
        "seed": job.train.seed,
        "weights_checksum": checksum,
        "data_fingerprint": manifest.fingerprint,
        "job_checksum": _job_checksum(job),
    }


def _read_record(folder: Path) -> dict[str, object] | None:
    """Return the record of the model in `folder`; None if there is none or the model is damaged."""
    if problem := integrity.damage(folder):
        text = f"the model in {folder} is damaged ({problem}); it is exported again"
        logger.warning("%s", text)
        events.message(text)
        return None
    try:
        return integrity.unsealed(json.loads((folder / RECORD_FILE).read_bytes()))
    except FileNotFoundError:
        return None


def export_custom(
    folder: Path, model: Any, data: Path, manifest: Manifest, scale: float, *,
    from_logits: bool, steps: int | None, threshold: str | float | None = None,
) -> str:  # fmt: skip
    """Replace the content of `folder` by a custom program's network and model.json; return the weights' checksum.

    A Keras network is exported on the backend that the program runs it on, as the engines do; a torch.nn.Module as the
    pytorch engine does.

    Args:
        folder: The output folder (AIP_MODEL_DIR).
        model: A keras.Model or torch.nn.Module from images to one output per class. A Module receives the images
            channels first. Or a model that an extension writes, such as trees of a table.
        data: The data set.
        manifest: Its manifest, for class names and image shape.
        scale: Factor from pixels of 0 to 255 to the model's input.
        from_logits: Whether the outputs are logits rather than probabilities.
        steps: Number of trained steps for model.json, if known.
        threshold: As `train.threshold`.

    Raises:
        UserError: The model's outputs do not match the data set's classes.
    """
    from slipway.trainer.export.threshold import choose

    check_threshold(threshold, manifest, "slipway.training.export(threshold=…)", "threshold=None")
    decide = functools.partial(choose, threshold, data, manifest)
    for reference in extensions.references("writers"):
        if write := extensions.load(reference)(model):
            with replaced(folder) as path:
                digest, decided = write(path, manifest, decide)
                _seal_custom(path, manifest, "tensorflow", digest, steps, decided)
            return str(digest)
    if not manifest.is_image_only or manifest.task != "classification":
        unsupported = f"the task {manifest.task}" if manifest.is_image_only else "other inputs than an image"
        raise UserError(
            f"slipway.training.export is for classifiers of images; the data set has {unsupported}.",
            allowed="a program that writes its model to AIP_MODEL_DIR in its own format, with evaluate.module",
            fix="save the model with its framework, such as model.save(…), and set evaluate.module",
        )
    on_torch = "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)
    backend = "torch" if on_torch else importlib.import_module("keras").backend.backend()
    engine = next(name for name, row in ENGINES.items() if row.keras_backend == backend)
    engines_export = importlib.import_module(f"slipway.trainer.engines.{engine}.export")
    with replaced(folder) as path:
        digest, decided = engines_export.write_custom(path, model, manifest, scale, decide, from_logits=from_logits)
        _seal_custom(path, manifest, engine, digest, steps, decided)
    return str(digest)


def _seal_custom(
    folder: Path, manifest: Manifest, engine: str, digest: str, steps: int | None, threshold: float | None
) -> None:
    """Write model.json of a custom program's model."""
    record = {
        **inputs_and_classes(manifest),
        "engine": engine,
        "weights_checksum": digest,
        "data_fingerprint": manifest.fingerprint,
    }
    optional = {"steps": steps, "threshold": threshold}
    integrity.seal(folder, record | {key: value for key, value in optional.items() if value is not None})


def replaced(folder: Path) -> contextlib.AbstractContextManager[Path]:
    """Return a context with a temporary folder, whose content replaces that of `folder` on success."""
    return _copied(folder) if in_bucket(folder) else _renamed(folder)


@contextlib.contextmanager
def _copied(folder: Path) -> Iterator[Path]:
    """For a bucket: delete model.json first and write it last, since without it the folder is not a model."""
    with tempfile.TemporaryDirectory() as created:
        yield (new := Path(created))
        (folder / RECORD_FILE).unlink(missing_ok=True)
        written = {path.relative_to(new) for path in new.rglob("*") if path.is_file()}
        for name in sorted(written, key=lambda name: (name == Path(RECORD_FILE), name)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new / name, folder / name)
            sync(folder / name)
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            if path.relative_to(folder) not in written:
                path.unlink()


@contextlib.contextmanager
def _renamed(folder: Path) -> Iterator[Path]:
    """For a disk: write a sibling folder, then rename it."""
    beside, earlier = _remove_leftovers(folder)
    beside.mkdir(parents=True)
    try:
        yield beside
        sync_tree(beside)
        if folder.exists():
            folder.rename(earlier)
        try:
            beside.rename(folder)
        except OSError:
            if earlier.exists():
                earlier.rename(folder)
            raise
        sync(folder.parent)
        with contextlib.suppress(PermissionError):  # to list it; it may be new as well
            sync(folder.parent.parent)
    finally:
        _remove_leftovers(folder)


def _remove_leftovers(folder: Path) -> tuple[Path, Path]:
    """Remove the sibling folders of an interrupted replacement, the new one and the earlier one; return their paths."""
    siblings = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for leftover in siblings:
        shutil.rmtree(leftover, ignore_errors=True)
    return siblings
