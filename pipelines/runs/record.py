"""The run folder and its record: `runs/<run-id>/run.json`, written at the start and after each step."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from slipway.core import dataclass_json, formats
from slipway.core.atomic import replace_file, sync
from slipway.core.errors import UserError, nearest
from slipway.core.paths import in_project
from slipway.core.values import JsonObject
from slipway.pipelines.runs import lock

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.hardware.prices import Bill

ROOT = Path("runs")
# The platform of runs whose steps and replicas are on this machine.
LOCAL = "local"
LATEST = "latest"
Status = Literal["pending", "running", "succeeded", "failed", "cancelled", "skipped", "pruned"]
# A request to create a job, which times out after a minute, may arrive for this long, also if its sender was killed.
CREATION_TIME = timedelta(minutes=2)
# The event that a watcher receives when a step's status changes.
EVENTS: dict[Status, str] = {
    "running": "started",
    "succeeded": "finished",
    "failed": "failed",
    "cancelled": "cancelled",
}


@dataclass(kw_only=True)
class StepRecord:
    """One step of a run.

    Attributes:
        name: Its name in the table of steps.
        status: Its status.
        seconds: The time that it spent working; None if that is not known yet.
        peak_memory_bytes: The peak memory of its largest process; None if that is not known.
        reused: Whether the result of an earlier run was used.
        dollars: An estimate by list prices of what it cost, for `train` in all tries of the run; None if it cost
            nothing, or that is not known.
        outputs: What it returned, by name; {} until it has ended.
    """

    name: str
    status: Status = "pending"
    seconds: float | None = None
    peak_memory_bytes: int | None = None
    reused: bool = False
    dollars: float | None = None
    outputs: JsonObject = field(default_factory=dict)


@dataclass(kw_only=True)
class ErrorRecord:
    """Why a run failed.

    Attributes:
        step: The failed step; None if the run failed outside of its steps.
        message: The problem, in one line.
        setting: The configuration setting that caused it, if any.
        fix: A command or an edit, if any helps.
        traceback: The traceback, if there is one.
        job: The failed custom job on Vertex AI.
        replica: The failed replica in it, such as workerpool0-0.
        moves: Whether there was no quota or capacity, so that the run may succeed on other hardware or in another
            region.
    """

    step: str | None
    message: str
    setting: str | None = None
    fix: str | None = None
    traceback: str | None = None
    job: str | None = None
    replica: str | None = None
    moves: bool = False


@dataclass(kw_only=True)
class RefusalRecord:
    """A try of a run for which there was no quota or capacity: on which hardware, where, when and why."""

    hardware: str
    region: str
    job: str
    started: datetime
    ended: datetime
    message: str

    @property
    def title(self) -> str:
        """Its hardware and region."""
        return f"{self.hardware} in {self.region}"


@dataclass(kw_only=True)
class CostRecord:
    """An estimate in US dollars of what the training cost, by its times and the list prices of the date `prices`.

    `seconds` is how long its machines ran, in all tries of the run; `without` is what the platform adds to the list
    prices at a rate that is not known.
    """

    dollars: float
    seconds: float
    prices: str
    without: str = ""

    def __str__(self) -> str:
        least, without = ("at least ", f" without {self.without}") if self.without else ("", "")
        hours = f"{self.seconds / 3600:.2f} h of training"
        return f"{least}${self.dollars:,.2f} for {hours}: an estimate by list prices of {self.prices}{without}"


@dataclass(kw_only=True)
class Part:
    """The steps that a run executes, from `first` to `last`, on what `source`, an earlier run, has of those before.

    `source` is None if there are none before.
    """

    source: str | None = None
    first: str
    last: str


@dataclass(kw_only=True)
class RunRecord:
    """The record of a run.

    Attributes:
        format: The version of the format of `run.json`.
        run_id: The name of the run's folder.
        name: The name of the configuration, and of the model.
        platform: The name of the platform that executes it.
        hardware: The text of the hardware on which it trains.
        rehearsal: The number of training steps of a rehearsal; 0 for a run.
        part: The steps that it executes, if those are only some, on the inputs of an earlier run.
        arguments: The arguments of steps that no setting has, by step: `folds` and `fold` of prepare_data (`--folds`),
            and `seed_metrics` of evaluate (`--repeat`).
        study: The name of the search to which it belongs, which stops it with the status pruned if other trials are
            better.
        searches: Whether its training is itself a search.
        runner: Whether local steps are processes or containers.
        status: The status of the whole run.
        created: When the run was created.
        started: When its last command was started, in seconds since 1970; None on a remote platform.
        ended: When the run ended.
        seconds: How long it took; None until it has ended.
        process: The process id of the command of this machine that executes it; None if there is none.
        job: The run's name on a remote platform (on Vertex AI, the job's resource name).
        console: The URL of its page on a remote platform.
        tracked: The id of the run that the platform itself has created in MLflow.
        tries: The number of jobs on a remote platform: each resume creates a new one.
        requested: When the platform was last asked to create the job; None once it has confirmed that.
        trained: Whether an earlier job finished the training.
        region: The region in which it runs; None on a platform without regions.
        refused: The tries without quota or capacity.
        steps: The steps in their order.
        champion: A description of the registered model to beat, as passed to the steps.
        report: The path or URL of the report of the evaluation.
        statistics: The path or URL of the report of the data.
        error: Why it failed.
        cost: An estimate of what the training cost; None if that is nothing, or its price is not known.
        at_most: What a training in progress may cost in US dollars; None if its price is not known.
        labels: The labels of the run on Google Cloud.
        choice: From what the hardware was chosen, and why, if the configuration left it open.
        estimate: What the training was estimated to take: `seconds` of all steps and `cost` in US dollars, each with
            `low`, `middle` and `high`; None if it was not.
    """

    format: int = formats.FORMAT
    run_id: str
    name: str
    platform: str
    hardware: str
    rehearsal: int = 0
    part: Part | None = None
    arguments: dict[str, JsonObject] = field(default_factory=dict)
    study: str | None = None
    searches: bool = False
    runner: Literal["process", "docker"] = "process"
    status: Status = "running"
    created: datetime
    started: float | None = None
    ended: datetime | None = None
    seconds: float | None = None
    process: int | None = None
    job: str | None = None
    console: str | None = None
    tracked: str | None = None
    tries: int = 1
    requested: datetime | None = None
    trained: bool = False
    region: str | None = None
    refused: list[RefusalRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    champion: str | None = None
    report: str | None = None
    statistics: str | None = None
    error: ErrorRecord | None = None
    cost: CostRecord | None = None
    at_most: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    choice: JsonObject | None = None
    estimate: JsonObject | None = None

    def __post_init__(self) -> None:
        if self.format > formats.FORMAT:
            raise ValueError(f"format {self.format}: a later version wrote this record")

    def is_being_submitted(self) -> bool:
        """Return whether the last request to create the job may still arrive."""
        return self.requested is not None and datetime.now(UTC) < self.requested + CREATION_TIME

    def step(self, name: str) -> StepRecord:
        """Return the record of the step called `name`."""
        return next(step for step in self.steps if step.name == name)

    def outputs(self, step: str) -> JsonObject:
        """Return the outputs of a step; {} if the run does not have it, or it has not ended."""
        return next((record.outputs for record in self.steps if record.name == step), {})

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test split; {} before the evaluation."""
        metrics: dict[str, float] = self.outputs("evaluate").get("metrics", {})
        return metrics

    @property
    def verdict(self) -> JsonObject | None:
        """The gate's verdict; None before the evaluation."""
        return self.outputs("evaluate").get("verdict")

    @property
    def model(self) -> str | None:
        """The folder or resource name of the registered version; None if the model was not registered."""
        return self.outputs("register_model").get("model")

    @property
    def is_rejected(self) -> bool:
        """Whether `--require-promotion` fails: the model was not promoted, and is not the champion itself."""
        return self.verdict is not None and self.verdict["decision"] not in ("promote", "unchanged")

    @property
    def registered(self) -> str:
        """The model's registered version, such as "digits/3", on Vertex AI "digits@3"; "" if it was not registered."""
        parts = (self.model or "").split("/")
        return parts[-1] if "@" in parts[-1] else "/".join(parts[-2:])

    def add_cost(self, bill: Bill | None, seconds: float, step_costs: Mapping[str, float] | None = None) -> None:
        """Add the cost of a training whose machines ran for `seconds`, if its price is known, and that of other steps.

        Args:
            bill: The price of the training; None if it costs nothing.
            seconds: In this try.
            step_costs: US dollars by the names of other steps, in this try.
        """
        for step in self.steps:
            if step_costs and step.name in step_costs:
                step.dollars = round((step.dollars or 0.0) + step_costs[step.name], 4)
        price = bill.per_hour if bill else None
        if bill is None or price is None or seconds <= 0:
            return
        before = (self.cost.dollars, self.cost.seconds) if self.cost else (0.0, 0.0)
        self.cost = CostRecord(
            dollars=round(before[0] + price * seconds / 3600, 4),
            seconds=round(before[1] + seconds, 3),
            prices=bill.date,
            without=bill.without,
        )
        self.step("train").dollars = self.cost.dollars

    def cancel(self) -> None:
        """Set the status of the run, and of its running steps, to cancelled."""
        self.status = "cancelled"
        for step in self.steps:
            if step.status == "running":
                step.status = "cancelled"

    def skip_pending(self) -> None:
        """Mark the steps that have not started as skipped."""
        for step in self.steps:
            if step.status == "pending":
                step.status = "skipped"

    def as_json(self) -> str:
        """Return the text of `run.json`."""
        return dataclass_json.text(self) + "\n"

    def as_dict(self) -> JsonObject:
        """Return the record for other programs: what `run.json` has, and the results among the steps' outputs."""
        results = {"metrics": self.metrics, "verdict": self.verdict, "model": self.model}
        return {**dataclass_json.plain(self), **dataclass_json.plain(results)}


class Watcher(Protocol):
    """Receives a run's progress events; see slipway.core.events."""

    def event(self, record: RunRecord, event: JsonObject) -> None:
        """Receive one event, after it was applied to the record."""


class RunFolder:
    """A run's folder. `path` is absolute; `lock` is the descriptor of its lock while it is `held`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run_id = self.path.name
        self.record_file = self.path / "run.json"
        self.configuration_file = self.path / "config.yaml"
        self.specification_file = self.path / "spec.yaml"
        self.image_file = self.path / "image"  # the name of the steps' image, if they run in containers
        self.events_file = self.path / "events.jsonl"
        self.report_file = self.path / "report.html"
        self.statistics_file = self.path / "statistics.html"
        self.classification_file = self.path / "classification.json"  # of a run on another platform
        self.logs = self.path / "logs"
        self.artifacts = self.path / "artifacts"
        self.lock_file = self.path / ".lock"  # locked while a command executes the run
        self.lock: int | None = None

    def read(self) -> RunRecord:
        """Return the record; a run on this machine that no process executes is returned as failed, not as running.

        Raises:
            UserError: The folder has no readable record.
        """
        record = self._stored()
        if self._is_abandoned(record):
            record = self._stored()  # it may have ended meanwhile
        if self._is_abandoned(record):
            record.status = "failed"
            record.error = ErrorRecord(
                step=next((step.name for step in record.steps if step.status == "running"), None),
                message="The run's process no longer exists: it was killed, or the machine was restarted.",
                fix=f"slipway run --resume {record.run_id}",
            )
        return record

    def _is_abandoned(self, record: RunRecord) -> bool:
        if record.status != "running" or record.process is None:
            return False
        holder = self.holder()
        return holder is None or holder.pid != record.process  # another command is about to resume it

    def _stored(self) -> RunRecord:
        content = b""
        try:
            content = self.record_file.read_bytes()
            return dataclass_json.read(RunRecord, content)
        except (OSError, ValueError):
            formats.check_text(content, self.record_file)
            file = shlex.quote(str(self.record_file))
            aside = f"mv {file} {file}.damaged, after which the folder is no run; its files stay"
            raise UserError(
                f"{self.path} contains no readable run record.",
                fix=aside if self.record_file.exists() else "slipway list",
            ) from None

    def write(self, record: RunRecord) -> None:
        """Write the record atomically; with the first one, `latest` points to the run.

        If the first one cannot be written, the folder is removed.
        """
        is_new = not self.record_file.exists()
        try:
            replace_file(self.record_file, record.as_json().encode())
            if is_new or not (self.path.parent / LATEST).is_symlink():
                _point_latest_to(self)
        except OSError:
            if is_new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Return a context in which only this process, and those that inherit `lock`, execute the run.

        Raises:
            UserError: Another command executes it.
        """
        self.lock = lock.acquire(self.lock_file, self.run_id)
        try:
            yield
        finally:
            os.close(self.lock)
            self.lock = None

    def history_file(self, record: RunRecord) -> Path:
        """Return the history of the training, which another run may have executed; it may not exist."""
        from slipway.trainer.metrics.history import FILE_NAME  # light commands do not need it

        candidates = (self.path / "train" / "logs" / FILE_NAME, self.path / FILE_NAME)  # the second is a copy
        model = record.outputs("train").get("model", "")
        return next((file for file in candidates if file.is_file()), Path(str(model)) / FILE_NAME)

    def holder(self) -> lock.Holder | None:
        """Return the process that executes the run on this machine, or None if none does."""
        return lock.holder(self.lock_file)


def estimate_on(record: RunRecord) -> JsonObject | None:
    """Return what was estimated of the hardware on which a run trains now, of the candidates that were chosen."""
    choice = record.choice or {}
    return dict(zip(choice.get("chosen", ()), choice.get("estimates", ()), strict=False)).get(record.hardware)


def create(config: RunConfig, root: Path = ROOT) -> RunFolder:
    """Create a new run's folder with its configuration; on failure, remove the folder."""
    import secrets  # light commands create no runs

    from slipway.pipelines.runs import provenance

    latest = root / LATEST
    if latest.exists() and not latest.is_symlink():
        raise UserError(
            f"{latest} is not the link to the newest run, for which Slipway needs this name.",
            fix=f"mv {latest} {root / 'latest-renamed'}",
        )
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    root.mkdir(parents=True, exist_ok=True)
    while True:
        folder = RunFolder(root / f"{config.name}-{stamp}-{secrets.token_hex(2)}")
        with contextlib.suppress(FileExistsError):  # another run has begun in this second, with the same number
            folder.path.mkdir()
            break
    try:
        folder.logs.mkdir()
        folder.artifacts.mkdir()
        replace_file(folder.configuration_file, config.as_yaml().encode())
        made_with = json.dumps(provenance.of_here(config), indent=2).encode()
        replace_file(folder.path / provenance.FILE_NAME, made_with, durable=False)
        for parent in (folder.path.parent, folder.path.parent.parent):  # both may be new
            sync(parent)
    except OSError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def discard(folder: RunFolder) -> None:
    """Remove the folder of a run that was refused before it started, and point `latest` to the newest other run."""
    shutil.rmtree(folder.path)
    latest = folder.path.parent / LATEST
    if latest.is_symlink() and not latest.exists():
        newest = next(folders(folder.path.parent), None)
        if newest is None:
            latest.unlink()
        else:
            _point_latest_to(newest)


def _point_latest_to(folder: RunFolder) -> None:
    beside = folder.path.parent / f".latest.{folder.run_id}"
    try:
        beside.symlink_to(folder.run_id)
        beside.replace(folder.path.parent / LATEST)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to report
            beside.unlink()
        raise
    sync(folder.path.parent)


def find(run_id: str, root: Path | None = None) -> RunFolder:
    """Return the folder of a run by its id, or of the newest run for "latest".

    Raises:
        UserError: The run does not exist.
    """
    root = root or in_project(ROOT)
    path = root / run_id
    with contextlib.suppress(OSError):  # no file system accepts a name of 300 characters
        if path.is_dir() and path.resolve().parent == root.resolve():  # neither "" nor ".."
            return RunFolder(path.resolve())
    known = [folder.run_id for folder in folders(root)]
    near = nearest(run_id, known)
    raise UserError(
        f"There is no run {run_id} in {root}/.",
        setting="RUN",
        value=run_id,
        allowed="a run id from `slipway list`, or latest" if known else "there are no runs yet",
        nearest=near,
        fix="slipway list" if known else "slipway run",
    )


def folders(root: Path | None = None) -> Iterator[RunFolder]:
    """Yield the folders of all runs, newest first."""
    root = root or in_project(ROOT)
    if root.is_dir():
        paths = (path for path in root.iterdir() if not path.is_symlink() and (path / "run.json").is_file())
        yield from (RunFolder(path) for path in sorted(paths, key=lambda path: path.stat().st_ctime, reverse=True))
