"""Find, create, update, pause, resume and delete schedules on Vertex AI.

Vertex AI assigns numeric ids and allows duplicate display names. Slipway finds a schedule by display name, keeps the
oldest of several, and lists them again after creating one, so that concurrent `apply` calls keep the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import retried, status_of
from slipway.core.errors import UserError
from slipway.pipelines.platforms.vertex.schedules.difference import (
    NAME_PREFIX,
    SETTLE,
    Difference,
    differences,
    display_name,
    is_paused,
    mask_of,
    needs_new,
)

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Schedule

NOT_FOUND = 404
ROUNDS = 10
DELETE_SECONDS = 120
SHOWN_FIELDS = 3
# `run_response` of a run that was started; any other is the reason why it was not.
STARTED = "OK"


@dataclass
class Applied:
    """Result of `apply`: the current schedule, the actions taken and the initial differences."""

    schedule: Schedule | None = None
    done: list[str] = field(default_factory=list)
    found: list[Difference] = field(default_factory=list)


class Schedules:
    """Slipway's schedules in one project and region."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[Schedule]:
        """Return all schedules, oldest first."""
        client = self._connection.schedules
        parent = self._connection.parent
        # Filtered here: the service's filter would need wildcards escaped, and a project has few schedules.
        found = retried(lambda: list(client.list_schedules(parent=parent)))
        ours = [schedule for schedule in found if schedule.display_name.startswith(NAME_PREFIX)]
        return sorted(ours, key=lambda schedule: (schedule.create_time.timestamp(), schedule.name))

    def named(self, name: str) -> list[Schedule]:
        """Return the schedules with a name, oldest first; the oldest is the one in use."""
        return [schedule for schedule in self.all() if schedule.display_name == display_name(name)]

    def apply(self, name: str, want: Schedule, paused: bool | None) -> Applied:
        """Ensure that exactly one schedule has that name, and that it matches `want`.

        Args:
            name: The schedule's name.
            want: The desired Schedule.
            paused: Whether the schedule should be paused; None keeps its state.

        Raises:
            UserError: Another process keeps changing the schedule.
        """
        applied = Applied()
        before: list[Difference] = []
        for _ in range(ROUNDS):
            found = self.named(name)
            for double in found[1:]:
                self.delete(double.name)
                applied.done.append(f"deleted duplicate {_number(double)}")
            if not found:
                made = self._create(name, want, paused)
                applied.done.append(f"created {_number(made)}")
                continue
            have = found[0]
            left = differences(want, have, paused, _now())
            if not left:
                applied.schedule = have
                return applied
            if left == before and all(one.field.startswith("job.") for one in left):
                # Another process would not restore exactly what was there before.
                names = ", ".join(one.field for one in left[:SHOWN_FIELDS])
                applied.done.append(f"Vertex AI stores {len(left)} values differently, such as {names}")
                applied.schedule = have
                return applied
            applied.found, before = applied.found or left, left
            self._change(have, want, left, applied)
        raise UserError(
            f"Could not apply schedule {name}: another process keeps applying a different version.",
            setting="NAME",
            value=name,
            fix=f"slipway schedule diff {name}, after the other process has finished",
        )

    def pause(self, schedule: str) -> None:
        """Pause a schedule by resource name; does nothing if it is paused."""
        client = self._connection.schedules
        self._until(schedule, lambda: client.pause_schedule(name=schedule), is_paused)

    def resume(self, schedule: str, *, catch_up: bool) -> None:
        """Resume a schedule; with `catch_up` it starts missed runs one after another.

        Uses the GAPIC client: the SDK's resume() accepts catch_up but does not send it.
        """
        from google.cloud.aiplatform_v1 import types

        request = types.ResumeScheduleRequest(name=schedule, catch_up=catch_up)
        client = self._connection.schedules
        self._until(
            schedule,
            lambda: client.resume_schedule(request=request),
            lambda now: now.state.name == "ACTIVE" and now.catch_up == catch_up,
        )

    def delete(self, schedule: str) -> None:
        """Delete a schedule by its resource name; does nothing if it does not exist."""
        client = self._connection.schedules

        def delete() -> None:
            try:
                client.delete_schedule(name=schedule).result(timeout=DELETE_SECONDS)
            except Exception as error:
                if status_of(error) != NOT_FOUND:
                    raise

        retried(delete)

    def _create(self, name: str, want: Schedule, paused: bool | None) -> Schedule:
        """Create the schedule; if a response was lost, find it by name instead."""
        client = self._connection.schedules
        schedule = type(want)(want)
        earliest = _now() + SETTLE
        schedule.start_time = max(want.start_time, earliest) if want.start_time else earliest

        def create() -> Schedule:
            found = self.named(name)
            return found[0] if found else client.create_schedule(parent=self._connection.parent, schedule=schedule)

        made = retried(create)
        if paused:
            self.pause(made.name)
        return made

    def _change(self, have: Schedule, want: Schedule, left: list[Difference], applied: Applied) -> None:
        """Apply one change towards `want`."""
        if needs_new(have, left):
            self.delete(have.name)
            why = "it is completed" if have.state.name == "COMPLETED" else "Vertex AI cannot unset a limit"
            applied.done.append(f"deleted {_number(have)} to recreate it: {why}")
            return
        mask = mask_of(left)
        if mask:
            from google.protobuf import field_mask_pb2

            schedule = type(want)(want)
            schedule.name = have.name
            if "start_time" in mask and not want.start_time:
                schedule.start_time = _now()
            client = self._connection.schedules
            retried(lambda: client.update_schedule(schedule=schedule, update_mask=field_mask_pb2.FieldMask(paths=mask)))
            applied.done.append(f"updated {', '.join(mask)} of {_number(have)}")
        pause = next((one.file for one in left if one.field == "paused"), None)
        if pause is not None:
            if pause:
                self.pause(have.name)
            else:
                self.resume(have.name, catch_up=False)
            applied.done.append(f"{'paused' if pause else 'resumed'} {_number(have)}")

    def _until(self, schedule: str, call: Callable[[], object], reached: Callable[[Schedule], bool]) -> None:
        """Retry a call that is not idempotent; after a lost response, check whether it took effect."""

        def attempt() -> None:
            try:
                call()
            except Exception:
                if not reached(self._connection.schedules.get_schedule(name=schedule)):
                    raise

        retried(attempt)


def refused(schedule: Schedule) -> str:
    """Return why the last run was not started, "" if it was or there was none: creating a schedule checks no job."""
    answer = " ".join(schedule.last_scheduled_run_response.run_response.split())
    return "" if answer == STARTED else answer


def _now() -> datetime:
    return datetime.now(UTC)


def _number(schedule: Schedule) -> str:
    """Return a schedule's numeric id."""
    return str(schedule.name).rpartition("/")[2]
