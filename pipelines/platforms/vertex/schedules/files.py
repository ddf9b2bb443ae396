"""Load and validate schedule files."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from slipway import extensions
from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.automatic import chosen
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.config.files import ConfigurationFile, Files, errors_in
from slipway.pipelines.parameters import is_parameter
from slipway.pipelines.platforms.vertex.schedules.cron import parse, run_times
from slipway.pipelines.platforms.vertex.schedules.settings import ScheduleSettings
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.terminal import say

# The platform, whose module imports this one.
PLATFORM = "slipway.pipelines.platforms.vertex.platform:VertexPlatform"


@dataclass(frozen=True)
class ScheduleFile(ConfigurationFile):
    """A validated schedule file with its run configuration and timezone-aware times.

    `defaults` is the configuration without the schedule's overrides of pipeline parameters: two schedules that differ
    only in these have the same pipeline spec.
    """

    settings: ScheduleSettings
    defaults: RunConfig
    cron: str
    zone: ZoneInfo
    start: datetime | None
    end: datetime | None

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


def build(path: Path, settings: ScheduleSettings) -> ScheduleFile:
    """Return the file with its run configuration.

    Raises:
        UserError: The cron expression, a time or the run's configuration is invalid.
    """
    with errors_in(path):
        cron = parse(settings.cron, "cron")
        zone = _zone(settings.time_zone)
        start, end = (_in_zone(time, zone) for time in (settings.start, settings.end))
        if start is not None and end is not None and start >= end:
            raise UserError(
                "start is not before end.",
                setting="start",
                value=start.isoformat(),
                allowed=f"a time before end, {end.isoformat()}",
                fix=f"correct start or end in {path}",
            )
    config = load(settings.configuration, settings.set, settings.hardware)
    vertex_of(config)
    config = chosen(config, extensions.load(PLATFORM)(), say)
    return ScheduleFile(path, config, settings, _defaults(settings, config), cron, zone, start, end)


FILES = Files(
    name="schedule",
    folder=Path("configs/schedules"),
    settings=ScheduleSettings,
    build=build,
    setting="NAME",
    docs="docs/vertex.md",
    pattern=r"^[a-z][a-z0-9-]*$",
    longest=100,
    allowed="lowercase letters, digits and hyphens, starting with a letter",
)


def _defaults(settings: ScheduleSettings, config: RunConfig) -> RunConfig:
    compiled = [text for text in settings.set if not is_parameter(text.partition("=")[0])]
    try:
        return load(settings.configuration, compiled, settings.hardware)
    except UserError:  # only the overrides make it valid
        return config


def _zone(name: str) -> ZoneInfo:
    known = _known_zones()
    if name not in known:
        near = _nearest_zone(name, known)
        raise UserError(
            f"time zone {name} does not exist.",
            setting="time_zone",
            value=name,
            allowed="an IANA time zone, such as Europe/Berlin",
            nearest=near,
            fix=f"time_zone: {near or 'UTC'}",
        )
    return ZoneInfo(name)


@functools.cache
def _known_zones() -> frozenset[str]:
    """Return the names of time zones; Python reads a file of each."""
    return frozenset(available_timezones())


def _nearest_zone(name: str, known: Collection[str]) -> str | None:
    """Return the time zone closest to `name`, which may be a city."""
    normalized = name.strip().replace(" ", "_").lower()
    by_city = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known) if "/" in zone}
    return (
        by_city.get(normalized)
        or nearest(normalized, known)
        or nearest(normalized.rpartition("/")[2], by_city.values())
    )


def _in_zone(time: datetime | None, zone: ZoneInfo) -> datetime | None:
    """Add the schedule's time zone to a time without one."""
    if time is None:
        return None
    return time.replace(tzinfo=zone) if time.tzinfo is None else time
