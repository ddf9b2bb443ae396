"""Read or follow the log lines of custom jobs from Cloud Logging, for all replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
        self._entries = connection.api("logging", "v2").entries()
        self._seen: dict[str, datetime] = {}
        self._newest: dict[str, datetime] = {}

    def read(self, jobs: Iterable[str]) -> list[LogLine]:
        """Return the new lines of `jobs` (resource names) since the last call, in the order of their times."""
        lines = []
        for number in [job.rpartition("/")[2] for job in jobs]:
            since = self._newest.get(number)
            for entry in self._list(number, since - LATE if since else None):
                lines += self._take(number, entry)
        self._forget()
        return sorted(lines, key=lambda line: line.time)

    def _take(self, number: str, entry: JsonObject) -> list[LogLine]:
        time = _time(entry["timestamp"])
        key = f"{number}/{entry.get('logName', '')}/{entry['insertId']}"
        if key in self._seen:
            return []
        self._seen[key] = time
        self._newest[number] = max(time, self._newest.get(number, time))
        labels = entry.get("resource", {}).get("labels", {})
        # The machines of a TPU slice are one replica; a label distinguishes them.
        worker = entry.get("labels", {}).get("ml.googleapis.com/tpu_worker_id", "")
        replica = labels.get("task_name", SERVICE) + (f"-{worker}" if worker else "")
        severity = entry.get("severity", "DEFAULT")
        return [LogLine(time, number, replica, severity, text) for text in _text(entry).splitlines()]

    def _list(self, number: str, since: datetime | None) -> Iterator[JsonObject]:
        """Yield the entries of one job, oldest first."""
        terms = ['resource.type="ml_job"', f'resource.labels.job_id="{number}"']
        if since is not None:
            terms.append(f'timestamp>="{since.isoformat(timespec="microseconds").replace("+00:00", "Z")}"')
        body: JsonObject = {
            "resourceNames": [f"projects/{self._connection.project}"],
            "filter": " AND ".join(terms),
            "orderBy": "timestamp asc",
            "pageSize": PAGE,
        }
        while True:
            answer = retried(lambda: self._entries.list(body=body).execute())
            yield from answer.get("entries", [])
            if not answer.get("nextPageToken"):
                return
            body["pageToken"] = answer["nextPageToken"]

    def _forget(self) -> None:
        """Drop the keys of entries that are too old to be returned again."""
        for number, newest in self._newest.items():
            prefix = f"{number}/"
            old = [key for key, time in self._seen.items() if key.startswith(prefix) and time < newest - 2 * LATE]
            for key in old:
                del self._seen[key]


def not_noise(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return the lines without the libraries' start-up messages."""
    return [line for line in lines if not is_noise(line.text)]


def _time(text: str) -> datetime:
    """Parse a timestamp with nanoseconds; Python keeps microseconds."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6].ljust(6, '0')}").replace(tzinfo=UTC)


def _text(entry: JsonObject) -> str:
    payload = entry.get("jsonPayload", {})
    return str(payload.get("message") or entry.get("textPayload") or "").rstrip("\n")
