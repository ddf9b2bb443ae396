"""Run steps in containers through the Docker API (Docker, podman) at DOCKER_HOST.

A run's folders have the same paths inside and outside, and the user owns what the steps write.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from slipway.components.step import LOGS_VARIABLE
from slipway.core.errors import UserError
from slipway.core.events import EVENTS_VARIABLE
from slipway.core.paths import local_path
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.locations import locations
from slipway.pipelines.runs.record import RunFolder

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

    # Arguments of DockerClient.containers.create.
    ContainerArguments: TypeAlias = JsonObject

RUN_LABEL = "slipway.run"
GPU_DEVICE = Path("/dev/nvidiactl")
STOP_SECONDS = 15
# How long the output's stream may continue after a container's end.
OUTPUT_SECONDS = 5.0
# The "image" of a task that runs as a process beside the containers: it starts containers itself.
HOST = "host"
# The workers of Keras and TensorFlow pass batches through shared memory; Docker's default is 64 MB.
SHARED_MEMORY = "1g"


@contextlib.contextmanager
def docker_client() -> Iterator[DockerClient]:
    """Open a client of the Docker API.

    Raises:
        UserError: No Docker API is reachable.
    """
    import docker

    host = os.environ.get("DOCKER_HOST")
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        raise UserError(
            f"No Docker API answers: {str(error).partition(': ')[0]}.",
            setting="DOCKER_HOST",
            value=host,
            allowed="Docker, or podman's service: podman system service --time=0 unix:///run/podman/podman.sock",
            fix="start Docker; or export DOCKER_HOST=unix:///run/podman/podman.sock",
        ) from None
    try:
        yield client
    finally:
        client.close()


def has_gpus() -> bool:
    """Return whether this machine has NVIDIA GPUs; containers then have access to all of them."""
    return GPU_DEVICE.exists()


def run_arguments(folder: RunFolder, config: RunConfig) -> ContainerArguments:
    """Return the container arguments for kfp's DockerRunner."""
    from docker import types

    with docker_client() as client:
        user = _user(client)
    arguments: ContainerArguments = {
        **user,
        "labels": {RUN_LABEL: folder.run_id},
        "mounts": [types.Mount(str(path), str(path), type="bind") for path in mounted_folders(config, Path.cwd())],
        "working_dir": str(Path.cwd()),
        "environment": {
            EVENTS_VARIABLE: str(folder.events_file),
            LOGS_VARIABLE: str(folder.logs),
        },
        "shm_size": SHARED_MEMORY,
    }
    if has_gpus():
        arguments["device_requests"] = [types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
    return arguments


def run_container(
    client: DockerClient, image: str, command: list[str], volumes: JsonObject, **arguments: object
) -> int:
    """Run a container, copy its output to stdout, and return its exit code.

    Replaces `run_docker_container` of kfp, which lets the server remove a finished container and treats a missing one
    as successful: a short step's container is often removed before its output is read. A task with the image `HOST`
    runs as a process.
    """
    if image == HOST:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return subprocess.run(command, env={**os.environ, "PATH": path}, check=False).returncode
    from docker import errors

    try:
        client.images.get(image)
    except errors.ImageNotFound:
        print(f"pulling {image}", flush=True)
        client.images.pull(image)
    return run_to_end(client.containers.create(image=image, command=command, volumes=volumes, **arguments))


def run_to_end(container: Container) -> int:
    """Start a container, copy its output to stdout, remove it, and return its exit code.

    Podman's stream of the output may continue after the container's end
    (https://github.com/podman-container-tools/podman/issues/11461): what it omitted is then read by itself.
    """
    try:
        container.start()
        output = _Output(container)
        code = int(container.wait()["StatusCode"])
        output.finish()
        return code
    finally:
        container.remove(force=True)


class _Output:
    """Copies a container's output to stdout, in a thread."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._copied = 0
        self._stream = container.logs(stream=True, follow=True)
        self._reader = threading.Thread(target=self._copy, daemon=True)
        self._reader.start()

    def _copy(self) -> None:
        for chunk in self._stream:
            self._write(chunk)

    def _write(self, chunk: bytes) -> None:
        self._copied += len(chunk)
        sys.stdout.write(chunk.decode(errors="replace"))
        sys.stdout.flush()

    def finish(self) -> None:
        """Copy the rest; the container has ended."""
        self._reader.join(OUTPUT_SECONDS)
        if self._reader.is_alive():
            self._stream.close()
            self._reader.join()
            self._write(self._container.logs()[self._copied :])


def mounted_folders(config: RunConfig, here: Path) -> list[Path]:
    """Return the folders that the steps read and write: `here`, and those outside it that the settings name."""
    named = []
    for place in locations(config):
        path = local_path(place.location)
        named.append(path if place.default is not None else _folder_of(path))
    uri = config.data.uri if config.data else None
    if uri is not None and "://" not in uri:
        named.append(_folder_of(Path(uri)))
    folders = [here]
    for folder in (here / path for path in named):
        resolved = folder.resolve()
        if not any(resolved.is_relative_to(parent) for parent in folders):
            resolved.mkdir(parents=True, exist_ok=True)
            folders.append(resolved)
    return folders


def _folder_of(path: Path) -> Path:
    """Return the folder that contains a file, pattern or folder: of a pattern, the part before its first wildcard."""
    fixed = Path(*itertools.takewhile(lambda part: not set(part) & set("*?["), path.expanduser().parts))
    return fixed if fixed.is_dir() else fixed.parent


def stop_containers(run_id: str) -> None:
    """Stop a run's containers: SIGTERM to every process in them, then SIGKILL."""
    with contextlib.suppress(UserError), docker_client() as client:
        from docker import errors

        for container in client.containers.list(all=True, filters={"label": f"{RUN_LABEL}={run_id}"}):
            with contextlib.suppress(errors.APIError):
                # The first process is a shell, which does not forward signals.
                container.exec_run(["sh", "-c", "kill -TERM -1"])
            with contextlib.suppress(errors.APIError):
                container.stop(timeout=STOP_SECONDS)
            with contextlib.suppress(errors.APIError):
                container.remove(force=True)


def _user(client: DockerClient) -> ContainerArguments:
    """Run containers as the host user so that output files keep their ownership."""
    me = f"{os.getuid()}:{os.getgid()}"
    if not any("rootless" in option for option in client.info().get("SecurityOptions") or []):
        return {"user": me}
    if any("podman" in str(part.get("Name", "")).lower() for part in client.version().get("Components") or []):
        return {"user": me, "userns_mode": "keep-id"}
    return {"user": "0:0"}  # root in rootless Docker is the host user
