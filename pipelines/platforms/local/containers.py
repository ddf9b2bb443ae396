"""Run steps in containers through the Docker API (Docker, podman) at DOCKER_HOST.

A run's folders are the same inside and outside, under the same paths and owned by the user.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.components.prepare_data.sources import source_kind
from slipway.components.step import LOGS_VARIABLE
from slipway.core.errors import UserError
from slipway.core.events import EVENTS_VARIABLE
from slipway.core.paths import is_remote, local_path
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs.record import RunFolder
from slipway.trainer.engines import installed

RUN_LABEL = "slipway.run"
GPU_DEVICE = Path("/dev/nvidiactl")
STOP_SECONDS = 15
# Keras and TensorFlow's workers pass batches through shared memory; Docker gives 64 MB unless told.
SHARED_MEMORY = "1g"


@contextlib.contextmanager
def docker_client() -> Iterator[Any]:
    """A client of the Docker API that answers.

    Raises:
        UserError: There is none.
    """
    installed.verify_docker()
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
    """Whether this machine has NVIDIA GPUs, whose devices are passed through."""
    return GPU_DEVICE.exists()


def run_arguments(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    """Return the container arguments for kfp's DockerRunner."""
    from docker import types

    with docker_client() as client:
        user = _user(client)
    arguments: dict[str, Any] = {
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


def run_container(client: Any, image: str, command: list[str], volumes: dict[str, Any], **arguments: Any) -> int:
    """Run a container to its end, its output going to stdout; its exit code. What kfp's own of this name does.

    That one lets the server remove the container when it ends, and takes one that is gone for one that succeeded; a
    short step is often gone before its output was asked for.
    """
    from docker import errors

    try:
        client.images.get(image)
    except errors.ImageNotFound:
        print(f"pulling {image}", flush=True)
        client.images.pull(image)
    container = client.containers.create(image=image, command=command, volumes=volumes, **arguments)
    try:
        container.start()
        for chunk in container.logs(stream=True, follow=True):
            sys.stdout.write(chunk.decode(errors="replace"))
        sys.stdout.flush()
        return int(container.wait()["StatusCode"])
    finally:
        container.remove(force=True)


def mounted_folders(config: RunConfig, here: Path) -> list[Path]:
    """The folders that the steps read and write: where the command is given, and those elsewhere that settings name."""
    named = [Path(config.data.store), Path(config.register_.registry)]
    kind = source_kind(config.data.source)
    place = kind.place_of(config.data.source)
    if kind.mounted and not is_remote(place):
        source = local_path(place).expanduser()
        # A pattern's folder is the part before the first wildcard.
        fixed = Path(*source.parts[: _first_wildcard(source)])
        named.append(fixed if fixed.is_dir() else fixed.parent)
    folders = [here]
    for folder in (here / path for path in named):
        resolved = folder.resolve()
        if not any(resolved.is_relative_to(one) for one in folders):
            resolved.mkdir(parents=True, exist_ok=True)
            folders.append(resolved)
    return folders


def stop_containers(run_id: str) -> None:
    """End what still runs of a run: each process in a container is asked first, then the container is killed."""
    with contextlib.suppress(UserError), docker_client() as client:
        from docker import errors

        for container in client.containers.list(all=True, filters={"label": f"{RUN_LABEL}={run_id}"}):
            with contextlib.suppress(errors.APIError):
                # The first process is a shell, which would not pass a signal on.
                container.exec_run(["sh", "-c", "kill -TERM -1"])
            with contextlib.suppress(errors.APIError):
                container.stop(timeout=STOP_SECONDS)
            with contextlib.suppress(errors.APIError):
                container.remove(force=True)


def _user(client: Any) -> dict[str, Any]:
    """Run containers as the host user so that output files keep their ownership."""
    me = f"{os.getuid()}:{os.getgid()}"
    if not any("rootless" in option for option in client.info().get("SecurityOptions") or []):
        return {"user": me}
    if any("podman" in str(part.get("Name", "")).lower() for part in client.version().get("Components") or []):
        return {"user": me, "userns_mode": "keep-id"}
    return {"user": "0:0"}  # rootless Docker's root is the user


def _first_wildcard(path: Path) -> int:
    return next((number for number, part in enumerate(path.parts) if set(part) & set("*?[")), len(path.parts))
