"""Field-by-field differences between a schedule on Vertex AI and its file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from slipway.core.values import JsonObject
from slipway.pipelines.platforms.vertex.schedules.files import ScheduleFile

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import PipelineJob, Schedule

# Delay before a new schedule's first run, so that duplicates from a concurrent `apply` are deleted first.
SETTLE = timedelta(minutes=2)
NAME_PREFIX = "slipway/"
# Fields that cannot be unset; unsetting one requires a new schedule.
NOT_UNSET = {"end": "end_time", "max_runs": "max_run_count", "max_active_runs": "max_concurrent_active_run_count"}
SHOWN_LETTERS = 48


@dataclass(frozen=True)
class Difference:
    """One field: its name in the file (or in the run's job), the service's value and the file's value."""

    field: str
    service: object
    file: object

    def __str__(self) -> str:
        have, want = _clipped(_text(self.service), _text(self.file))
        return f"{self.field}: {have} → {want}"


def display_name(name: str) -> str:
    """Return the display name by which a schedule is found on Vertex AI."""
    return NAME_PREFIX + name


def desired(file: ScheduleFile, job: PipelineJob, parent: str) -> Schedule:
    """Return the schedule that a file describes; `job` is that of a manual run."""
    from google.cloud.aiplatform_v1 import types

    settings = file.settings
    return types.Schedule(
        display_name=display_name(file.name),
        cron=file.cron_text,
        start_time=file.start,
        end_time=file.end,
        max_run_count=settings.max_runs or 0,
        max_concurrent_run_count=settings.max_concurrent_runs,
        max_concurrent_active_run_count=settings.max_active_runs or 0,
        allow_queueing=settings.allow_queueing,
        create_pipeline_job_request=types.CreatePipelineJobRequest(parent=parent, pipeline_job=job),
    )


def differences(want: Schedule, have: Schedule, paused: bool | None, now: datetime) -> list[Difference]:
    """Return all differences between two Schedules; `paused` is the file's value, None if not set."""
    found = [Difference(*row) for row in _fields(want, have, now) if row[1] != row[2]]
    if paused is not None and have.state.name != "COMPLETED":
        found += [Difference("paused", is_paused(have), paused)] * (is_paused(have) != paused)
    ours, theirs = (dict(_leaves(job_of(schedule))) for schedule in (want, have))
    keys = sorted(ours.keys() | theirs.keys())
    found += [
        Difference(f"job.{key}", theirs.get(key), ours.get(key)) for key in keys if ours.get(key) != theirs.get(key)
    ]
    return found


def needs_new(have: Schedule, found: list[Difference]) -> bool:
    """Return whether the schedule must be recreated: it is completed, or a field that cannot be unset must be."""
    ended = have.state.name == "COMPLETED"
    return bool(found) and (ended or any(one.field in NOT_UNSET and one.file is None for one in found))


def mask_of(found: list[Difference]) -> list[str]:
    """Return the update mask: the Schedule fields that differ."""
    names = {
        "cron": "cron",
        "start": "start_time",
        "max_concurrent_runs": "max_concurrent_run_count",
        "allow_queueing": "allow_queueing",
        **NOT_UNSET,
    }
    mask = [names[one.field] for one in found if one.field in names]
    return mask + ["create_pipeline_job_request"] * any(one.field.startswith("job.") for one in found)


def is_paused(schedule: Schedule) -> bool:
    """Return whether a schedule is paused."""
    return bool(schedule.state.name == "PAUSED")


def job_of(schedule: Schedule) -> JsonObject:
    """Return the PipelineJob that a schedule creates as plain values; the service stores it as it was sent."""
    from google.protobuf import json_format

    request = type(schedule).pb(schedule).create_pipeline_job_request
    values: JsonObject = json_format.MessageToDict(request.pipeline_job, preserving_proto_field_name=True)
    return values


def _fields(want: Schedule, have: Schedule, now: datetime) -> Iterator[tuple[str, object, object]]:
    """Yield field name, the service's value and the file's value."""
    yield "cron", _cron(have.cron), _cron(want.cron)
    yield "start", *_starts(want, have, now)
    yield "end", _time(have, "end_time"), _time(want, "end_time")
    yield "max_runs", have.max_run_count or None, want.max_run_count or None
    yield "max_concurrent_runs", have.max_concurrent_run_count, want.max_concurrent_run_count
    yield "max_active_runs", have.max_concurrent_active_run_count or None, want.max_concurrent_active_run_count or None
    yield "allow_queueing", have.allow_queueing, want.allow_queueing


def _starts(want: Schedule, have: Schedule, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Return both start times; None for a past one, or for the delay that every new schedule gets."""
    # Twice the delay, to allow for clock skew.
    at_once = max(now, (_time(have, "create_time") or now) + 2 * SETTLE)
    theirs, ours = _time(have, "start_time"), _time(want, "start_time")
    return (
        theirs if theirs is not None and theirs > at_once else None,
        ours if ours is not None and ours > at_once else None,
    )


def _time(schedule: Schedule, field: str) -> datetime | None:
    """Return a time truncated to seconds; None if not set."""
    value = getattr(schedule, field)
    if value is None:
        return None
    return datetime.fromtimestamp(int(value.timestamp()), UTC)


def _cron(text: str) -> str:
    """Normalize the time zone prefix of a cron expression."""
    text = " ".join(text.split())
    if text.startswith("CRON_TZ="):
        return text.removeprefix("CRON_")
    return text if text.startswith("TZ=") else f"TZ=UTC {text}"


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values in nested mappings and lists by dotted path, without empty ones."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    elif value not in ("", None):
        yield path, value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S UTC")
    return "not set" if value is None else " ".join(str(value).split())


def _clipped(have: str, want: str) -> tuple[str, str]:
    """Shorten long texts to the part where they differ."""
    if max(len(have), len(want)) <= 2 * SHOWN_LETTERS:
        return have, want
    first = next((n for n, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
    start = max(0, first - SHOWN_LETTERS // 3)

    def cut(text: str) -> str:
        piece = text[start : start + SHOWN_LETTERS]
        return ("…" if start else "") + piece + ("…" if start + SHOWN_LETTERS < len(text) else "")

    return (have, cut(want)) if len(have) <= SHOWN_LETTERS else (cut(have), cut(want))
