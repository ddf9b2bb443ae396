"""The operations of `slipway schedule`: compare, apply, pause, resume and delete schedules."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from zoneinfo import ZoneInfo

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors import as_user_error
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.checks import Context
from slipway.pipelines.config.config import RunConfig, vertex_of
from slipway.pipelines.doctor import refuse_on_failure
from slipway.pipelines.images.images import Images, ensure_images, known_images
from slipway.pipelines.platforms.vertex.platform import VertexPlatform
from slipway.pipelines.platforms.vertex.schedules.difference import (
    NAME_PREFIX,
    Difference,
    desired,
    differences,
    needs_new,
)
from slipway.pipelines.platforms.vertex.schedules.files import ScheduleFile, read_all
from slipway.pipelines.platforms.vertex.schedules.service import Schedules, refused
from slipway.pipelines.platforms.vertex.settings import VertexSettings
from slipway.pipelines.platforms.vertex.submission import compile_pipeline, facts_of, pipeline_job, refusals

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Schedule

# Number of differences shown per schedule; --json shows all.
SHOWN_DIFFERENCES = 12
NEXT_RUNS = 3
RIGHTS = "aiplatform.schedules"
Say = Callable[[str], None]


@dataclass
class Result:
    """One schedule: its resource on Vertex AI (None if absent), its differences and the actions taken."""

    name: str
    schedule: Schedule | None = None
    differences: list[Difference] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    note: str = ""
    file: ScheduleFile | None = None
    settings: VertexSettings | None = None

    @property
    def zone(self) -> ZoneInfo:
        """Time zone for display."""
        return self.file.zone if self.file else ZoneInfo("UTC")

    @property
    def state(self) -> str:
        """active, paused or completed; absent if Vertex AI has no schedule with that name."""
        return "absent" if self.schedule is None else str(self.schedule.state.name).lower()

    @property
    def next_runs(self) -> list[datetime]:
        """Next run times from the file; empty if paused or completed."""
        if self.file is None or self.state in ("paused", "completed"):
            return []
        return self.file.next_times(NEXT_RUNS)

    @property
    def runs(self) -> int:
        """Number of runs started."""
        return 0 if self.schedule is None else int(self.schedule.started_run_count)

    @property
    def title(self) -> str:
        """Name with the resource name."""
        return f"{self.name} ({self.schedule.name})" if self.schedule is not None else self.name

    @property
    def state_text(self) -> str:
        """State with the next run time."""
        following = None if self.schedule is None else self.schedule.next_run_time
        if self.state != "active" or not following:
            return self.state
        return f"{self.state}, next run {_clock(following.astimezone(self.zone))}"

    @property
    def last_run(self) -> datetime | None:
        """When the last run was due; None if none was."""
        return None if self.schedule is None else self.schedule.last_scheduled_run_response.scheduled_run_time

    @property
    def refused(self) -> UserError | None:
        """Why the last run was not started; None if it was."""
        if self.schedule is None or not (why := refused(self.schedule)):
            return None
        return as_user_error(why, "refused", facts_of(self.file.config) if self.file else {})

    def lines(self) -> list[str]:
        """Return the output lines."""
        lines = [f"{self.title}: {self.state_text}"]
        if self.last_run:
            error, due = self.refused, _clock(self.last_run.astimezone(self.zone))
            lines.append(f"  last run {due}: {error.message if error else 'started'}")
            lines += [f"  fix: {error.fix}"] if error else []
        lines += [f"  {text}" for text in self.done]
        if not self.done:
            lines += [f"  {difference}" for difference in self.differences[:SHOWN_DIFFERENCES]]
            if len(self.differences) > SHOWN_DIFFERENCES:
                lines.append(f"  … and {len(self.differences) - SHOWN_DIFFERENCES} more (--json)")
        if self.note:
            lines.append(f"  {self.note}")
        if self.state in ("absent", "active") and self.next_runs:
            lines.append("  next: " + ", ".join(_clock(time) for time in self.next_runs))
        return lines

    def as_dict(self) -> JsonObject:
        """Return the result for --json."""
        return {
            "name": self.name,
            "schedule": None if self.schedule is None else self.schedule.name,
            "state": self.state,
            "runs": self.runs,
            "last_run": self.last_run and self.last_run.isoformat(),
            "refused": self.refused.as_dict() if self.refused else None,
            "differences": [
                {"field": one.field, "service": _plain(one.service), "file": _plain(one.file)}
                for one in self.differences
            ],
            "done": self.done,
            "note": self.note or None,
            "next_runs": [time.isoformat() for time in self.next_runs],
        }


def current() -> list[Result]:
    """Return the schedule of each file, and the schedules without a file."""
    files = read_all()
    results = []
    for file in files:
        with refusals(file.config, "list the schedules", f"{RIGHTS}.list"):
            found = Schedules(vertex_of(file.config).connection).named(file.name)
        note = "" if found else f"to create it: slipway schedule apply {file.name}"
        results.append(Result(file.name, found[0] if found else None, note=note, file=file))
    return results + _without_file(files)


def compare(names: Sequence[str], say: Say) -> list[Result]:
    """Compare each file with Vertex AI; also list schedules without a file."""
    files = read_all(names)
    results = []
    for file in files:
        settings = vertex_of(file.config)
        with refusals(file.config, f"read schedule {file.name}", f"{RIGHTS}.list"):
            want = request_of(file, known_images(file.config, say))
            results.append(_compared(file, want, Schedules(settings.connection).named(file.name)))
    return results if names else results + _without_file(files)


def apply(names: Sequence[str], log: TextIO, say: Say) -> list[Result]:
    """Apply each file: run the checks, build the images, then create or update the schedule."""
    results = []
    for file in read_all(names):
        _check_end(file)
        context = Context(file.config, VertexPlatform(), rehearsal=False, folder=Path.cwd())
        for warning in refuse_on_failure(context, submitting=True):
            say(f"warning: {warning.check}: {warning.found}")
        settings = vertex_of(file.config)
        with refusals(file.config, f"apply schedule {file.name}", f"{RIGHTS}.create"):
            want = request_of(file, ensure_images(file.config, log, say))
            applied = Schedules(settings.connection).apply(file.name, want, file.settings.paused)
        note = "" if applied.done else f"unchanged: matches {file.path}"
        results.append(Result(file.name, applied.schedule, applied.found, applied.done, note, file))
    return results


def pause(names: Sequence[str]) -> list[Result]:
    """Pause each file's schedule."""
    return [_steered(file, "paused", lambda schedules, one: schedules.pause(one.name)) for file in read_all(names)]


def resume(names: Sequence[str], *, catch_up: bool) -> list[Result]:
    """Resume each file's schedule."""
    return [
        _steered(file, "active", lambda schedules, one: schedules.resume(one.name, catch_up=catch_up))
        for file in read_all(names)
    ]


def to_delete(name: str | None) -> list[Result]:
    """Return the schedules that deleting `name` (None: all files) would delete, with or without a file.

    Raises:
        UserError: No such schedule exists.
    """
    files = read_all() if name is None else [file for file in read_all() if file.name == name]
    found = []
    for file in files:
        settings = vertex_of(file.config)
        with refusals(file.config, "list the schedules", f"{RIGHTS}.list"):
            schedules = Schedules(settings.connection).named(file.name)
        found += [Result(file.name, schedule, file=file, settings=settings) for schedule in schedules]
    if name is not None and not files:
        found = [result for result in _without_file(read_all()) if result.name == name]
    if not found:
        if name is None or files:
            what = f"no schedule {name}" if name else "none of these schedules"
            raise UserError(f"Vertex AI has {what}.", setting="NAME", value=name, fix="slipway schedule diff")
        known = [*(file.name for file in read_all()), *(result.name for result in _without_file(read_all()))]
        raise UserError.unknown("schedule", name, known, setting="NAME", fix="slipway schedule diff")
    return found


def delete(results: list[Result]) -> list[Result]:
    """Delete the schedules that `to_delete` returned."""
    for result in results:
        assert result.settings is not None and result.schedule is not None
        Schedules(result.settings.connection).delete(result.schedule.name)
        result.done.append(f"deleted {result.schedule.name}")
        result.schedule, result.file, result.note = None, None, ""
    return results


def request_of(file: ScheduleFile, images: Images) -> Schedule:
    """Return the desired Schedule of a file; its job is that of a manual run, but for default parameters."""
    with tempfile.TemporaryDirectory() as folder:
        specification = Path(folder) / "spec.yaml"
        compile_pipeline(file.config, images, specification, defaults=file.defaults)
        job = pipeline_job(file.config, specification)
    return desired(file, job, vertex_of(file.config).connection.parent)


def _compared(file: ScheduleFile, want: Schedule, found: list[Schedule]) -> Result:
    if not found:
        return Result(file.name, note=f"to create it: slipway schedule apply {file.name}", file=file)
    have = found[0]
    left = differences(want, have, file.settings.paused, datetime.now(UTC))
    note = f"matches {file.path}"
    if left:
        note = "to recreate it" if needs_new(have, left) else "to update it"
        note += f": slipway schedule apply {file.name}"
    if len(found) > 1:
        note += f"; {len(found)} schedules have this name, apply deletes all but the oldest"
    return Result(file.name, have, left, note=note, file=file)


def _without_file(files: list[ScheduleFile]) -> list[Result]:
    """Return the schedules without a file, in the projects and regions that the files use."""
    known = {file.name for file in files}
    places: dict[object, RunConfig] = {}
    for file in files:
        settings = vertex_of(file.config)
        places[(settings.project, settings.region, *sorted(settings.endpoints.items()))] = file.config
    found = []
    for config in places.values():
        with refusals(config, "list the schedules", f"{RIGHTS}.list"):
            every = Schedules(vertex_of(config).connection).all()
        for schedule in every:
            name = schedule.display_name.removeprefix(NAME_PREFIX)
            if name not in known:
                note = f"no file; to delete it: slipway schedule delete {name}"
                found.append(Result(name, schedule, note=note, settings=vertex_of(config)))
    return found


def _steered(file: ScheduleFile, state: str, steer: Callable[[Schedules, Schedule], None]) -> Result:
    """Pause or resume a schedule, unless it is in that state already."""
    connection: Connection = vertex_of(file.config).connection
    schedules = Schedules(connection)
    with refusals(file.config, f"make schedule {file.name} {state}", f"{RIGHTS}.update"):
        found = schedules.named(file.name)
        if not found:
            raise UserError(
                f"Vertex AI has no schedule {file.name} yet.",
                setting="NAME",
                value=file.name,
                fix=f"slipway schedule apply {file.name}",
            )
        before = Result(file.name, found[0], file=file)
        if before.state == state:
            before.note = f"already {state}"
            return before
        if before.state == "completed":
            raise UserError(
                f"Schedule {file.name} is completed; it started {before.runs} runs.",
                setting="NAME",
                value=file.name,
                fix=f"change end or max_runs in {file.path}, then slipway schedule apply {file.name}",
            )
        steer(schedules, found[0])
        after = Result(file.name, schedules.named(file.name)[0], file=file, done=[f"{before.state} → {state}"])
    if file.settings.paused is not None and file.settings.paused != (state == "paused"):
        after.note = f"{file.path} sets paused: {str(file.settings.paused).lower()}; the next apply restores that"
    return after


def _check_end(file: ScheduleFile) -> None:
    if file.end is not None and file.end <= datetime.now(UTC):
        raise UserError(
            f"{file.path}: end is in the past.",
            setting="end",
            value=file.end.isoformat(),
            allowed="a time in the future, or none",
            fix=f"correct end in {file.path}, or slipway schedule delete {file.name}",
        )


def _clock(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z")


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
