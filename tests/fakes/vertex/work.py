"""What a custom job does between acceptance and end: by a test's script, or in real containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.logging import Log
from tests.fakes.vertex.script import Failure, StepScript


@dataclass(frozen=True)
class Ended:
    """The end of a job's work: success or a failure."""

    failure: Failure | None = None


class Work(Protocol):
    """The work of one job."""

    def check(self) -> None:
        """Raise the service's error if it rejects the job."""

    def start(self, job: vertex.CustomJob) -> None:
        """Start the work: the job has its machines."""

    def look(self) -> Ended | None:
        """Return how it ended; None while it runs."""

    def stop(self) -> None:
        """Start to end it; a later poll reports the end."""


class ScriptedWork:
    """Waits, prints and ends according to its script and the number of polls."""

    def __init__(self, script: StepScript, log: Log) -> None:
        self._script = script
        self._log = log
        self._looks = 0
        self._stopped = False
        self._job = ""

    def check(self) -> None:
        if self._script.refused is not None:
            raise self._script.refused

    def start(self, job: vertex.CustomJob) -> None:
        self._job = job.name

    def look(self) -> Ended | None:
        if self._stopped:
            return Ended()
        self._looks += 1
        ends = self._looks >= self._script.looks
        for replica, lines in self._script.logs.items():
            for line in lines[self._looks - 1 :] if ends else lines[self._looks - 1 : self._looks]:
                self._log.write_job(self._job, replica, line)
        return Ended(self._script.failure) if ends else None

    def stop(self) -> None:
        self._stopped = True
