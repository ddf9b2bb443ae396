"""What a command shows of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from slipway.components.cloud.known_errors import as_user_error
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.platforms.vertex.declared import Result
from slipway.pipelines.platforms.vertex.schedules.difference import refused
from slipway.pipelines.platforms.vertex.submission import facts_of

NEXT_RUNS = 3


@dataclass
class ScheduleResult(Result):
    """One schedule."""

    kind = "schedule"

    @property
    def zone(self) -> ZoneInfo:
        """Time zone for display."""
        return self.file.zone if self.file else ZoneInfo("UTC")

    @property
    def state(self) -> str:
        """active, paused or completed; absent if Vertex AI has no schedule with that name."""
        return "absent" if self.resource is None else str(self.resource.state.name).lower()

    @property
    def next_runs(self) -> list[datetime]:
        """Next run times from the file; empty if paused or completed."""
        if self.file is None or self.state in ("paused", "completed"):
            return []
        return self.file.next_times(NEXT_RUNS)

    @property
    def runs(self) -> int:
        """Number of runs started."""
        return 0 if self.resource is None else int(self.resource.started_run_count)

    @property
    def title(self) -> str:
        """Name with the resource name, and the state with the next run time."""
        name = f"{self.name} ({self.resource.name})" if self.resource is not None else self.name
        following = None if self.resource is None else self.resource.next_run_time
        if self.state != "active" or not following:
            return f"{name}: {self.state}"
        return f"{name}: {self.state}, next run {_clock(following.astimezone(self.zone))}"

    @property
    def last_run(self) -> datetime | None:
        """When the last run was due; None if none was."""
        return None if self.resource is None else self.resource.last_scheduled_run_response.scheduled_run_time

    @property
    def refused(self) -> UserError | None:
        """Why the last run was not started; None if it was."""
        if self.resource is None or not (why := refused(self.resource)):
            return None
        return as_user_error(why, "refused", facts_of(self.config))

    def loss(self) -> list[str]:
        """Return lines about what is deleted with it."""
        return [f"{self.title}, {self.runs} runs started"]

    def lines(self) -> list[str]:
        """Return the output lines."""
        title, *lines = super().lines()
        last = []
        if self.last_run:
            error, due = self.refused, _clock(self.last_run.astimezone(self.zone))
            last.append(f"  last run {due}: {error.message if error else 'started'}")
            last += [f"  fix: {error.fix}"] if error else []
        if self.next_runs:
            lines.append("  next: " + ", ".join(_clock(time) for time in self.next_runs))
        return [title, *last, *lines]

    def as_dict(self) -> JsonObject:
        """Return the result for --json."""
        return {
            **super().as_dict(),
            "state": self.state,
            "runs": self.runs,
            "last_run": self.last_run and self.last_run.isoformat(),
            "refused": self.refused.as_dict() if self.refused else None,
            "next_runs": [time.isoformat() for time in self.next_runs],
        }


def _clock(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z")
