"""Runs, data sets and models of the project in the current folder, as they were so many days ago."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipway.core.manifest import Manifest
from slipway.pipelines.cleaning.cleaner import Age
from slipway.pipelines.runs.record import Part, RunFolder, RunRecord, Status, StepRecord

NOW = datetime.now(UTC)
DAYS = 30
AGE = Age(timedelta(days=DAYS))


def run(
    name: str, days: float, data: Path | None = None, source: str | None = None, status: Status = "succeeded",
    study: str | None = None, model: str | None = None,
) -> RunFolder:  # fmt: skip
    """Write a run that ended so many days ago."""
    folder = RunFolder(Path("runs", name))
    folder.path.mkdir(parents=True)
    (folder.path / "weights").write_bytes(bytes(1000))
    outputs = {"dataset": str(data.absolute())} if data else {}
    folder.write(
        RunRecord(
            run_id=name, name="digits", platform="local", hardware="cpu", status=status, study=study,
            created=NOW - timedelta(days=days + 1), ended=None if status == "running" else NOW - timedelta(days=days),
            part=Part(source=source, first="evaluate", last="evaluate") if source else None,
            steps=[
                StepRecord(name="prepare_data", outputs=outputs),
                StepRecord(name="register_model", outputs={"model": model} if model else {}),
            ],
        )
    )  # fmt: skip
    written(folder.record_file, days)
    return folder


def written(file: Path, days: float) -> None:
    """Make a file so many days old."""
    moment = (NOW - timedelta(days=days)).timestamp()
    os.utime(file, (moment, moment))


def data_set(fingerprint: str, days: float, name: str = "digits", store: Path = Path("datasets")) -> Path:
    folder = store / name / fingerprint
    folder.mkdir(parents=True)
    described = Manifest(
        name=name, fingerprint=fingerprint, source="", settings={}, classes=["a"], image_size=(1, 1), channels=1,
        resize=False, encodings=[], splits={},
    )  # fmt: skip
    (folder / "manifest.json").write_text(described.model_dump_json())
    (folder / "shard").write_bytes(bytes(500))
    written(folder / "manifest.json", days)
    return folder


def register(number: int, run_id: str, fingerprint: str, registry: Path = Path("models")) -> Path:
    folder = registry / "digits" / str(number)
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"run_id": run_id, "data_fingerprint": fingerprint}))
    return folder
