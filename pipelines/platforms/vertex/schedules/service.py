"""Schedules on Vertex AI: find, create, update, pause, resume and delete them.

Vertex AI assigns numeric ids and allows duplicate display names. Slipway finds a schedule by display name, keeps the
oldest of several, and lists them again after creating one, so that concurrent `apply` calls keep the same one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slipway.components.cloud.quick_import import TYPES, import_module
from slipway.components.cloud.refusals import is_answer
from slipway.components.cloud.retries import existing, retried
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.doctor import refuse_on_failure
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.vertex.candidates import candidates, title_of
from slipway.pipelines.platforms.vertex.declared import Declared, Difference, Say, number_of
from slipway.pipelines.platforms.vertex.images import ensure_images, known_images
from slipway.pipelines.platforms.vertex.schedules.difference import (
    NAME_PREFIX,
    SETTLE,
    Desired,
    desired,
    differences,
    is_paused,
    mask_of,
    needs_new,
)
from slipway.pipelines.platforms.vertex.schedules.files import FILES, ScheduleFile
from slipway.pipelines.platforms.vertex.schedules.result import (
    RECENT_RUNS,
    ScheduledRun,
    ScheduleResult,
    scheduled_run,
)
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.platforms.vertex.submission import compile_pipeline, pipeline_job

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Schedule

DELETE_SECONDS = 120


class Schedules(Declared[ScheduleFile, ScheduleResult]):
    """Slipway's schedules in one project and region."""

    files = FILES
    result = ScheduleResult
    command = "slipway schedule"
    rights = "aiplatform.schedules"
    rewritten = "job."

    def all(self) -> list[tuple[str, str, Schedule]]:
        # Filtered here: the service's filter would need wildcards escaped, and a project has few schedules.
        parent = self.connection.parent
        schedules = retried(lambda: list(self.connection.schedules.list_schedules(parent=parent)))
        schedules.sort(key=lambda schedule: (schedule.create_time.timestamp(), schedule.name))
        names = [(schedule.display_name.removeprefix(NAME_PREFIX), schedule) for schedule in schedules]
        return [(name, name, schedule) for name, schedule in names if name != schedule.display_name]

    @classmethod
    def observe(cls, name: str | None = None, config: RunConfig | None = None) -> list[ScheduleResult]:
        results = super().observe(name, config)
        for result in results:
            if result.resource is not None and result.runs:
                with cls._calls(result.config, f"read the runs of {result.name}", "list") as calls:
                    result.recent = calls.recent(result.resource.name)
        return results

    def recent(self, schedule: str) -> list[ScheduledRun]:
        """Return the newest runs of a schedule, the newest first."""
        request = {
            "parent": self.connection.parent,
            "filter": f"schedule_name={schedule}",  # as the SDK's PipelineJobSchedule.list_jobs does
            "order_by": "create_time desc",
            "page_size": RECENT_RUNS,
        }
        jobs = retried(lambda: list(islice(self.connection.pipelines.list_pipeline_jobs(request), RECENT_RUNS)))
        return [scheduled_run(job) for job in jobs]

    def desired(self, file: ScheduleFile, log: TextIO | None, say: Say) -> Desired:
        if log is not None:
            _check(file, say)
        images = ensure_images(file.config, log, say) if log else known_images(file.config, say)
        with tempfile.TemporaryDirectory() as folder:
            specification = Path(folder) / "spec.yaml"
            compile_pipeline(file.config, images, specification, defaults=file.defaults)
            job = pipeline_job(file.config, specification)
        return desired(file, job, self.connection.parent)

    def differences(self, want: Desired, have: Schedule) -> list[Difference]:
        return differences(want, have, datetime.now(UTC))

    def create(self, want: Desired) -> str:
        client = self.connection.schedules
        schedule = type(want.schedule)(want.schedule)
        earliest = datetime.now(UTC) + SETTLE
        schedule.start_time = max(schedule.start_time, earliest) if schedule.start_time else earliest

        def create() -> Schedule:
            created = self.find(schedule.display_name.removeprefix(NAME_PREFIX))  # after a lost response
            return created[0] if created else client.create_schedule(parent=self.connection.parent, schedule=schedule)

        made = retried(create)
        if want.paused:
            self.pause(made.name)
        return f"created {number_of(made)}"

    def change(self, want: Desired, have: Schedule, left: list[Difference]) -> list[str]:
        number = number_of(have)
        if needs_new(have, left):
            self.delete(have, None)
            why = "it is completed" if have.state.name == "COMPLETED" else "Vertex AI cannot unset a limit"
            return [f"deleted {number} to recreate it: {why}"]
        done = []
        if mask := mask_of(left):
            self._update(have.name, want.schedule, mask)
            done.append(f"updated {', '.join(mask)} of {number}")
        for difference in left:
            if difference.field == "paused" and difference.file:
                self.pause(have.name)
                done.append(f"paused {number}")
            elif difference.field == "paused":
                self.resume(have.name, catch_up=False)
                done.append(f"resumed {number}")
        return done

    def delete(self, resource: Schedule, file: ScheduleFile | None) -> None:  # noqa: ARG002
        client = self.connection.schedules
        existing(lambda: client.delete_schedule(name=resource.name).result(timeout=DELETE_SECONDS))

    def advice(self, name: str, have: Schedule, left: list[Difference]) -> str:
        return f"to {'recreate' if needs_new(have, left) else 'update'} it: {self.command} apply {name}"

    def pause(self, schedule: str) -> None:
        """Pause a schedule by resource name; does nothing if it is paused."""
        client = self.connection.schedules
        self._until(schedule, lambda: client.pause_schedule(name=schedule), is_paused)

    def resume(self, schedule: str, *, catch_up: bool) -> None:
        """Resume a schedule; with `catch_up` it starts missed runs one after another.

        Uses the GAPIC client: the SDK's resume() accepts catch_up but does not send it.
        """
        types = import_module(f"{TYPES}.schedule_service")
        request = types.ResumeScheduleRequest(name=schedule, catch_up=catch_up)
        client = self.connection.schedules
        self._until(
            schedule,
            lambda: client.resume_schedule(request=request),
            lambda now: now.state.name == "ACTIVE" and now.catch_up == catch_up,
        )

    def _update(self, schedule: str, want: Schedule, mask: Sequence[str]) -> None:
        from google.protobuf import field_mask_pb2

        changed = type(want)(want)
        changed.name = schedule
        if "start_time" in mask and not want.start_time:
            changed.start_time = datetime.now(UTC)
        client, paths = self.connection.schedules, field_mask_pb2.FieldMask(paths=mask)
        retried(lambda: client.update_schedule(schedule=changed, update_mask=paths))

    def _until(self, schedule: str, call: Callable[[], object], reached: Callable[[Schedule], bool]) -> None:
        """Retry a call that is not idempotent; after a lost response, check whether it took effect."""

        def attempt() -> None:
            try:
                call()
            except Exception as error:
                if not is_answer(error) or not reached(self.connection.schedules.get_schedule(name=schedule)):
                    raise

        retried(attempt)

    @classmethod
    def steer(cls, name: str | None, state: str, *, catch_up: bool = False) -> list[ScheduleResult]:
        """Bring each file's schedule into a state, "paused" or "active"."""
        results = []
        for file in FILES.read_all(name):
            with cls._calls(file.config, f"make the schedule {file.name} {state}", "update") as calls:
                results.append(calls._steered(file, state, catch_up=catch_up))
        return results

    def _steered(self, file: ScheduleFile, state: str, *, catch_up: bool) -> ScheduleResult:
        result = ScheduleResult(file.name, file.config, file, next(iter(self.find(file.key)), None))
        before = result.state
        if before in ("absent", "completed"):
            edit = "" if before == "absent" else f"change end or max_runs in {file.path}, then "
            raise UserError(
                f"The schedule {file.name} is {before} on Vertex AI; it started {result.runs} runs.",
                setting="NAME",
                value=file.name,
                fix=f"{edit}slipway schedule apply {file.name}",
            )
        if before == state:
            result.note = f"already {state}"
            return result
        if state == "paused":
            self.pause(result.resource.name)
        else:
            self.resume(result.resource.name, catch_up=catch_up)
        result.resource, result.done = self.find(file.key)[0], [f"{before} → {state}"]
        if file.settings.paused not in (None, state == "paused"):
            result.note = f"{file.path} sets paused: {str(file.settings.paused).lower()}; the next apply restores that"
        return result


def _check(file: ScheduleFile, say: Say) -> None:
    if file.end is not None and file.end <= datetime.now(UTC):
        raise UserError(
            f"{file.path}: end is in the past.",
            setting="end",
            value=file.end.isoformat(),
            allowed="a time in the future, or none",
            fix=f"correct end in {file.path}, or slipway schedule delete {file.name}",
        )
    first = file.config.on(file.config.training_hardware, vertex=vertex_of(file.config))
    if len(candidates(file.config)) > 1:
        say(f"its runs are on {title_of(first)} only: without quota or capacity, none continues elsewhere")
    for warning in refuse_on_failure(Context(first, platform_of("vertex")), submitting=True):
        say(f"warning: {warning.check}: {warning.found}")
