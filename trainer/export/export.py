"""The trained model's folder: written by the chief, whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slipway.core.manifest import Manifest
from slipway.core.paths import is_mounted
from slipway.trainer.config import JobConfig
from slipway.trainer.engines.base import Engine
from slipway.trainer.metrics.history import FILE_NAME as METRICS_FILE

RECORD_FILE = "model.json"
# What serves: a SavedModel, or a program of torch.export.
SAVED_MODEL_FILE = "saved_model.pb"
PROGRAM_FILE = "model.pt2"

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
) -> None:
    """Write `folder`: the engine's model at its root, model.json, metrics.jsonl. Leaves it when it is there.

    Args:
        engine: Holds the trained network.
        job: What was trained, and for how long.
        manifest: The data set's.
        checksum: Of the trained weights.
        metrics: The run's history, to be copied.
        folder: AIP_MODEL_DIR.
        steps: How many were trained, fewer than planned where training ended early.
        weights_step: After which of them the weights are exported.
    """
    record = _record(job, manifest, checksum, steps, weights_step)
    record |= {f"{name}_bytes": size for name, size in asdict(engine.size()).items()}
    if _read_record(folder) == record:
        logger.info("the model in %s has these weights already", folder)
        return
    with _new_content(folder) as place:
        engine.export(place, job, manifest)
        shutil.copyfile(metrics, place / METRICS_FILE)
        (place / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")
    logger.info("model written to %s", folder)


def exported(job: JobConfig, manifest: Manifest, folder: Path) -> str | None:
    """Return the checksum of the weights that this very job has exported to `folder`; None where it has not."""
    record = _read_record(folder) or {}
    same = (record.get("job_checksum"), record.get("data_fingerprint")) == (_job_checksum(job), manifest.fingerprint)
    return str(record["weights_checksum"]) if same else None


def _job_checksum(job: JobConfig) -> str:
    """A checksum of all settings; the data set's is its manifest's fingerprint, wherever it lies."""
    return hashlib.sha256(job.model_dump_json(exclude={"data"}).encode()).hexdigest()


def _record(job: JobConfig, manifest: Manifest, checksum: str, steps: int, weights_step: int) -> dict[str, Any]:
    return {
        "classes": manifest.classes,
        "image_size": list(manifest.image_size),
        "channels": manifest.channels,
        "builder": job.model.builder,
        "arguments": job.model.arguments,
        "engine": job.train.engine,
        "optimizer": job.train.optimizer,
        "learning_rate": job.train.learning_rate,
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


def _read_record(folder: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((folder / RECORD_FILE).read_text())
    except (OSError, ValueError):
        return None
    return record


@contextlib.contextmanager
def _new_content(folder: Path) -> Iterator[Path]:
    """A folder to write into, whose content takes the place of `folder`'s at the end; nothing is left on an error."""
    with _copied(folder) if is_mounted(folder) else _renamed(folder) as place:
        yield place


@contextlib.contextmanager
def _copied(folder: Path) -> Iterator[Path]:
    """For a bucket: without model.json the folder is no model, so that goes first and comes last."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)
        (folder / RECORD_FILE).unlink(missing_ok=True)
        written = {path.relative_to(place) for path in Path(place).rglob("*") if path.is_file()}
        for name in sorted(written, key=lambda name: (name == Path(RECORD_FILE), name)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place / name, folder / name)
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            if path.relative_to(folder) not in written:
                path.unlink()


@contextlib.contextmanager
def _renamed(folder: Path) -> Iterator[Path]:
    """On a disk: a folder beside it takes its place."""
    beside = folder.with_name(f".{folder.name}.new")
    earlier = folder.with_name(f".{folder.name}.old")
    for leftover in (beside, earlier):
        shutil.rmtree(leftover, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        if folder.exists():
            folder.rename(earlier)
        try:
            beside.rename(folder)
        except OSError:
            if earlier.exists():
                earlier.rename(folder)
            raise
    finally:
        for leftover in (beside, earlier):
            shutil.rmtree(leftover, ignore_errors=True)
