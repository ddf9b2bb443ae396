"""Schedules on Vertex AI: found, made, changed, paused, resumed, deleted; never two of one name for long.

The service gives a schedule a number of its own and lets any number have one name. So a schedule is found by its name,
of several the oldest is kept, and whoever makes one looks again afterwards: two who make one at the same moment come to
keep the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import retried, status_of
from slipway.core.errors import UserError
from slipway.pipelines.schedules.difference import (
    NAME_PREFIX,
    SETTLE,
    Difference,
    differences,
    display_name,
    is_paused,
    mask_of,
    needs_new,
)

NOT_FOUND = 404
ROUNDS = 10
DELETE_SECONDS = 120


@dataclass
class Applied:
    """What `apply` did: the schedule as it is now, what was done in words, the differences that were found first."""

    schedule: Any = None
    done: list[str] = field(default_factory=list)
    found: list[Difference] = field(default_factory=list)


class Schedules:
    """The schedules of one project and region that bear our names."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[Any]:
        """All of them (aiplatform_v1.Schedule), the oldest first."""
        client = self._connection.schedules
        parent = self._connection.parent
        # Not filtered by the service, whose wildcards would have to be escaped in names: a project has few schedules.
        found = retried(lambda: list(client.list_schedules(parent=parent)))
        ours = [schedule for schedule in found if schedule.display_name.startswith(NAME_PREFIX)]
        return sorted(ours, key=lambda schedule: (schedule.create_time.timestamp(), schedule.name))

    def named(self, name: str) -> list[Any]:
        """Those of a name, the oldest, which is the one, first."""
        return [schedule for schedule in self.all() if schedule.display_name == display_name(name)]

    def apply(self, name: str, want: Any, paused: bool | None) -> Applied:
        """Make it so that there is one schedule of that name, and it is `want`.

        Args:
            name: The schedule's name.
            want: The Schedule that the file asks for.
            paused: Whether it is to be paused; None leaves that as it is.

        Raises:
            UserError: Somebody else keeps making it something else.
        """
        applied = Applied()
        for _ in range(ROUNDS):
            found = self.named(name)
            for double in found[1:]:
                self.delete(double.name)
                applied.done.append(f"deleted a second one, {_number(double)}")
            if not found:
                made = self._create(name, want, paused)
                applied.done.append(f"created {_number(made)}")
                continue
            have = found[0]
            left = differences(want, have, paused, _now())
            if not left:
                applied.schedule = have
                return applied
            applied.found = applied.found or left
            self._change(have, want, left, applied)
        raise UserError(
            f"The schedule {name} does not stay as it is made: somebody else applies another version of it.",
            setting="NAME",
            value=name,
            fix=f"slipway schedule diff {name}, once the other has ended",
        )

    def pause(self, schedule: str) -> None:
        """Pause a schedule by its resource name; one that is paused already stays so."""
        client = self._connection.schedules
        self._until(schedule, lambda: client.pause_schedule(name=schedule), is_paused)

    def resume(self, schedule: str, *, catch_up: bool) -> None:
        """Let a schedule go on; with `catch_up` it starts the runs that it missed, one after another.

        The service's own client is asked: the one of the SDK takes catch_up and does not pass it on.
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
        """Delete a schedule by its resource name; one that is gone already is gone."""
        client = self._connection.schedules

        def delete() -> None:
            try:
                client.delete_schedule(name=schedule).result(timeout=DELETE_SECONDS)
            except Exception as error:
                if status_of(error) != NOT_FOUND:
                    raise

        retried(delete)

    def _create(self, name: str, want: Any, paused: bool | None) -> Any:
        """Make the schedule; one whose making was not answered is found by its name."""
        client = self._connection.schedules
        schedule = type(want)(want)
        earliest = _now() + SETTLE
        schedule.start_time = max(want.start_time, earliest) if want.start_time else earliest

        def create() -> Any:
            found = self.named(name)
            return found[0] if found else client.create_schedule(parent=self._connection.parent, schedule=schedule)

        made = retried(create)
        if paused:
            self.pause(made.name)
        return made

    def _change(self, have: Any, want: Any, left: list[Difference], applied: Applied) -> None:
        """One step towards `want`."""
        if needs_new(have, left):
            self.delete(have.name)
            why = "it has ended" if have.state.name == "COMPLETED" else "Vertex AI cannot take back a limit"
            applied.done.append(f"deleted {_number(have)}, to be made anew: {why}")
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
            applied.done.append(f"changed {', '.join(mask)} of {_number(have)}")
        pause = next((one.file for one in left if one.field == "paused"), None)
        if pause is not None:
            if pause:
                self.pause(have.name)
            else:
                self.resume(have.name, catch_up=False)
            applied.done.append(f"{'paused' if pause else 'resumed'} {_number(have)}")

    def _until(self, schedule: str, call: Callable[[], Any], reached: Callable[[Any], bool]) -> None:
        """Make a call that fails when it is made twice, as after an answer that was lost."""

        def attempt() -> None:
            try:
                call()
            except Exception:
                if not reached(self._connection.schedules.get_schedule(name=schedule)):
                    raise

        retried(attempt)


def _now() -> datetime:
    return datetime.now(UTC)


def _number(schedule: Any) -> str:
    """A schedule's own id."""
    return str(schedule.name).rpartition("/")[2]
