"""Read or follow the log lines of custom jobs from Cloud Logging, for all replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.log_entries import LogEntries, text_of, time_of
from slipway.core.noise import is_noise
from slipway.core.values import JsonObject

# The source of the service's own messages about a job.
SERVICE = "service"


@dataclass(frozen=True)
class LogLine:
    """One log line: time, the custom job's number, the replica (workerpool0-0), severity, text."""

    time: datetime
    job: str
    replica: str
    severity: str
    text: str


class LogReader:
    """Reads the logs of custom jobs; returns each line once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._entries: dict[str, LogEntries] = {}

    def read(self, jobs: Iterable[str]) -> list[LogLine]:
        """Return the new lines of `jobs` (resource names) since the last call, in the order of their times."""
        lines = []
        for number in [job.rpartition("/")[2] for job in jobs]:
            if number not in self._entries:
                terms = ['resource.type="ml_job"', f'resource.labels.job_id="{number}"']
                self._entries[number] = LogEntries(self._connection, terms)
            for entry in self._entries[number].read():
                lines += _lines(number, entry)
        return sorted(lines, key=lambda line: line.time)


def _lines(number: str, entry: JsonObject) -> list[LogLine]:
    labels = entry.get("resource", {}).get("labels", {})
    # The machines of a TPU slice are one replica; a label distinguishes them.
    worker = entry.get("labels", {}).get("ml.googleapis.com/tpu_worker_id", "")
    replica = labels.get("task_name", SERVICE) + (f"-{worker}" if worker else "")
    severity, time = entry.get("severity", "DEFAULT"), time_of(entry)
    return [LogLine(time, number, replica, severity, text) for text in text_of(entry).splitlines()]


def not_noise(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return the lines without the libraries' start-up messages."""
    return [line for line in lines if not is_noise(line.text)]
