"""The run folder and its record: `runs/<run-id>/run.json`, written at the start and after each step."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from slipway.core.atomic import replace_file
from slipway.core.errors import UserError, nearest

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig

ROOT = Path("runs")
RECORD_FILE = "run.json"
LATEST = "latest"
Status = Literal["pending", "running", "succeeded", "failed", "cancelled", "skipped"]


class StepRecord(BaseModel):
    """One step: `seconds` is what its own work took; `reused` says that an earlier result served.

    `peak_memory_bytes` is the most that its largest process has had.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    status: Status = "pending"
    seconds: float | None = None
    peak_memory_bytes: int | None = None
    reused: bool = False
    outputs: dict[str, Any] = {}


class ErrorRecord(BaseModel):
    """Why a run failed: in which step, in one sentence, and what fixes it; the traceback of what raised, if any.

    `setting` is the configuration's setting that caused it, if one did.
    `job` is the custom job that failed, `replica` the one in it (workerpool0-0), on Vertex AI.
    """

    model_config = ConfigDict(extra="forbid")
    step: str | None
    message: str
    setting: str | None = None
    fix: str | None = None
    traceback: str | None = None
    job: str | None = None
    replica: str | None = None


class ProcessRecord(BaseModel):
    """The process that runs the run. Its time of creation tells it from a later one with the same number."""

    model_config = ConfigDict(extra="forbid")
    pid: int
    created: float

    @classmethod
    def current(cls) -> ProcessRecord:
        """This process."""
        return cls(pid=os.getpid(), created=psutil.Process().create_time())

    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.created) < 1)
        except psutil.NoSuchProcess:
            return False


class RunRecord(BaseModel):
    """What is known of a run.

    `runner` says what its steps are on this machine, processes or containers; `champion` is what they are told of the
    registered model to beat. `job` is what another platform calls the run (on Vertex AI, its job's resource name),
    `console` the page that shows it; a run that is resumed there is another job each time, and `tries` counts them.
    """

    model_config = ConfigDict(extra="forbid")
    run_id: str
    name: str
    platform: str
    hardware: str
    rehearsal: bool = False
    runner: Literal["process", "docker"] = "process"
    status: Status = "running"
    created: datetime
    ended: datetime | None = None
    seconds: float | None = None
    process: ProcessRecord | None = None
    job: str | None = None
    console: str | None = None
    tries: int = 1
    steps: list[StepRecord] = []
    champion: str | None = None
    metrics: dict[str, float] = {}
    verdict: dict[str, Any] | None = None
    model: str | None = None
    report: str | None = None
    error: ErrorRecord | None = None

    def step(self, name: str) -> StepRecord:
        """The record of the step called `name`."""
        return next(step for step in self.steps if step.name == name)

    def as_json(self) -> str:
        """Return the text of `run.json`."""
        return self.model_dump_json(indent=2) + "\n"


class RunFolder:
    """A run's folder. `path` is absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def record_file(self) -> Path:
        return self.path / RECORD_FILE

    @property
    def configuration_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def specification_file(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def image_file(self) -> Path:
        """Names the image that the steps run in, where they run in containers."""
        return self.path / "image"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def read(self) -> RunRecord:
        """The record; a run whose process is gone without a word reads as failed.

        Raises:
            UserError: The folder holds no record that can be read.
        """
        try:
            record = RunRecord.model_validate_json(self.record_file.read_bytes())
        except (OSError, ValidationError):
            raise UserError(f"{self.path} holds no run record that can be read.", fix="slipway list") from None
        if record.status == "running" and record.process is not None and not record.process.is_alive():
            record.status = "failed"
            record.error = ErrorRecord(
                step=next((step.name for step in record.steps if step.status == "running"), None),
                message="The run's process is gone: it was killed, or the machine was restarted.",
                fix=f"slipway run --resume {record.run_id}",
            )
        return record

    def write(self, record: RunRecord) -> None:
        """Put the record in place, whole."""
        replace_file(self.record_file, record.as_json().encode())


def create(config: RunConfig, root: Path = ROOT) -> RunFolder:
    """A new run's folder, with its configuration in it; `latest` points to it. Nothing is left of one that fails."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = RunFolder(root / f"{config.name}-{stamp}-{secrets.token_hex(2)}")
    try:
        folder.path.mkdir(parents=True)
        folder.logs.mkdir()
        folder.artifacts.mkdir()
        folder.configuration_file.write_text(config.as_yaml())
        _point_latest_to(folder)
    except OSError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def discard(folder: RunFolder) -> None:
    """Remove the folder of a run that was refused before it started; `latest` is the newest of the others again."""
    shutil.rmtree(folder.path)
    latest = folder.path.parent / LATEST
    if latest.is_symlink() and not latest.exists():
        others = next(folders(folder.path.parent), None)
        if others is None:
            latest.unlink()
        else:
            _point_latest_to(others)


def _point_latest_to(folder: RunFolder) -> None:
    beside = folder.path.parent / f".latest.{folder.run_id}"
    beside.symlink_to(folder.run_id)
    beside.replace(folder.path.parent / LATEST)


def find(run_id: str, root: Path = ROOT) -> RunFolder:
    """The folder of a run by its id, or of the newest for "latest".

    Raises:
        UserError: There is no such run.
    """
    path = root / run_id
    with contextlib.suppress(OSError):  # no file system accepts a name of 300 characters
        if (path / RECORD_FILE).is_file():
            return RunFolder(path.resolve())
    known = [folder.run_id for folder in folders(root)]
    near = nearest(run_id, known)
    raise UserError(
        f"There is no run {run_id} in {root}/.",
        setting="RUN",
        value=run_id,
        allowed="a run's id as `slipway list` shows it, or latest" if known else "there are no runs yet",
        nearest=near,
        fix="slipway list" if known else "slipway run",
    )


def folders(root: Path = ROOT) -> Iterator[RunFolder]:
    """All runs' folders, the newest first."""
    if root.is_dir():
        found = (path for path in root.iterdir() if not path.is_symlink() and (path / RECORD_FILE).is_file())
        yield from (RunFolder(path) for path in sorted(found, key=lambda path: path.stat().st_ctime, reverse=True))
