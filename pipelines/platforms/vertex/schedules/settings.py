"""Settings of a schedule file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt, WithJsonSchema

from slipway.trainer.settings import Settings

# A time without an offset is in the schedule's time zone; JSON Schema's format date-time requires an offset.
Time = Annotated[datetime, WithJsonSchema({"type": "string"})]


class ScheduleSettings(Settings):
    """A schedule on Vertex AI, `configs/schedules/NAME.yaml`; the file name is the schedule's name."""

    configuration: Path = Field(description="Path of the run configuration, relative to the working directory.")
    set: tuple[str, ...] = Field(default=(), description="Overrides of the configuration, as KEY=VALUE.")
    hardware: str | None = Field(
        default=None, description="Overrides the configuration's hardware; null: the configuration's."
    )
    cron: str = Field(
        description="Minute, hour, day of the month, month and day of the week (0-6 or SUN-SAT); lists 1,3, ranges 1-5 "
        "and steps */15 are allowed."
    )
    time_zone: str = Field(
        default="UTC", description="IANA time zone of `cron`, and of `start` and `end` without an offset."
    )
    max_concurrent_runs: PositiveInt = Field(
        default=1, description="Maximum number of runs that are being started at the same time."
    )
    max_active_runs: PositiveInt | None = Field(
        default=None, description="Maximum number of runs in progress at the same time; null: no limit."
    )
    allow_queueing: bool = Field(
        default=False, description="Queue runs that exceed a limit; by default, they are skipped."
    )
    max_runs: PositiveInt | None = Field(
        default=None, lt=2**63, description="Number of runs after which the schedule ends; null: no limit."
    )
    start: Time | None = Field(default=None, description="Time before which no run starts; null: now.")
    end: Time | None = Field(default=None, description="Time at which the schedule ends; null: never.")
    paused: bool | None = Field(
        default=None,
        description="Whether `slipway schedule apply` pauses (true) or resumes (false) the schedule; null: only "
        "`slipway schedule pause` and `resume` do.",
    )
