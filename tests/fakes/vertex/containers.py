"""Real containers for the fake Vertex AI: their common environment and the work that they do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from slipway.trainer.metrics.trial import FILE_VARIABLE
from tests.fakes.containers import Container
from tests.fakes.logging import Log
from tests.fakes.mount import Mount
from tests.fakes.vertex.container_steps import ContainerSteps
from tests.fakes.vertex.jobs import JobService
from tests.fakes.vertex.replicas import Replicas

CERTIFICATES = "/run/slipway-test/authority.pem"
SEVERITIES = {"stdout": "INFO", "stderr": "ERROR"}


@dataclass(frozen=True)
class Containers:
    """Containers started through the Docker API at `docker_host`.

    `mount` is mounted at /gcs in containers. `authority` is the file of the certificate
    authority of the fake Google addresses `hosts`. `environment` has additional variables of the containers.
    """

    docker_host: str
    mount: Mount
    authority: Path
    hosts: Mapping[str, str]
    environment: Mapping[str, str]
    log: Log

    def custom_job(self) -> Replicas:
        """Return the work of a custom job that is created by a call."""
        return Replicas(self)

    def steps(self, pipeline: vertex.PipelineJob, jobs: JobService) -> ContainerSteps:
        """Return the work of a pipeline job's tasks."""
        return ContainerSteps(self, pipeline, jobs)

    def start(
        self,
        image: str,
        command: list[str],
        *,
        entrypoint: list[str] | None = None,
        environment: Mapping[str, str],
        hosts: Mapping[str, str] | None = None,
        labels: Mapping[str, str],
        job: str,
        replica: str,
    ) -> Container:
        """Start a container that writes to a job's log."""
        trust = dict.fromkeys(("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "REQUESTS_CA_BUNDLE"), CERTIFICATES)
        mounts = {self.mount.folder: "/gcs", self.authority: CERTIFICATES}
        if file := environment.get(FILE_VARIABLE):  # the service reads it while the trial is running
            folder = Path(file).parent
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # the container's user is another one
            mounts[folder] = str(folder)
        return Container(
            self.docker_host,
            image,
            command,
            entrypoint=entrypoint,
            environment={**trust, **self.environment, **environment},
            hosts={**self.hosts, **(hosts or {})},
            mounts=mounts,
            labels=labels,
            hear=lambda stream, line: self.log.write_job(job, replica, _entry(stream, line)),
        )


def _entry(stream: str, line: str) -> dict[str, Any]:
    """Parse a line as the service's agent does: JSON has a message and a severity."""
    entry = {"severity": SEVERITIES[stream], "message": line}
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except ValueError:
            return entry
        entry |= {name: fields[name] for name in ("severity", "message") if name in fields}
    return entry
