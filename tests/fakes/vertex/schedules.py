"""ScheduleService: schedules that start pipeline jobs when a test moves their clock."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import empty_pb2

from slipway.pipelines.platforms.vertex.schedules.cron import run_times
from tests.fakes.errors import ServiceError
from tests.fakes.filters import matcher
from tests.fakes.paging import page_of
from tests.fakes.vertex.execution import PIPELINE_ENDED
from tests.fakes.vertex.operations import Operations
from tests.fakes.vertex.pipelines import PipelineService
from tests.fakes.vertex.shapes import check_display_name, invalid, project_of, resource_of
from tests.fakes.world import Project, World

State = vertex.Schedule.State
CRON = re.compile(r"(?:(?:CRON_)?TZ=(?P<zone>\S+) )?(?P<fields>[0-9A-Za-z*?,/-]+(?: [0-9A-Za-z*?,/-]+){4})")
QUOTA = "aiplatform.googleapis.com/schedules"
SETTABLE = (
    "display_name",
    "cron",
    "start_time",
    "end_time",
    "max_run_count",
    "max_concurrent_run_count",
    "max_concurrent_active_run_count",
    "allow_queueing",
    "create_pipeline_job_request",
)


class ScheduleService:
    """Schedules by name. `ahead` is the service clock's offset; `move` advances the clock and starts runs."""

    def __init__(self, world: World, region: str, pipelines: PipelineService, operations: Operations) -> None:
        self.world = world
        self.region = region
        self.schedules: dict[str, vertex.Schedule] = {}
        self.ahead = timedelta()
        self._pipelines = pipelines
        self._operations = operations
        self._creators: dict[str, str] = {}
        # Until when a schedule's times have been dealt with, and those that wait for a run to end.
        self._seen: dict[str, datetime] = {}
        self._queues: dict[str, list[datetime]] = {}

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreateSchedule": (vertex.CreateScheduleRequest, self._create),
            "GetSchedule": (vertex.GetScheduleRequest, self._get),
            "ListSchedules": (vertex.ListSchedulesRequest, self._list),
            "UpdateSchedule": (vertex.UpdateScheduleRequest, self._update),
            "PauseSchedule": (vertex.PauseScheduleRequest, self._pause),
            "ResumeSchedule": (vertex.ResumeScheduleRequest, self._resume),
            "DeleteSchedule": (vertex.DeleteScheduleRequest, self._delete),
        }

    @property
    def now(self) -> datetime:
        """Return the service's time."""
        return datetime.now(UTC) + self.ahead

    def move(self, by: timedelta) -> list[vertex.PipelineJob]:
        """Advance the clock; return the jobs that were started."""
        with self.world.lock:
            self.ahead += by
            return [job for name in list(self.schedules) for job in self._due(name)]

    def _due(self, name: str) -> list[vertex.PipelineJob]:
        """Start a schedule's due runs."""
        schedule = self.schedules[name]
        if schedule.state != State.ACTIVE:
            return []
        times = self._queues.pop(name, []) + self._times(schedule, self._seen[name], self.now)
        self._seen[name] = self.now
        made = []
        for number, time in enumerate(times):
            if schedule.max_run_count and schedule.started_run_count >= schedule.max_run_count:
                break
            if self._is_full(schedule):
                if schedule.allow_queueing:
                    self._queues[name] = times[number:]
                    break
                continue
            if (job := self._start(schedule, time)) is not None:
                made.append(job)
        over = schedule.end_time and self.now > schedule.end_time
        if over or (schedule.max_run_count and schedule.started_run_count >= schedule.max_run_count):
            schedule.state = State.COMPLETED
        return made

    def _start(self, schedule: vertex.Schedule, time: datetime) -> vertex.PipelineJob | None:
        request = schedule.create_pipeline_job_request
        schedule.last_scheduled_run_response.scheduled_run_time = time
        schedule.started_run_count += 1
        try:
            creator = self._creators[schedule.name]
            job = self._pipelines.create(request.parent, request.pipeline_job, "", creator, schedule.name)
        except ServiceError as error:
            schedule.last_scheduled_run_response.run_response = error.message
            return None
        schedule.last_scheduled_run_response.run_response = "OK"
        return job

    def _is_full(self, schedule: vertex.Schedule) -> bool:
        jobs = [job for job in self._pipelines.jobs.values() if job.schedule_name == schedule.name]
        active = sum(job.state not in PIPELINE_ENDED for job in jobs)
        return 0 < schedule.max_concurrent_active_run_count <= active

    def _times(self, schedule: vertex.Schedule, after: datetime, until: datetime) -> list[datetime]:
        """Return the times of a schedule's cron in (after, until]."""
        match = CRON.fullmatch(schedule.cron)
        assert match
        times = []
        for time in run_times(match["fields"], after, zoneinfo.ZoneInfo(match["zone"] or "UTC")):
            if time > until or (schedule.end_time and time > schedule.end_time):
                break
            if time >= schedule.start_time:
                times.append(time)
        return times

    def _create(self, request: vertex.CreateScheduleRequest, caller: str) -> vertex.Schedule:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.schedules.create", f"projects/{project.id}")
        schedule = vertex.Schedule(request.schedule)
        self._check(project, schedule)
        with self.world.lock:
            limit = self.world.quotas.get((project.id, self.region, QUOTA))
            active = sum(one.state == State.ACTIVE for one in self.schedules.values())
            if limit is not None and active >= limit:
                raise ServiceError(429, f"The following quota metrics exceed quota limits: {QUOTA}")
            schedule.name = f"projects/{project.number}/locations/{self.region}/schedules/{self.world.number()}"
            schedule.create_time = schedule.update_time = self.now
            schedule.start_time = schedule.start_time or self.now
            schedule.state = State.ACTIVE
            schedule.started_run_count = 0
            schedule.catch_up = False
            self.schedules[schedule.name] = schedule
            self._creators[schedule.name] = caller
            self._seen[schedule.name] = self.now
            self.world.writes["schedule"] += 1
            return self._shown(schedule)

    def _check(self, project: Project, schedule: vertex.Schedule) -> None:
        """Raise CreateSchedule's error for an invalid schedule. The job is checked when a run starts."""
        check_display_name(schedule.display_name)
        match = CRON.fullmatch(schedule.cron)
        if not match:
            raise invalid(f"Invalid cron schedule: {schedule.cron!r}.")
        if match["zone"] and match["zone"] not in zoneinfo.available_timezones():
            raise invalid(f"Invalid cron schedule: unknown time zone {match['zone']}.")
        if schedule.max_concurrent_run_count < 1:
            raise invalid("max_concurrent_run_count is required and must be greater than 0.")
        if schedule.end_time and schedule.end_time <= max(schedule.start_time or self.now, self.now):
            raise invalid("end_time must be after start_time and in the future.")
        request = schedule.create_pipeline_job_request
        if request.pipeline_job_id:
            raise invalid("pipeline_job_id must not be set in the request of a schedule.")
        if project_of(self.world, request.parent, self.region) is not project:
            raise invalid("create_pipeline_job_request.parent must be the schedule's own.")

    def _get(self, request: vertex.GetScheduleRequest, caller: str) -> vertex.Schedule:
        return self._shown(self._named(request.name, caller, "get")[1])

    def _list(self, request: vertex.ListSchedulesRequest, caller: str) -> vertex.ListSchedulesResponse:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.schedules.list", f"projects/{project.id}")
        passes = matcher(request.filter)
        with self.world.lock:
            found = [self._shown(one) for one in reversed(self.schedules.values()) if passes(_fields(one))]
        page, following = page_of(found, request.page_size, request.page_token)
        return vertex.ListSchedulesResponse(schedules=page, next_page_token=following)

    def _update(self, request: vertex.UpdateScheduleRequest, caller: str) -> vertex.Schedule:
        project, have = self._named(request.schedule.name, caller, "update")
        paths = list(request.update_mask.paths)
        if not paths or set(paths) - set(SETTABLE):
            raise invalid(
                f"update_mask must name fields that can be updated, not {sorted(set(paths) - set(SETTABLE))}."
            )
        with self.world.lock:
            if have.state == State.COMPLETED:
                raise ServiceError(412, f"{have.name} is completed and cannot be updated.")
            changed = vertex.Schedule(have)
            for path in paths:
                value = getattr(request.schedule, path)
                if getattr(have, path) and not value and path != "allow_queueing":
                    raise invalid(f"The field {path} cannot be unset.")
                setattr(changed, path, value)
            self._check(project, changed)
            changed.update_time = self.now
            self.schedules[have.name] = changed
            self._seen[have.name] = self.now
            self.world.writes["schedule"] += 1
            return self._shown(changed)

    def _pause(self, request: vertex.PauseScheduleRequest, caller: str) -> Any:
        _, schedule = self._named(request.name, caller, "update")
        with self.world.lock:
            if schedule.state != State.ACTIVE:
                raise ServiceError(412, f"{schedule.name} is not active: it is {schedule.state.name}.")
            schedule.state, schedule.last_pause_time = State.PAUSED, self.now
            self._seen[schedule.name] = self.now
            self.world.writes["schedule"] += 1
        return empty_pb2.Empty()

    def _resume(self, request: vertex.ResumeScheduleRequest, caller: str) -> Any:
        _, schedule = self._named(request.name, caller, "update")
        with self.world.lock:
            if schedule.state != State.PAUSED:
                raise ServiceError(412, f"{schedule.name} is not paused: it is {schedule.state.name}.")
            schedule.state, schedule.catch_up, schedule.last_resume_time = State.ACTIVE, request.catch_up, self.now
            if not request.catch_up:
                self._seen[schedule.name] = self.now
            self.world.writes["schedule"] += 1
        return empty_pb2.Empty()

    def _delete(self, request: vertex.DeleteScheduleRequest, caller: str) -> Any:
        _, schedule = self._named(request.name, caller, "delete")
        with self.world.lock:
            if self.schedules.pop(schedule.name, None) is not None:
                self.world.writes["schedule"] += 1
        parent = schedule.name.partition("/schedules/")[0]
        return self._operations.done(parent, empty_pb2.Empty(), vertex.DeleteOperationMetadata())

    def _named(self, name: str, caller: str, right: str) -> tuple[Project, vertex.Schedule]:
        permission = f"aiplatform.schedules.{right}"
        project, full = resource_of(self.world, self.region, name, "schedules", caller, permission)
        if full not in self.schedules:
            raise ServiceError(404, f"The Schedule does not exist: {name}")
        return project, self.schedules[full]

    def _shown(self, schedule: vertex.Schedule) -> vertex.Schedule:
        """Return a copy with the time of its next run."""
        shown = vertex.Schedule(schedule)
        if schedule.state == State.ACTIVE:
            later = self._times(schedule, self._seen[schedule.name], self.now + timedelta(days=366))
            shown.next_run_time = later[0] if later else None
        return shown


def _fields(schedule: vertex.Schedule) -> Mapping[str, Any]:
    """Return a schedule's fields for filters."""
    return {"display_name": schedule.display_name, "state": schedule.state.name}
