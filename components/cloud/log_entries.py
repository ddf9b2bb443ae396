"""New entries of Cloud Logging that match a filter, each returned once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import retried
from slipway.core.values import JsonObject

PAGE = 1000
# Entries of different machines arrive out of order; each read goes back this far for late ones.
LATE = timedelta(seconds=60)


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
        self._forget()
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

    def _forget(self) -> None:
        """Drop the keys of entries that are too old to be returned again."""
        newest = self._newest
        if newest is not None:
            self._seen = {key: time for key, time in self._seen.items() if time >= newest - 2 * LATE}


def time_of(entry: JsonObject) -> datetime:
    """Return an entry's timestamp, which has nanoseconds; Python keeps microseconds."""
    seconds, _, fraction = str(entry["timestamp"]).removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6].ljust(6, '0')}").replace(tzinfo=UTC)


def text_of(entry: JsonObject) -> str:
    """Return an entry's text, without the line break at its end."""
    payload = entry.get("jsonPayload", {})
    return str(payload.get("message") or entry.get("textPayload") or "").rstrip("\n")
