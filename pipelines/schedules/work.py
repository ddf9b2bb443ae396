"""What `slipway schedule` does: each file's schedule compared, applied, paused, resumed, deleted."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO
from zoneinfo import ZoneInfo

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors import as_user_error
from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.config import RunConfig, VertexSettings
from slipway.pipelines.doctor import refuse_on_failure
from slipway.pipelines.doctor.check import Subject
from slipway.pipelines.images.images import Images, ensure_images, known_images
from slipway.pipelines.platforms.vertex.submission import compile_pipeline, facts_of, pipeline_job, settings_of
from slipway.pipelines.schedules.difference import NAME_PREFIX, Difference, differences, needs_new, wanted
from slipway.pipelines.schedules.files import ScheduleFile, read_all
from slipway.pipelines.schedules.service import Schedules

# How many lines of differences are shown of one schedule; --json gives all.
SHOWN_DIFFERENCES = 12
NEXT_RUNS = 3
Say = Callable[[str], None]


@dataclass
class Result:
    """One schedule: where it is on the service (None: nowhere), what was found, what was done."""

    name: str
    schedule: Any = None
    differences: list[Difference] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    note: str = ""
    file: ScheduleFile | None = None
    settings: VertexSettings | None = None

    @property
    def zone(self) -> ZoneInfo:
        """The clocks that times are shown by."""
        return self.file.zone if self.file else ZoneInfo("UTC")

    @property
    def state(self) -> str:
        """active, paused, completed; absent where Vertex AI has none of that name."""
        return "absent" if self.schedule is None else str(self.schedule.state.name).lower()

    @property
    def next_runs(self) -> list[datetime]:
        """The next times, as the file has them and the service's state lets them come."""
        if self.file is None or self.state in ("paused", "completed"):
            return []
        return self.file.next_times(NEXT_RUNS)

    @property
    def runs(self) -> int:
        """How many runs it has started."""
        return 0 if self.schedule is None else int(self.schedule.started_run_count)

    @property
    def title(self) -> str:
        """Its name and its resource's."""
        return f"{self.name} ({self.schedule.name})" if self.schedule is not None else self.name

    @property
    def state_text(self) -> str:
        """Its state, and when it starts its next run."""
        following = None if self.schedule is None else self.schedule.next_run_time
        if self.state != "active" or not following:
            return self.state
        return f"{self.state}, next run {_clock(following.astimezone(self.zone))}"

    def lines(self) -> list[str]:
        """What a person is told."""
        lines = [f"{self.title}: {self.state_text}"]
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

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "name": self.name,
            "schedule": None if self.schedule is None else self.schedule.name,
            "state": self.state,
            "runs": self.runs,
            "differences": [
                {"field": one.field, "service": _plain(one.service), "file": _plain(one.file)}
                for one in self.differences
            ],
            "done": self.done,
            "note": self.note or None,
            "next_runs": [time.isoformat() for time in self.next_runs],
        }


def compare(names: Sequence[str], say: Say) -> list[Result]:
    """Each file against what Vertex AI has, and what it has without a file."""
    files = read_all(names)
    results = []
    for file in files:
        settings = settings_of(file.config)
        with _refusals(file.config, f"The schedule {file.name} could not be looked at"):
            want = request_of(file, known_images(file.config, say))
            results.append(_compared(file, want, Schedules(settings.connection).named(file.name)))
    return results if names else results + _without_file(files)


def apply(names: Sequence[str], log: TextIO, say: Say) -> list[Result]:
    """Make each file's schedule so; it is checked, and its images are built first, as for a run by hand."""
    results = []
    for file in read_all(names):
        _check_end(file)
        subject = Subject(file.config, "vertex", rehearsal=False, folder=Path.cwd())
        refuse_on_failure(subject, submitting=True)
        settings = settings_of(file.config)
        with _refusals(file.config, f"Vertex AI refused the schedule {file.name}"):
            want = request_of(file, ensure_images(file.config, log, say))
            applied = Schedules(settings.connection).apply(file.name, want, file.settings.paused)
        note = "" if applied.done else f"nothing to do: it is what {file.path} says"
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


def doomed(name: str | None) -> list[Result]:
    """The schedules that deleting `name` (None: every file's) would delete; one may have lost its file.

    Raises:
        UserError: There is none.
    """
    files = read_all() if name is None else [file for file in read_all() if file.name == name]
    found = []
    for file in files:
        settings = settings_of(file.config)
        with _refusals(file.config, "The schedules could not be listed"):
            schedules = Schedules(settings.connection).named(file.name)
        found += [Result(file.name, schedule, file=file, settings=settings) for schedule in schedules]
    if name is not None and not files:
        found = [result for result in _without_file(read_all()) if result.name == name]
    if not found:
        others = [result.name for result in _without_file(read_all())]
        raise UserError(
            f"Vertex AI has no schedule {name}." if name else "Vertex AI has none of these schedules.",
            setting="NAME",
            value=name,
            allowed=", ".join([*(file.name for file in read_all()), *others]) or None,
            nearest=nearest(name, [*(file.name for file in read_all()), *others]) if name else None,
            fix="slipway schedule diff",
        )
    return found


def delete(results: list[Result]) -> list[Result]:
    """Delete what `doomed` gave."""
    for result in results:
        assert result.settings is not None
        Schedules(result.settings.connection).delete(result.schedule.name)
        result.done.append(f"deleted {result.schedule.name}")
        result.schedule, result.file, result.note = None, None, ""
    return results


def request_of(file: ScheduleFile, images: Images) -> Any:
    """The Schedule that a file asks for, around the job that a run by hand of the same configuration is."""
    with tempfile.TemporaryDirectory() as folder:
        specification = Path(folder) / "spec.yaml"
        compile_pipeline(file.config, images, specification)
        job = pipeline_job(file.config, specification)
    return wanted(file, job, settings_of(file.config).connection.parent)


def _compared(file: ScheduleFile, want: Any, found: list[Any]) -> Result:
    if not found:
        return Result(file.name, note=f"to be made: slipway schedule apply {file.name}", file=file)
    have = found[0]
    left = differences(want, have, file.settings.paused, datetime.now(UTC))
    note = f"as {file.path} says"
    if left:
        note = "to be made anew" if needs_new(have, left) else "to be changed"
        note += f": slipway schedule apply {file.name}"
    if len(found) > 1:
        note += f"; there are {len(found)} of this name, the younger ones are to be deleted"
    return Result(file.name, have, left, note=note, file=file)


def _without_file(files: list[ScheduleFile]) -> list[Result]:
    """What Vertex AI has, where the files' schedules are, under names that no file has."""
    known = {file.name for file in files}
    places: dict[Any, RunConfig] = {}
    for file in files:
        settings = settings_of(file.config)
        places[(settings.project, settings.region, *sorted(settings.endpoints.items()))] = file.config
    found = []
    for config in places.values():
        with _refusals(config, "The schedules could not be listed"):
            every = Schedules(settings_of(config).connection).all()
        for schedule in every:
            name = schedule.display_name.removeprefix(NAME_PREFIX)
            if name not in known:
                note = f"it has no file: slipway schedule delete {name}"
                found.append(Result(name, schedule, note=note, settings=settings_of(config)))
    return found


def _steered(file: ScheduleFile, state: str, steer: Callable[[Schedules, Any], None]) -> Result:
    """Bring a schedule into a state, unless it is in it."""
    connection: Connection = settings_of(file.config).connection
    schedules = Schedules(connection)
    with _refusals(file.config, f"Vertex AI refused that the schedule {file.name} is {state}"):
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
            before.note = f"it is {state} already"
            return before
        if before.state == "completed":
            raise UserError(
                f"The schedule {file.name} has ended, after {before.runs} runs.",
                setting="NAME",
                value=file.name,
                fix=f"set end or max_runs in {file.path}, then slipway schedule apply {file.name}",
            )
        steer(schedules, found[0])
        after = Result(file.name, schedules.named(file.name)[0], file=file, done=[f"{before.state} → {state}"])
    if file.settings.paused is not None and file.settings.paused != (state == "paused"):
        after.note = f"{file.path} says paused: {str(file.settings.paused).lower()}, as the next apply makes it"
    return after


def _check_end(file: ScheduleFile) -> None:
    if file.end is not None and file.end <= datetime.now(UTC):
        raise UserError(
            f"{file.path}: the schedule's end is past.",
            setting="end",
            value=file.end.isoformat(),
            allowed="a time to come, or none",
            fix=f"correct end in {file.path}, or slipway schedule delete {file.name}",
        )


@contextlib.contextmanager
def _refusals(config: RunConfig, doing: str) -> Iterator[None]:
    """What Google's clients raise within, as one sentence with its fix."""
    from google.api_core.exceptions import GoogleAPIError

    try:
        yield
    except GoogleAPIError as error:
        raise as_user_error(error, doing, facts_of(config)) from None


def _clock(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z")


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
