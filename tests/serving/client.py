"""Clients of a prediction server in tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.serving.settings import ServerSettings
from tests.ports import free_port

if TYPE_CHECKING:
    from slipway.serving.app import Server
    from slipway.serving.connections import Listener


def until(true: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask(
    port: int, path: str, body: bytes | None = None, kind: str = "application/json", **headers: str
) -> tuple[int, Any]:
    """Return the status and the body, as JSON if it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    connection.request("GET" if body is None else "POST", path, body, {"Content-Type": kind, **headers} if body else {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.getheader("content-type", "").startswith("application/json")
    return answer.status, json.loads(content) if is_json else content.decode()


def predict(port: int, *instances: Any) -> tuple[int, Any]:
    return ask(port, "/predict", json.dumps({"instances": instances}).encode())


def health(port: int) -> int | None:
    """Return the status of the health route; None if nobody listens."""
    with contextlib.suppress(OSError):
        return ask(port, "/health")[0]
    return None


def listening(server: Server) -> Listener:
    from slipway.serving.connections import Listener

    return Listener(server.app(), server.settings, server.lifecycle)


@contextlib.contextmanager
def serving(server: Server) -> Iterator[int]:
    """Serve in a thread of this process, and return the port."""
    runner = listening(server)
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        until(lambda: runner.started and (server.reloader.model is not None or server.reloader.failure is not None))
        yield server.settings.port
    finally:
        runner.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def settings(**values: Any) -> ServerSettings:
    return ServerSettings(**{"host": "127.0.0.1", "port": free_port(), "watch": 0.05, "linger": 0.0, **values})


@contextlib.contextmanager
def process(
    folder: Path | str, preexec_fn: Callable[[], None] | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`python -m slipway.serving` of a model, and its port."""
    port = free_port()
    variables = {**os.environ, "AIP_HTTP_PORT": str(port), "AIP_STORAGE_URI": str(folder), **environment}
    command = [sys.executable, "-m", "slipway.serving"]
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, preexec_fn=preexec_fn) as server:
        try:
            yield server, port
        finally:
            server.kill()


def logged(server: subprocess.Popen[bytes]) -> str:
    """Return the log of a server that has ended."""
    assert server.stderr is not None
    return server.stderr.read().decode()


class Load:
    """Clients, each of which sends images on one connection until the server closes it between two requests.

    `lost` are the errors of requests without an answer.
    """

    def __init__(self, port: int, image: bytes, clients: int = 16) -> None:
        self._port, self._image = port, image
        self.statuses: list[int] = []
        self.lost: list[Exception] = []
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]

    def start(self) -> None:
        """Start the clients, and return when the server is answering them."""
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.statuses) > 100 or self.lost)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)

    def _client(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=180)
        while True:
            try:
                connection.request("POST", "/predict", self._image, {"Content-Type": "image/png"})
                answer = connection.getresponse()
                answer.read()
            except Exception as error:
                self.lost.append(error)
                return
            self.statuses.append(answer.status)
            if answer.getheader("connection") == "close":
                return
