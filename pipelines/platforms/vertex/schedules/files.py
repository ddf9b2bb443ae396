"""Load and validate schedule files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from pydantic import ValidationError

from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.config import RunConfig, load, vertex_of
from slipway.pipelines.config.errors import explain_validation
from slipway.pipelines.config.files import Kind, check_configuration
from slipway.pipelines.config.schedule import ScheduleSettings
from slipway.pipelines.config.values import read_yaml
from slipway.pipelines.parameters import is_parameter
from slipway.pipelines.platforms.vertex.schedules.cron import parse, run_times

FOLDER = Path("configs/schedules")
KIND = Kind(
    name="schedule",
    setting="NAME",
    docs="docs/schedules.md",
    pattern=r"^[a-z][a-z0-9-]*$",
    longest=100,
    allowed="lowercase letters, digits and hyphens, starting with a letter",
)


@dataclass(frozen=True)
class ScheduleFile:
    """A validated schedule file with its run configuration and timezone-aware times.

    `defaults` is the configuration without the schedule's overrides of pipeline parameters: two schedules that differ
    only in these have the same pipeline spec.
    """

    path: Path
    settings: ScheduleSettings
    config: RunConfig
    defaults: RunConfig
    cron: str
    zone: ZoneInfo
    start: datetime | None
    end: datetime | None

    @property
    def name(self) -> str:
        """Schedule name."""
        return self.path.stem

    @property
    def cron_text(self) -> str:
        """The cron expression in Vertex AI's format, with the time zone."""
        return f"TZ={self.zone.key} {self.cron}"

    def next_times(self, count: int, now: datetime | None = None) -> list[datetime]:
        """Return the next run times, in the schedule's time zone."""
        now = now or datetime.now(UTC)
        times: list[datetime] = []
        for moment in run_times(self.cron, max(now, self.start or now), self.zone):
            if len(times) == count or (self.end is not None and moment > self.end):
                break
            times.append(moment.astimezone(self.zone))
        return times


def read_all(names: Sequence[str] = (), folder: Path = FOLDER) -> list[ScheduleFile]:
    """Load the schedule files called `names`, or all of them.

    Raises:
        UserError: A file is missing or invalid.
    """
    return [read(path) for path in KIND.paths(names, folder)]


def read(path: Path) -> ScheduleFile:
    """Load and validate one schedule file.

    Raises:
        UserError: The file or the run's configuration is invalid.
    """
    KIND.check_name(path)
    settings = _settings(path)
    try:
        cron = parse(settings.cron, "cron")
    except UserError as error:
        raise UserError(**{**error.as_dict(), "message": f"{path}: {error.message}"}) from None
    zone = _zone(settings.time_zone, path)
    start, end = (_in_zone(time, zone) for time in (settings.start, settings.end))
    if start is not None and end is not None and start >= end:
        raise UserError(
            f"{path}: start is not before end.",
            setting="start",
            value=start.isoformat(),
            allowed=f"a time before end, {end.isoformat()}",
            fix=f"correct start or end in {path}",
        )
    check_configuration(settings.configuration, path)
    config = load(settings.configuration, settings.set, settings.hardware)
    vertex_of(config)
    return ScheduleFile(path, settings, config, _defaults(settings, config), cron, zone, start, end)


def _defaults(settings: ScheduleSettings, config: RunConfig) -> RunConfig:
    compiled = [text for text in settings.set if not is_parameter(text.partition("=")[0])]
    try:
        return load(settings.configuration, compiled, settings.hardware)
    except UserError:  # only the overrides make it valid
        return config


def _settings(path: Path) -> ScheduleSettings:
    values = read_yaml(path)
    try:
        return ScheduleSettings.model_validate(values)
    except ValidationError as error:
        problem = explain_validation(ScheduleSettings, error, str(path), values)
        if str(problem.fix).startswith("--set"):  # valid for run configurations only
            problem.fix = f"{problem.setting}: {problem.nearest or 'VALUE'} in {path}"
        raise problem from None


def _zone(name: str, path: Path) -> ZoneInfo:
    known = available_timezones()
    if name not in known:
        near = _nearest_zone(name, known)
        raise UserError(
            f"{path}: time zone {name} does not exist.",
            setting="time_zone",
            value=name,
            allowed="an IANA time zone, such as Europe/Berlin",
            nearest=near,
            fix=f"time_zone: {near or 'UTC'}",
        )
    return ZoneInfo(name)


def _nearest_zone(name: str, known: set[str]) -> str | None:
    """Return the time zone closest to `name`, which may be a city."""
    wanted = name.strip().replace(" ", "_").lower()
    by_city = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known) if "/" in zone}
    return by_city.get(wanted) or nearest(wanted, known) or nearest(wanted.rpartition("/")[2], by_city.values())


def _in_zone(time: datetime | None, zone: ZoneInfo) -> datetime | None:
    """Add the schedule's time zone to a time without one."""
    if time is None:
        return None
    return time.replace(tzinfo=zone) if time.tzinfo is None else time
