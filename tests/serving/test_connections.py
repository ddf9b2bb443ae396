"""Limits of connections, pages of other sites, and connections that arrive while the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

from slipway.serving import connections
from slipway.serving.app import Server
from slipway.serving.connections import Listener
from slipway.serving.kinds import Field
from slipway.serving.model import Model
from slipway.serving.reloader import Served
from slipway.serving.settings import Limits
from tests.serving.client import ask, health, listening, process, serving, settings, until

START = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"instances": [{"x": 1}]}).encode()


def doubling(folder: Path, function: Callable[[Any], Any] | None = None, **values: Any) -> Server:
    """A server of a model that doubles numbers."""
    (folder / "weights").touch()
    inputs = {"x": Field("number", np.dtype(np.float32))}
    model = Model(
        folder,
        "regression",
        inputs,
        ("prediction",),
        {},
        function or (lambda arrays: (None, {"prediction": arrays["x"] * 2})),
    )
    server = Server(settings(**values), lambda: Served("doubling", folder))
    server.reloader.use(model, Served("doubling", folder))
    return server


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with serving(doubling(tmp_path, limits=Limits(timeout=1.0))) as port:
        yield port


def connect(port: int, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=180)
    client.sendall(sent)
    return client


def answer(client: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    found = b""
    with client, contextlib.suppress(ConnectionError):
        while data := client.recv(4096):
            found += data
    return found


@pytest.mark.parametrize(
    "start", [b"GET /health HTTP/1.1\r\nX: ", START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "]
)
def test_an_endless_header_is_refused(port: int, start: bytes) -> None:
    client = connect(port, start)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 10_000_000:
            client.sendall(b"x" * 1000)
            sent += 1000
            time.sleep(0.0001)
    assert sent < 10_000_000
    assert ask(port, "/health")[0] == 200


def test_the_answer_to_a_large_header_says_so(port: int) -> None:
    client = connect(port, b"GET /health HTTP/1.1\r\nX: " + b"x" * (64 << 10))
    found = answer(client)
    assert found.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"more than 65,536 bytes" in found


@pytest.mark.parametrize("sent", [b"", START, START + b"Content-Length: 100\r\n\r\n{"])
def test_a_request_that_does_not_arrive_is_closed(port: int, sent: bytes) -> None:
    started = time.monotonic()
    found = answer(connect(port, sent))
    assert 0.9 < time.monotonic() - started < 20
    assert found.startswith(b"HTTP/1.1 408 ") if sent else found == b""


def test_a_connection_that_sends_requests_stays_open_longer_than_a_request_may_take(port: int) -> None:
    with connect(port) as client:
        for _ in range(4):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            time.sleep(0.4)


def test_announced_bodies_use_no_memory_and_the_oldest_incomplete_ones_are_refused(tmp_path: Path) -> None:
    server = doubling(tmp_path, max_bodies=200_000, max_body=80_000)
    with serving(server) as port, contextlib.ExitStack() as stack:
        head = START + b"Content-Length: 79000\r\n\r\n"
        announced = [stack.enter_context(connect(port, head)) for _ in range(26)]
        almost = [stack.enter_context(connect(port, head + b" " * 40_000)) for _ in range(5)]
        for _ in range(3):
            assert ask(port, "/predict", b" " * 70_000 + BODY) == (200, {"predictions": [{"prediction": 2.0}]})
        assert answer(almost[0]).startswith(b"HTTP/1.1 408 ")
        announced[0].setblocking(False)
        with pytest.raises(BlockingIOError):  # is not closed
            announced[0].recv(1)
        assert server.bodies._reserved == sum(server.bodies._incomplete.values()) <= 100_000


@pytest.mark.slow
def test_half_requests_do_not_use_up_the_descriptors(tmp_path: Path, classifier_folder: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with process(classifier_folder, preexec_fn=limit) as (_, port), contextlib.ExitStack() as stack:
        until(lambda: health(port) == 200, 60)
        half = [stack.enter_context(connect(port, START)) for _ in range(300)]
        assert health(port) == 200
        half[0].settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert half[0].recv(10) == b""  # the oldest were closed


def test_a_connection_above_the_limit_costs_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare all connections with each other took 16 ms of the event loop for each new one."""

    class Transport(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

        def is_closing(self) -> bool:
            return self.aborted

        def close(self) -> None:
            pass

    monkeypatch.setattr(connections, "_max_connections", lambda: connections.MAX_CONNECTIONS)

    async def measure() -> float:
        listener = listening(doubling(tmp_path))
        listener.config.load()
        listener.lifespan = listener.config.lifespan_class(listener.config)
        made = [listener._connection() for _ in range(connections.MAX_CONNECTIONS + 2000)]
        transports = [Transport() for _ in made]
        started = 0.0
        for number, (connection, transport) in enumerate(zip(made, transports, strict=True)):
            if number == connections.MAX_CONNECTIONS:
                started = time.process_time()
            connection.connection_made(transport)
        seconds = time.process_time() - started
        assert [transport.aborted for transport in transports] == [number < 2000 for number in range(len(made))]
        for connection in made:
            connection.connection_lost(None)
        return seconds

    assert asyncio.run(measure()) < 3


def test_a_signal_that_arrives_while_a_line_is_written_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of signals that logs fails in the middle of another line: io refuses reentrant calls."""

    async def ends() -> bool:
        listener = listening(doubling(tmp_path))
        listener._loop = asyncio.get_running_loop()

        def write(_line: str) -> None:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

        with monkeypatch.context() as patch:
            patch.setattr(connections.logger, "info", write)
            listener.handle_exit(signal.SIGTERM, None)
        for _ in range(500):
            await asyncio.sleep(0.01)
            if listener.should_exit:
                return True
        return False

    assert asyncio.run(ends())


def test_the_connections_that_are_closed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without an answer, the oldest first, then those with one; never one whose request is being answered."""
    monkeypatch.setattr(connections, "_max_connections", lambda: 5)
    release, request = threading.Event(), b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def answered_later(arrays: Any) -> Any:
        release.wait(60)
        return None, {"prediction": arrays["x"]}

    with serving(doubling(tmp_path, answered_later)) as port, contextlib.ExitStack() as stack:

        def opened(sent: bytes, answers: bool) -> socket.socket:
            client = stack.enter_context(connect(port, sent))
            if answers:  # head and body may arrive one after the other
                response = http.client.HTTPResponse(client)
                response.begin()
                assert response.status == 200
                response.read()
            return client

        busy = opened(START + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, answers=False)
        pipelined = opened(request + START, answers=True)
        older, newer = opened(request, answers=True), opened(request, answers=True)
        half = opened(START, answers=False)
        for closed in (half, pipelined, older, newer):
            opened(request, answers=True)
            assert answer(closed) == b""
        release.set()
        assert busy.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("headers", "origins", "status"),
    [
        ({}, (), 200),
        ({"Host": "localhost:1"}, (), 200),
        ({"Host": "[::1]:8080"}, (), 200),
        ({"Host": "attacker.example"}, (), 403),
        ({"Host": "127.0.0.1.attacker.example"}, (), 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, (), 200),
        ({"Origin": "http://localhost:3000"}, (), 403),
        ({"Origin": "http://attacker.example", "Content-Type": "text/plain"}, (), 403),
        ({"Origin": "null"}, (), 403),
        ({"Origin": "http://localhost:3000"}, ("http://localhost:3000",), 200),
        ({"Origin": "http://attacker.example"}, ("http://localhost:3000",), 403),
        ({"Host": "models.example", "Origin": "https://models.example"}, ("https://models.example",), 200),
    ],
)
def test_pages_of_other_sites_are_refused_on_loopback(
    tmp_path: Path, headers: dict[str, str], origins: tuple[str, ...], status: int
) -> None:
    with serving(doubling(tmp_path, origins=origins)) as port:
        found, said, answered = ask_with(port, headers)
    assert found == status
    assert (status != 403) or "--allow-origin" in said["error"]["message"]
    assert answered.get("access-control-allow-origin") == (headers.get("Origin") if status == 200 and origins else None)


def test_a_page_of_an_allowed_origin_may_ask_before_it_sends_json(tmp_path: Path) -> None:
    origin = "http://localhost:3000"
    asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with serving(doubling(tmp_path, origins=(origin,))) as port:
        assert ask_with(port, asks, "OPTIONS")[0] == 200


def test_a_server_on_all_addresses_answers_to_any_name(tmp_path: Path) -> None:
    with serving(doubling(tmp_path, host="0.0.0.0")) as port:
        assert ask_with(port, {"Host": "models.default.svc", "Origin": "https://models.example"})[0] == 200


def ask_with(port: int, headers: dict[str, str], method: str = "POST") -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    connection.request(method, "/predict", BODY if method == "POST" else None, headers)
    found = connection.getresponse()
    content = found.read()
    connection.close()
    said = json.loads(content) if content.startswith(b"{") else None
    return found.status, said, {name.lower(): value for name, value in found.getheaders()}


def test_requests_that_the_kernel_has_accepted_are_answered_when_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, busy, release = threading.Event(), threading.Event(), threading.Event()

    async def on_tick(_listener: Listener, _counter: int) -> bool:
        if not stop.is_set():
            return False
        busy.set()
        release.wait(30)  # the event loop does not accept connections
        return True

    monkeypatch.setattr(Listener, "on_tick", on_tick)
    with serving(doubling(tmp_path)) as port:
        stop.set()
        assert busy.wait(30)
        request = START + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        clients = [connect(port, request) for _ in range(50)]
        release.set()
        answers = [answer(client) for client in clients]
        assert health(port) is None
    assert [found[:13] for found in answers] == [b"HTTP/1.1 200 "] * 50
