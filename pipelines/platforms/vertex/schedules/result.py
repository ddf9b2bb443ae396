"""What a command shows of a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from slipway.components.cloud.explanation import evaluated
from slipway.components.cloud.known_errors.table import as_user_error
from slipway.core.errors import UserError
from slipway.core.formatting import number
from slipway.core.values import JsonObject
from slipway.pipelines.platforms.vertex.declared import Result, number_of
from slipway.pipelines.platforms.vertex.facts import facts_of
from slipway.pipelines.platforms.vertex.schedules.difference import refused
from slipway.pipelines.platforms.vertex.tasks import RUN_STATUS

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import PipelineJob

NEXT_RUNS = 3
# Of the runs that a schedule has started, so many are read; and of those, the metrics of so many are shown.
RECENT_RUNS, SHOWN_METRICS = 20, 5


@dataclass(frozen=True)
class ScheduledRun:
    """A run that a schedule started: its id, start, status, and the gate's metric, if it has been evaluated."""

    run_id: str
    started: datetime
    status: str
    metric: str = ""
    value: float | None = None


def scheduled_run(job: PipelineJob) -> ScheduledRun:
    """Return what is shown of a job."""
    evaluation = evaluated(job)
    metric = str(evaluation.get("metric", ""))
    value = evaluation.get("metrics", {}).get(metric)
    return ScheduledRun(number_of(job), job.create_time, RUN_STATUS.get(job.state.name, "running"), metric, value)


@dataclass
class ScheduleResult(Result):
    """One schedule; `recent` are its runs, the newest first, if they were read."""

    kind = "schedule"
    recent: Sequence[ScheduledRun] = ()

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
        """Next run times from the file; empty if paused, completed or just deleted."""
        is_deleted = self.resource is None and self.done
        if self.file is None or is_deleted or self.state in ("paused", "completed"):
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
        last += self._health()
        if self.next_runs:
            lines.append("  next: " + ", ".join(_clock(time) for time in self.next_runs))
        return [title, *last, *lines]

    def _health(self) -> Iterator[str]:
        ended = [run.status for run in self.recent if run.status != "running"]
        if ended:
            streak = next((count for count, status in enumerate(ended) if status != ended[0]), len(ended))
            yield (
                f"  runs: {ended.count('succeeded')} of the last {len(ended)} succeeded; "
                f"the last {'one' if streak == 1 else streak}: {ended[0]}"
            )
        measured = [run for run in self.recent if run.value is not None][:SHOWN_METRICS]
        if measured:
            same = [number(run.value) for run in measured if run.metric == measured[0].metric]
            yield f"  {measured[0].metric}, oldest first: {', '.join(reversed(same))}"

    def as_dict(self) -> JsonObject:
        """Return the result for --json."""
        return {
            **super().as_dict(),
            "state": self.state,
            "runs": self.runs,
            "last_run": self.last_run and self.last_run.isoformat(),
            "recent": [{**asdict(run), "started": run.started.isoformat()} for run in self.recent],
            "refused": self.refused.as_dict() if self.refused else None,
            "next_runs": [time.isoformat() for time in self.next_runs],
        }


def _clock(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z")
