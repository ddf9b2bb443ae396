"""Dataflow jobs: names by which a run finds its own, their states, messages and metrics, and their cancellation.

https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.locations.jobs
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import NOT_FOUND, TRIES, pages, retried, status_of
from slipway.core.values import JsonObject

DONE, FAILED, CANCELLED = "JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"
TERMINAL = (DONE, FAILED, CANCELLED, "JOB_STATE_UPDATED", "JOB_STATE_DRAINED")
# Active jobs that cannot be used any more.
ENDING = ("JOB_STATE_CANCELLING", "JOB_STATE_DRAINING")
# A job's name has at most 1,024 characters; Dataflow derives the names of its workers from it.
MAX_READABLE = 40
DIGEST_LETTERS = 10
LABEL = "slipway-run"
MAX_LABEL = 63


def prefix_of(run: str, title: object = None) -> str:
    """Return the beginning of the names of a run's jobs.

    Args:
        run: What identifies the run: its base output directory.
        title: A readable beginning, a letter first; by default, the run's name.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", str(title or f"slipway-{_name(run)}").lower())[:MAX_READABLE].strip("-")
    return f"{readable}-{_digest(run)}-"


def job_name(prefix: str, work: str) -> str:
    """Return the name of the job that writes into the folder `work`, among the jobs of one run."""
    return f"{prefix}{_digest(work)}"


def run_label(run: str) -> str:
    """Return the label of a run's jobs as KEY=VALUE."""
    return f"{LABEL}={re.sub(r'[^a-z0-9_-]', '-', _name(run).lower())[:MAX_LABEL]}"


def _name(run: str) -> str:
    """Return the run's id: on this machine, the output directory is the folder `train` of the run's."""
    return run.rstrip("/").removesuffix("/train").rpartition("/")[2]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LETTERS]


@dataclass(frozen=True)
class DataflowJobs:
    """The Dataflow jobs of a connection's project and region. The methods raise what Google's client raises."""

    connection: Connection

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> DataflowJobs:
        """Return the jobs of the project and region in Beam's pipeline options."""
        endpoint = str(options.get("dataflow_endpoint") or "").partition("://")[2].rstrip("/")
        endpoints = {"dataflow": endpoint} if endpoint else {}
        return cls(Connection(str(options["project"]), str(options["region"]), endpoints))

    def active(self, prefix: str) -> list[JsonObject]:
        """Return summaries of the jobs that have not ended and whose names start with `prefix`, oldest first."""
        every = [job for page in pages(self._api, **self._place, filter="ACTIVE") for job in page.get("jobs", [])]
        jobs = [job for job in every if str(job["name"]).startswith(prefix)]
        return sorted(jobs, key=lambda job: str(job.get("createTime", "")))

    def get(self, job: str) -> JsonObject:
        """Return the summary of a job. A new one may not be found at once (Beam's DataflowRunner retries, too)."""
        request = self._api.get(**self._place, jobId=job, view="JOB_VIEW_SUMMARY")
        return dict(retried(request.execute, also=lambda error: status_of(error) == NOT_FOUND))

    def cancel(self, job: str, tries: int = TRIES) -> None:
        """Request the cancellation of a job, which has no effect on one that has ended."""
        body = {"requestedState": CANCELLED}
        retried(self._api.update(**self._place, jobId=job, body=body).execute, tries=tries)

    def messages(self, job: str, since: str | None) -> Iterator[JsonObject]:
        """Return the pages of a job's messages of importance BASIC and above, and of its autoscaling events.

        Args:
            job: The job's id.
            since: The time of the earliest message; None for all.
        """
        start = {"startTime": since} if since else {}
        return pages(self._api.messages(), **self._place, jobId=job, minimumImportance="JOB_MESSAGE_BASIC", **start)

    def metrics(self, job: str) -> list[JsonObject]:
        """Return a job's metrics."""
        return list(retried(self._api.getMetrics(**self._place, jobId=job).execute).get("metrics", []))

    def console(self, job: str) -> str:
        """Return the address of a job's page."""
        connection = self.connection
        return f"https://console.cloud.google.com/dataflow/jobs/{connection.region}/{job}?project={connection.project}"

    def cancel_command(self, job: str) -> str:
        """Return the command that cancels a job."""
        connection = self.connection
        return f"gcloud dataflow jobs cancel {job} --region={connection.region} --project={connection.project}"

    @property
    def _api(self) -> Any:
        return self.connection.api("dataflow", "v1b3").projects().locations().jobs()

    @property
    def _place(self) -> dict[str, str]:
        return {"projectId": self.connection.project, "location": self.connection.region}
