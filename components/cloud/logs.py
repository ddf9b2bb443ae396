"""New entries of Cloud Logging that match a filter, and the log lines of custom jobs, each returned once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import retried
from slipway.core.noise import is_noise
from slipway.core.values import JsonObject

PAGE = 1000
# Entries of different machines arrive out of order; each read goes back this far for late ones.
LATE = timedelta(seconds=60)
# The source of the service's own messages about a job.
SERVICE = "service"


class LogEntries:
    """Reads the entries of a project that match all of `terms`, such as 'resource.type="build"'."""

    def __init__(self, connection: Connection, terms: Sequence[str]) -> None:
        self._connection = connection
        self._terms = list(terms)
        self._seen: dict[tuple[str, str], datetime] = {}
        self._newest: datetime | None = None

    def read(self) -> list[JsonObject]:
        """Return the entries that are new since the last call, in the order of their times."""
        new = []
        for entry in self._list():
            key, time = (entry.get("logName", ""), entry["insertId"]), time_of(entry)
            if key not in self._seen:
                self._seen[key] = time
                self._newest = max(time, self._newest or time)
                new.append(entry)
        if self._newest is not None:  # keys of older entries are not returned again
            oldest = self._newest - 2 * LATE
            self._seen = {key: time for key, time in self._seen.items() if time >= oldest}
        return sorted(new, key=time_of)

    def _list(self) -> Iterator[JsonObject]:
        terms = self._terms
        if self._newest is not None:
            since = (self._newest - LATE).isoformat(timespec="microseconds").replace("+00:00", "Z")
            terms = [*terms, f'timestamp>="{since}"']
        body: JsonObject = {
            "resourceNames": [f"projects/{self._connection.project}"],
            "filter": " AND ".join(terms),
            "orderBy": "timestamp asc",
            "pageSize": PAGE,
        }
        entries = self._connection.api("logging", "v2").entries()
        while True:
            answer = retried(lambda: entries.list(body=body).execute())
            yield from answer.get("entries", [])
            if not answer.get("nextPageToken"):
                return
            body["pageToken"] = answer["nextPageToken"]


def time_of(entry: JsonObject) -> datetime:
    """Return an entry's timestamp, which has nanoseconds; Python keeps microseconds."""
    seconds, _, fraction = str(entry["timestamp"]).removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6].ljust(6, '0')}").replace(tzinfo=UTC)


def text_of(entry: JsonObject) -> str:
    """Return an entry's text, without the line break at its end."""
    payload = entry.get("jsonPayload", {})
    return str(payload.get("message") or entry.get("textPayload") or "").rstrip("\n")


@dataclass(frozen=True)
class LogLine:
    """One log line: time, the job's number, the replica (workerpool0-0), severity, text.

    The log of a search has the lines of all trials; `trial` is the trial's number, "" in other logs.
    """

    time: datetime
    job: str
    replica: str
    severity: str
    text: str
    trial: str = ""


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
    entry_labels = entry.get("labels", {})
    trial = entry_labels.get("ml.googleapis.com/trial_id") or entry_labels.get("trial_id", "")
    return [LogLine(time, number, replica, severity, text, trial) for text in text_of(entry).splitlines()]


def not_noise(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return the lines without the libraries' start-up messages."""
    return [line for line in lines if not is_noise(line.text)]
