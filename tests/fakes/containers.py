"""A container started through the Docker API: streams its output and reports its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import docker
from docker import errors, types

Hear = Callable[[str, str], None]
GRACE_SECONDS = 10


class End(NamedTuple):
    """When a container ended, by its engine's clock, and with which exit code."""

    at: datetime
    code: int


class Container:
    """A running container. Calls `hear` with ("stdout" or "stderr", line) from separate threads.

    `live` are the containers whose end was not waited for.
    """

    live: ClassVar[set[Container]] = set()

    def __init__(
        self,
        docker_host: str,
        image: str,
        command: list[str],
        *,
        entrypoint: list[str] | None = None,
        environment: Mapping[str, str],
        hosts: Mapping[str, str],
        mounts: Mapping[Path, str],
        labels: Mapping[str, str],
        hear: Hear,
    ) -> None:
        self._docker_host = docker_host
        self._client = docker.DockerClient(base_url=docker_host, timeout=600)
        try:
            self._container = self._started(
                image,
                command=command,
                entrypoint=entrypoint,
                environment=dict(environment),
                extra_hosts=dict(hosts),
                labels=dict(labels),
                mounts=[types.Mount(target, str(source), type="bind") for source, target in mounts.items()],
                network_mode="host",
                shm_size="1g",
            )
        except BaseException:
            self._client.close()
            raise
        self._listeners = [
            threading.Thread(target=self._listen, args=(stream, hear), daemon=True) for stream in ("stdout", "stderr")
        ]
        for listener in self._listeners:
            listener.start()
        Container.live.add(self)

    def wait(self) -> End:
        """Return how it ended, after all its output was received; removes it."""
        code = int(self._container.wait(timeout=None)["StatusCode"])
        self._container.reload()
        at = str(self._container.attrs["State"]["FinishedAt"])
        for listener in self._listeners:
            listener.join()
        self._container.remove(force=True)
        self._client.close()
        Container.live.discard(self)
        return End(datetime.fromisoformat(at), code)

    def ended(self) -> bool:
        """Whether it has ended; `wait` notices a little later."""
        client = docker.DockerClient(base_url=self._docker_host, timeout=180)
        with contextlib.closing(client):
            try:
                return bool(client.containers.get(self._container.id).status != "running")
            except errors.NotFound:
                return True

    def stop(self) -> None:
        """Stop its first process, and kill the rest after a timeout; `wait` returns then."""
        self._call("stop", timeout=GRACE_SECONDS)

    def kill(self) -> None:
        """Kill its processes; `wait` returns then."""
        self._call("kill")

    def _call(self, method: str, **options: Any) -> None:
        client = docker.DockerClient(base_url=self._docker_host, timeout=180)
        with contextlib.closing(client), contextlib.suppress(errors.APIError):
            getattr(client.containers.get(self._container.id), method)(**options)

    def _started(self, image: str, **options: Any) -> Any:
        try:
            self._client.images.get(image)
        except errors.ImageNotFound:
            self._client.images.pull(image)
        container = self._client.containers.create(image, **options)
        container.start()
        return container

    def _listen(self, stream: str, hear: Hear) -> None:
        wanted = {"stdout": stream == "stdout", "stderr": stream == "stderr"}
        rest = b""
        for chunk in self._container.logs(stream=True, follow=True, **wanted):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                hear(stream, line.decode(errors="replace"))
        if rest:
            hear(stream, rest.decode(errors="replace"))
