"""The start-up script of the hosts: the variables of one request, followed by `startup.sh`.

Compute Engine runs the metadata `startup-script` as root at every start of the machine:
https://docs.cloud.google.com/compute/docs/instances/startup-scripts/linux.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from slipway.components.worker_pools import Container
from slipway.core.exit_codes import UNAVAILABLE

SCRIPT = Path(__file__).with_name("startup.sh")
# Where the hosts write, below the run's folder in the bucket: the lines of a log in parts that are named by their time
# in nanoseconds, HOSTS/TRY-HOST/TIME.log, and the exit code of the container, HOSTS/TRY-HOST.exit.
HOSTS = "hosts"


@dataclass(frozen=True)
class Startup:
    """What the hosts of one request need to know.

    Attributes:
        project: The project of the TPU.
        zone: Its zone.
        name: The name of its queued resource.
        attempt: The number of the request within the run.
        bucket: The bucket, without gs://.
        folder: The run's folder in the bucket.
        lease: The object that the launcher renews.
        lease_seconds: The age at which the lease has lapsed.
        max_seconds: How long a host may run.
        deadline: The time (seconds since the epoch) at which the hosts delete the TPU in any case.
        poll_seconds: Pause between two looks at the lease, and between two parts of the log.
        container: The container of the worker pool.
        environment: The other variables of the container.
        addresses: The host[:port] of the services `tpu` and `storage`.
    """

    project: str
    zone: str
    name: str
    attempt: int
    bucket: str
    folder: str
    lease: str
    lease_seconds: int
    max_seconds: int
    deadline: int
    poll_seconds: float
    container: Container
    environment: Mapping[str, str]
    addresses: Mapping[str, str]

    def script(self) -> str:
        """Return the script."""
        values = {
            "PROJECT": self.project,
            "ZONE": self.zone,
            "NAME": self.name,
            "TRY": self.attempt,
            "BUCKET": self.bucket,
            "FOLDER": self.folder,
            "LEASE": quote(self.lease, safe=""),
            "LEASE_SECONDS": self.lease_seconds,
            "MAX_SECONDS": self.max_seconds,
            "DEADLINE": self.deadline,
            "POLL_SECONDS": self.poll_seconds,
            "UNAVAILABLE": UNAVAILABLE,
            "IMAGE": self.container["image_uri"],
            "TPU_API": f"https://{self.addresses['tpu']}",
            "STORAGE_API": f"https://{self.addresses['storage']}",
        }
        lines = [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]
        command = self.container.get("command", [])
        own = {variable["name"]: variable["value"] for variable in self.container.get("env", [])}
        options = [f"--env={name}={value}" for name, value in {**self.environment, **own}.items()]
        options += [f"--entrypoint={command[0]}"] if command else []
        lines += [_array("OPTIONS", options), _array("ARGUMENTS", [*command[1:], *self.container.get("args", [])])]
        return "\n".join(["#!/bin/bash", *lines, SCRIPT.read_text()])


def _array(name: str, values: Sequence[str]) -> str:
    return f"{name}=({shlex.join(values)})"
