"""Cloud Logging: entries that the other fakes write, and entries.list with its filter, order and pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.filters import matcher
from tests.fakes.http_service import HttpService, Request
from tests.fakes.paging import page_of
from tests.fakes.world import World

LARGEST_PAGE = 1000


class Log:
    """All entries in order of arrival; timestamps differ by at least a microsecond."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: list[dict[str, Any]] = []
        self._last = datetime.fromtimestamp(0, UTC)
        # The search and the number of the trial that custom jobs execute: their lines are in the search's log.
        self.trials: dict[str, tuple[str, str]] = {}

    def write(self, project: str, log: str, resource: dict[str, Any], line: str | dict[str, Any]) -> None:
        """Store a line. A dict has its "message" and the entry's fields: severity, labels, textPayload."""
        with self.world.lock:
            self._last = max(datetime.now(UTC), self._last + timedelta(microseconds=1))
            fields = {"message": line} if isinstance(line, str) else dict(line)
            message = fields.pop("message", None)
            stamp = self._last.isoformat(timespec="microseconds").replace("+00:00", "Z")
            entry = {
                "logName": f"projects/{project}/logs/{log}",
                "resource": resource,
                "timestamp": stamp,
                "receiveTimestamp": stamp,
                "severity": "INFO",
                "insertId": f"e{len(self.entries):08d}",
                **fields,
            }
            if message is not None:
                entry["jsonPayload"] = {"message": message, "levelname": entry["severity"]}
            self.entries.append(entry)

    def write_job(self, job: str, replica: str, line: str | dict[str, Any]) -> None:
        """Store a line of a custom job's replica (workerpool0-0) or of the service ("service")."""
        if job in self.trials:
            job, trial = self.trials[job]
            fields = {"message": line} if isinstance(line, str) else line
            line = {**fields, "labels": {**fields.get("labels", {}), "ml.googleapis.com/trial_id": trial}}
        _, number, _, location, _, identity = job.split("/")
        project = self.world.project(number).id
        labels = {"job_id": identity, "project_id": project, "task_name": replica, "location": location}
        self.write(project, replica, {"type": "ml_job", "labels": labels}, line)

    def write_pipeline(self, job: str, line: str | dict[str, Any]) -> None:
        """Store a line of the service about a pipeline job."""
        _, number, _, location, _, identity = job.split("/")
        project = self.world.project(number).id
        labels = {"pipeline_job_id": identity, "resource_container": number, "location": location}
        self.write(
            project,
            "aiplatform.googleapis.com%2Fpipeline_job_task_events",
            {"type": "aiplatform.googleapis.com/PipelineJob", "labels": labels},
            line,
        )


def add_logging(service: HttpService, world: World, log: Log) -> None:
    """Handle logging v2's entries.list."""

    @service.route("POST", "/v2/entries:list")
    def list_entries(request: Request) -> Any:
        asked = request.json
        names = asked.get("resourceNames") or []
        if not names:
            raise ServiceError(400, "At least one resource name must be specified.")
        ids = []
        for name in names:
            project = world.project(name.removeprefix("projects/"))
            world.require(request.caller, "logging.logEntries.list", f"projects/{project.id}")
            ids.append(project.id)
        order = asked.get("orderBy") or "timestamp asc"
        if order not in ("timestamp asc", "timestamp desc"):
            raise ServiceError(400, f"Invalid order_by: {order}.")
        passes = matcher(asked.get("filter") or "")
        with world.lock:
            found = [entry for entry in log.entries if entry["logName"].split("/")[1] in ids and passes(entry)]
        found.sort(key=lambda entry: (entry["timestamp"], entry["insertId"]), reverse=order.endswith("desc"))
        page, following = page_of(found, asked.get("pageSize") or 50, asked.get("pageToken") or "", LARGEST_PAGE)
        return {"entries": page, **({"nextPageToken": following} if following else {})}
