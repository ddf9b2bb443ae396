"""Field-by-field differences between a schedule on Vertex AI and its file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from slipway.components.cloud.quick_import import TYPES, import_module
from slipway.core.values import JsonObject
from slipway.pipelines.platforms.vertex.declared import Difference
from slipway.pipelines.platforms.vertex.schedules.files import ScheduleFile

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import PipelineJob, Schedule

# Delay before a new schedule's first run, so that duplicates from a concurrent `apply` are deleted first.
SETTLE = timedelta(minutes=2)
NAME_PREFIX = "slipway/"
# `run_response` of a run that was started; any other is the reason why it was not.
STARTED = "OK"
# The fields by their names in a file, and those that cannot be unset: unsetting one requires a new schedule.
FIELDS = {
    "cron": "cron",
    "start": "start_time",
    "end": "end_time",
    "max_runs": "max_run_count",
    "max_concurrent_runs": "max_concurrent_run_count",
    "max_active_runs": "max_concurrent_active_run_count",
    "allow_queueing": "allow_queueing",
}
NOT_UNSET = ("end", "max_runs", "max_active_runs")


class Desired(NamedTuple):
    """A schedule, and whether it is to be paused; None keeps its state."""

    schedule: Schedule
    paused: bool | None


def desired(file: ScheduleFile, job: PipelineJob, parent: str) -> Desired:
    """Return the schedule that a file describes; `job` is that of a manual run."""
    settings = file.settings
    create = import_module(f"{TYPES}.pipeline_service").CreatePipelineJobRequest
    schedule = import_module(f"{TYPES}.schedule").Schedule(
        display_name=NAME_PREFIX + file.name,
        cron=file.cron_text,
        start_time=file.start,
        end_time=file.end,
        max_run_count=settings.max_runs or 0,
        max_concurrent_run_count=settings.max_concurrent_runs,
        max_concurrent_active_run_count=settings.max_active_runs or 0,
        allow_queueing=settings.allow_queueing,
        create_pipeline_job_request=create(parent=parent, pipeline_job=job),
    )
    return Desired(schedule, settings.paused)


def differences(desired: Desired, have: Schedule, now: datetime) -> list[Difference]:
    """Return all differences between a schedule and the desired one."""
    want, paused = desired
    # A new schedule starts after a delay; twice that, to allow for clock skew.
    at_once = max(now, (have.create_time or now) + 2 * SETTLE)
    changes = []
    for name, attribute in FIELDS.items():
        current, ours = (_value(schedule, attribute, at_once) for schedule in (have, want))
        changes += [Difference(name, current, ours)] * (current != ours)
    if paused is not None and have.state.name != "COMPLETED":
        changes += [Difference("paused", is_paused(have), paused)] * (is_paused(have) != paused)
    our_job, their_job = (dict(_leaves(job_of(schedule))) for schedule in (want, have))
    keys = sorted(our_job.keys() | their_job.keys())
    jobs = [(f"job.{key}", their_job.get(key), our_job.get(key)) for key in keys]
    return changes + [Difference(*row) for row in jobs if row[1] != row[2]]


def needs_new(have: Schedule, changes: list[Difference]) -> bool:
    """Return whether the schedule must be recreated: it is completed, or a field that cannot be unset must be."""
    ended = have.state.name == "COMPLETED"
    return bool(changes) and (ended or any(change.field in NOT_UNSET and change.file is None for change in changes))


def mask_of(changes: list[Difference]) -> list[str]:
    """Return the update mask: the Schedule fields that differ."""
    mask = [FIELDS[change.field] for change in changes if change.field in FIELDS]
    return mask + ["create_pipeline_job_request"] * any(change.field.startswith("job.") for change in changes)


def is_paused(schedule: Schedule) -> bool:
    """Return whether a schedule is paused."""
    return bool(schedule.state.name == "PAUSED")


def refused(schedule: Schedule) -> str:
    """Return why the last run was not started, "" if it was or there was none: creating a schedule checks no job."""
    answer = " ".join(schedule.last_scheduled_run_response.run_response.split())
    return "" if answer == STARTED else answer


def job_of(schedule: Schedule) -> JsonObject:
    """Return the PipelineJob that a schedule creates as plain values; the service stores it as it was sent."""
    from google.protobuf import json_format

    request = type(schedule).pb(schedule).create_pipeline_job_request
    values: JsonObject = json_format.MessageToDict(request.pipeline_job, preserving_proto_field_name=True)
    return values


def _value(schedule: Schedule, attribute: str, at_once: datetime) -> object:
    """Return a field as it is compared: None if it is not set, or a start that is not later than `at_once`."""
    value = getattr(schedule, attribute)
    if attribute == "cron":
        return _cron(value)
    if isinstance(value, datetime):
        value = datetime.fromtimestamp(int(value.timestamp()), UTC)
        return None if attribute == "start_time" and value <= at_once else value
    return value if isinstance(value, bool) else value or None


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
