"""The machines of a TPU node: each runs the start-up script with bash, as a Google Cloud machine does at every boot.

A host is a process group on this machine, with its own metadata server and home folder. Google's addresses lead to the
fakes, for curl and for Python; `docker`, `gcsfuse`, `apt-get`, `systemd-run` and `python3` are stand-ins (`machine/`).
Nothing that a host has started outlives `Host.stop`: every process of it is known by a variable of its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.fakes.metadata_server import MetadataServer
from tests.fakes.mount import Mount
from tests.fakes.tpu.catalogue import Slice
from tests.fakes.world import Project
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.fakes.google import FakeGoogle

STAND_INS = Path(__file__).parent / "machine"
# What every process of a host has in its environment.
MARK = "SLIPWAY_TEST_HOST"
POLL_SECONDS = 0.02
EXEC_POLLS = 5
KERNEL = 2  # the parent of its threads
# The user of Slipway's images (containers/Dockerfile).
IMAGE_USER = "65534"


@dataclass
class Machines:
    """What all hosts share: the folder for their files, the fakes' addresses, and the mounted buckets.

    `containers` are additional variables of the processes that stand in for containers. In `images`, images have users
    other than the one of Slipway's images.
    """

    google: FakeGoogle
    folder: Path
    containers: dict[str, str] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mounted = self.folder / "buckets"
        self.mark = uuid.uuid4().hex
        self._lock = threading.Lock()

    def processes(self) -> list[int]:
        """Return the ids of the running processes of all hosts."""
        return [process.pid for process in _marked(f"{MARK}={self.mark}")]

    def addresses(self) -> dict[str, str]:
        """Return where Google's addresses lead, by host and port."""
        google = self.google
        return {f"{name}.googleapis.com:443": google.endpoints[name] for name in ("storage", "tpu", "logging")}

    def mount(self) -> None:
        """Show the buckets as folders below `mounted` from now on."""
        storage, world = self.google.storage, self.google.world
        with self._lock, world.lock:
            if storage.mount is None:
                self.mounted.mkdir(parents=True)
                storage.mount = Mount(storage, self.mounted)
            for bucket in world.buckets:
                storage.mount.give_out(bucket)

    def pullable(self, email: str) -> dict[str, str]:
        """Return the images that an account may pull, with the users that they run as."""
        google = self.google
        held = {(repository, package, digest) for repository, package, digest in google.images.untagged}
        held |= {(repository, package, digest) for (repository, package, _), digest in google.images.tags.items()}
        found = {}
        for repository, package, digest in held:
            _, project, _, location, _, name = repository.split("/")
            # Repositories with the name of a host of Container Registry hold its images.
            host = f"{name}/{project}" if name.endswith("gcr.io") else f"{location}-docker.pkg.dev/{project}/{name}"
            uri = f"{host}/{package}@{digest}"
            permission = "artifactregistry.repositories.downloadArtifacts"
            if google.world.allowed(email, permission, repository, f"projects/{project}"):
                found[uri] = self.images.get(uri, IMAGE_USER)
        return found


def require_curl() -> None:
    """Skip a test whose hosts run a start-up script if this machine does not have curl: it would wait for minutes."""
    if shutil.which("curl") is None:
        pytest.skip("curl, which the start-up script of a TPU uses, is not installed")


class Host:
    """One machine of a node. `output` is what the start-up script has written, `boots` how often it was started."""

    def __init__(self, machines: Machines, folder: Path, email: str, metadata: dict[str, str], tpu: dict[str, str]):
        self._machines = machines
        self._email = email
        self._tpu = tpu
        self._server = MetadataServer(
            machines.google.world.projects[metadata.pop("project")].id,
            int(metadata.pop("number")),
            email,
            attributes=metadata,
            instance={"preempted": lambda: str(self.preempted).upper(), "zone": lambda: metadata["zone"]},
        )
        self._mark = f"{machines.mark}-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._stopped = False
        self._startup: subprocess.Popen[bytes] | None = None
        self.script = metadata.get("startup-script", "")
        self.folder = folder
        self.preempted = False
        self.boots = 0
        self._server.__enter__()

    @property
    def output(self) -> str:
        path = self.folder / "startup.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def boot(self) -> None:
        """Start the machine; without a start-up script it does nothing."""
        with self._lock:
            self._boot()

    def restart(self) -> None:
        """Kill its processes and start it again, unless it has been stopped for good."""
        with self._lock:
            if not self._stopped:
                self._end(0.0)
                self._boot()

    def processes(self) -> list[psutil.Process]:
        """Return the host's running processes."""
        return _marked(f"{MARK}={self._mark}")

    def stop(self, grace_seconds: float) -> None:
        """Shut the machine down for good: SIGTERM to the main processes of units, then to containers, then SIGKILL.

        The start-up script is not told: google-startup-scripts.service has KillMode=process, and its main process is
        not the script but what runs it.
        """
        with self._lock:
            self._stopped = True
            self._end(grace_seconds)

    def close(self) -> None:
        """Stop the metadata server, after `stop`."""
        self._server.__exit__()

    def _boot(self) -> None:
        self.boots += 1
        self._prepare()
        if not self.script:
            return
        script = self.folder / "startup-script"
        script.write_text(self.script)
        with (self.folder / "startup.log").open("a") as log:
            self._startup = subprocess.Popen(
                ["bash", str(script)],
                env=self._environment(),
                cwd=self.folder / "root",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, grace_seconds: float) -> None:
        end = time.monotonic() + grace_seconds
        if grace_seconds:
            (self.folder / "shutdown").touch()
            for told in (self.units, self._containers):
                _signal(told(), signal.SIGTERM)
                while told() and time.monotonic() < end:
                    time.sleep(POLL_SECONDS)
        while running := self.processes():
            if time.monotonic() >= end:
                _signal(running, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        if self._startup is not None:
            self._startup.wait()

    def units(self) -> list[psutil.Process]:
        """Return the main processes of the running units."""
        return self._recorded("units", lambda text: int(json.loads(text)["pid"]))

    def _containers(self) -> list[psutil.Process]:
        return self._recorded("containers", int)

    def _recorded(self, folder: str, pid: Callable[[str], int]) -> list[psutil.Process]:
        found = []
        for path in (self.folder / folder).iterdir():
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                process = psutil.Process(pid(path.read_text()))
                found += [process] if process.status() != psutil.STATUS_ZOMBIE else []
        return found

    def _prepare(self) -> None:
        """Make the home folder, with curl's configuration and the stand-ins.

        A restarted machine has an empty /tmp, and no container that was started with --rm: docker removes those when it
        starts.
        """
        (self.folder / "shutdown").unlink(missing_ok=True)
        for name in ("root", "tmp", "bin", "containers", "units"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(parents=True)
        self._machines.mount()
        authority = self._machines.google.certificates.authority_file
        lines = [f'connect-to = "{public}:{actual}"' for public, actual in self._redirects().items()]
        (self.folder / ".curlrc").write_text("\n".join([*lines, f'cacert = "{authority}"', ""]))
        machine = {
            "email": self._email,
            "images": self._machines.pullable(self._email),
            "buckets": sorted(self._machines.google.world.buckets),
            "mounted": str(self._machines.mounted),
            "containers": {**self._tpu, **self._machines.containers},
            "path": os.environ["PATH"],
            "python": sys.executable,
        }
        (self.folder / "machine.json").write_text(json.dumps(machine))
        for stand_in in ("docker", "gcsfuse", "apt-get", "systemd-run", "python3"):
            path = self.folder / "bin" / stand_in
            code = [f"{STAND_INS / stand_in.replace('-', '_')}.py"] if stand_in != "python3" else []
            path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *code])} "$@"\n')
            path.chmod(0o755)

    def _redirects(self) -> Mapping[str, str]:
        metadata = self._server.environment["GCE_METADATA_HOST"]
        return {"metadata.google.internal:80": metadata, "169.254.169.254:80": metadata, **self._machines.addresses()}

    def _environment(self) -> dict[str, str]:
        """Return the environment of the start-up script: nothing of this process's."""
        return {
            "PATH": f"{self.folder / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "CURL_HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "SSL_CERT_FILE": str(self._machines.google.certificates.authority_file),
            "PYTHONPATH": str(STAND_INS / "site"),
            "SLIPWAY_TEST_REDIRECTS": json.dumps(self._redirects()),
            "SLIPWAY_TEST_MACHINE": str(self.folder),
            MARK: self._mark,
        }


def hosts_of(machines: Machines, node: dict[str, Any], tpu: Slice, project: Project, email: str) -> list[Host]:
    """Return a node's hosts, with the metadata that TPU VMs have.

    Source of the attributes: jax/_src/clusters/cloud_tpu_cluster.py and cloud_tpu_init.py, which read
    agent-worker-number, accelerator-type, worker-network-endpoints and tpu-env. JAX finds no TPU here: the variables
    that a TPU VM on GKE has tell it the same.
    """
    zone = node["name"].split("/")[3]
    addresses = [endpoint["ipAddress"] for endpoint in node["networkEndpoints"]]
    coordinator = f"127.0.0.1:{free_port()}"
    hosts = []
    for number in range(len(addresses)):
        tpu_env = {
            "ACCELERATOR_TYPE": tpu.accelerator_type,
            "CONSUMER_PROJECT_ID": project.id,
            "NODE_ID": node["name"].rpartition("/")[2],
            "ZONE": zone,
            "WORKER_ID": str(number),
        }
        metadata = {
            **node.get("metadata", {}),
            "project": project.id,
            "number": str(project.number),
            "zone": f"projects/{project.number}/zones/{zone}",
            "agent-worker-number": str(number),
            "accelerator-type": tpu.accelerator_type,
            "worker-network-endpoints": ",".join(f"unknown:unknown:{address}" for address in addresses),
            "tpu-env": "".join(f"{name}: '{value}'\n" for name, value in tpu_env.items()),
        }
        slice_variables = {
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "TPU_WORKER_ID": str(number),
            "TPU_WORKER_HOSTNAMES": ",".join(["127.0.0.1"] * len(addresses)),
        }
        folder = machines.folder / f"{tpu_env['NODE_ID']}-{uuid.uuid4().hex[:6]}-{number}"
        hosts.append(Host(machines, folder, email, metadata, slice_variables if len(addresses) > 1 else {}))
    return hosts


def _marked(text: str) -> list[psutil.Process]:
    """Return the running processes that have this text in their environment.

    Also those that are forked meanwhile: if the parent ends first, no list that was made before has them.
    """
    marked: list[psutil.Process] = []
    seen: set[int] = set()
    while new := {*psutil.pids()} - seen:
        seen |= new
        for pid in sorted(new):  # parents first: a shell would say that its child was killed
            with contextlib.suppress(psutil.Error, OSError):
                if text.encode() in _environment(process := psutil.Process(pid)):
                    marked.append(process)
    return marked


def _environment(process: psutil.Process) -> bytes:
    """Return the environment of a process; b"" if it has ended or is the kernel's."""
    for _ in range(EXEC_POLLS):
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        if environment or process.status() == psutil.STATUS_ZOMBIE or process.ppid() in (0, KERNEL):
            break
        time.sleep(POLL_SECONDS)  # it has none while it becomes another program
    return environment


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
