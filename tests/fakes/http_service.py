"""Google's HTTP services on loopback: routes by method and path, JSON in and out, over TLS."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import ssl
import threading
import urllib.parse
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.errors import ConnectionReset, Faults, ServiceError

Answer = Any
Route = Callable[["Request"], Answer]


@dataclass(frozen=True)
class Raw:
    """A response that is not a JSON object, or has another status or headers; `cut` if it breaks off before its end."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass(frozen=True)
class Stream:
    """A response that is sent in chunks, each as soon as it is there."""

    chunks: Iterable[bytes]
    content_type: str


@dataclass(frozen=True)
class Request:
    """One call: path parameters, query, headers, JSON body (`{}` if there is none), and the caller.

    `target` is the raw path with its query, before unquoting.
    """

    method: str
    target: str
    path: str
    parts: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body or b"{}")


class HttpService:
    """One service: add routes with `route`, then `start`. A route's path has {names}; {name=**} spans slashes.

    `gate` may answer a request instead of its route; `error_body` is the body of an error.
    """

    def __init__(self, name: str, faults: Faults, caller_of: Callable[[Mapping[str, str]], str]) -> None:
        self.name = name
        self.faults = faults
        self.gate: Callable[[Request], Answer | None] = lambda _: None
        self.error_body: Callable[[ServiceError], object] = ServiceError.as_json
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._caller_of = caller_of
        self._routes: list[tuple[str, re.Pattern[str], Route]] = []
        self._server: ThreadingHTTPServer | None = None

    def route(self, method: str, path: str) -> Callable[[Route], Route]:
        pattern = _pattern(path)

        def add(function: Route) -> Route:
            self._routes.append((method, pattern, function))
            return function

        return add

    def start(self, context: ssl.SSLContext | None) -> int:
        """Serve, over TLS if there is a context; return the port."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer is one packet, sent at once: the client delays its acknowledgement of an answer's first packet,
            # or of the tickets of a new TLS session, by 40 ms.
            wbufsize = -1
            disable_nagle_algorithm = True

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: service._serve(self)
                raise AttributeError(name)

            def log_message(self, *_: Any) -> None:
                """Do nothing: tests read the calls."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self._server = server
        self._thread = threading.Thread(target=self._accept, args=(server,), daemon=True)
        self._thread.start()
        return int(server.server_address[1])

    def _accept(self, server: ThreadingHTTPServer) -> None:
        while self._server is server:
            server.handle_request()

    def stop(self) -> None:
        if (server := self._server) is not None:
            self._server = None
            server.socket.shutdown(socket.SHUT_RDWR)  # what waits for a connection ends at once
            self._thread.join()
            server.server_close()

    def disconnect(self) -> None:
        """Break all connections, as when the server is killed."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _serve(self, handler: Any) -> None:
        with self._lock:
            self._connections.add(handler.connection)
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        try:
            answer = self._answer(handler, body)
        except ConnectionReset:
            handler.close_connection = True
            handler.connection.close()
            return
        except ServiceError as error:
            told = json.dumps(self.error_body(error)).encode()
            answer = Raw(told, error.status, {"Content-Type": "application/json"})
        if isinstance(answer, Stream):
            _send_chunks(handler, answer)
            return
        if not isinstance(answer, Raw):
            answer = Raw(json.dumps(answer).encode(), 200, {"Content-Type": "application/json"})
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(answer.body) + answer.cut))
        handler.close_connection |= answer.cut
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(answer.body)

    def _answer(self, handler: Any, body: bytes) -> Answer:
        address = urllib.parse.urlsplit(handler.path)
        path = urllib.parse.unquote(address.path)
        for method, pattern, function in self._routes:
            match = pattern.fullmatch(path)
            if method == handler.command and match:
                name = f"{self.name} {method} {path}"
                self.faults.before(name)
                request = Request(
                    method=method,
                    target=handler.path,
                    path=path,
                    parts=match.groupdict(),
                    query=dict(urllib.parse.parse_qsl(address.query)),
                    headers=handler.headers,
                    body=body,
                    caller=self._caller_of(handler.headers),
                )
                answer = self.gate(request) or function(request)
                self.faults.after(name)
                return answer
        raise ServiceError(404, f"{handler.command} {path} is nothing that {self.name} answers.")


def _send_chunks(handler: Any, answer: Stream) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", answer.content_type)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with contextlib.suppress(OSError):  # the client has left
        handler.wfile.flush()
        for chunk in answer.chunks:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")
        handler.wfile.flush()


@functools.cache
def _pattern(path: str) -> re.Pattern[str]:
    """Return the regular expression of a route's path; each project of a test has all routes."""
    parts = re.split(r"(\{\w+(?:=\*\*)?\})", path)
    return re.compile(
        "".join(
            (f"(?P<{part.strip('{}').partition('=')[0]}>{'.+' if '=**' in part else '[^/:]+'})")
            if part.startswith("{")
            else re.escape(part)
            for part in parts
        )
    )
