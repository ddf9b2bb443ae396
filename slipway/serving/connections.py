"""The server's connections: limits of each and of all, which pages may use them, and what happens to them at SIGTERM.

Uvicorn bounds neither the size of a request's header nor the time until a request is complete, and has no setting for
either: https://github.com/Kludex/uvicorn/issues/157 was closed without them. Its option `http` accepts a class, which
has to derive from uvicorn's internal one unless it parses HTTP itself. Seen with uvicorn 0.54.0.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast
from urllib.parse import urlsplit

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from slipway.core.errors import UserError
from slipway.serving.settings import ServerSettings

# File descriptors that are not for connections: the model's files, the log, libraries.
RESERVED_DESCRIPTORS = 64
MAX_CONNECTIONS = 4096
# Until a connection is closed by force whose client does not read.
ABORT_SECONDS = 5.0
# In which a request must arrive completely once the server has stopped listening.
STOP_SECONDS = 5.0
# In which the first request of a new connection must begin once the server has stopped listening.
DRAIN_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass
class Lifecycle:
    """What the server's parts know of its end.

    Attributes:
        stopping: Whether it accepts requests only for a while.
        refusal: The user's mistake for which nothing can be served, and the server stops; None if there is none.
    """

    stopping: bool = False
    refusal: UserError | None = None


class _Waiting:
    """The connections whose clients have to send something, in the order in which they are closed for new ones.

    All operations take constant time.
    """

    def __init__(self) -> None:
        self._new: dict[_Connection, None] = {}
        self._answered: dict[_Connection, None] = {}

    def add(self, connection: _Connection, *, answered: bool) -> None:
        (self._answered if answered else self._new)[connection] = None

    def discard(self, connection: _Connection) -> None:
        self._new.pop(connection, None)
        self._answered.pop(connection, None)

    def oldest(self) -> _Connection | None:
        return next(iter(self._new or self._answered), None)


class _Connection(HttpToolsProtocol):
    """A connection that is closed if a request's header is too large, or the request takes too long to arrive.

    If there are too many connections, the one that has been waiting for a request for the longest time is closed; first
    of those that never had a complete one. If all others are busy, the new one is closed.
    """

    def __init__(self, settings: ServerSettings, lifecycle: Lifecycle, waiting: _Waiting, **values: Any) -> None:
        super().__init__(**values)
        self._settings, self._lifecycle, self._waiting = settings, lifecycle, waiting
        self._unread = 0  # bytes of the request's header, or since the last bytes of its body
        self._arriving = False  # whether a request has begun and is not complete
        self._draining = False  # whether the server has stopped listening
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) > _max_connections():
            oldest = self._waiting.oldest() or self
            self._waiting.discard(oldest)
            oldest.connections.discard(oldest)
            oldest.transport.abort()
        if self in self.connections:
            self._waiting.add(self, answered=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._waiting.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unread += len(data)
        super().data_received(data)
        if not self._arriving:
            return
        if self._unread > (limit := self._settings.max_header):
            self._refuse(431, f"The request's header has more than {limit:,} bytes.")
        elif self._timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        self._arriving = True
        if self._draining:
            self._restart_timer(STOP_SECONDS)
        if self.cycle is not None and self.cycle.response_complete:
            self.cycle = None  # type: ignore[assignment]
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self._lifecycle.stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._arriving, self._unread = False, 0
        self._stop_timer()
        super().on_message_complete()
        if not self.cycle.response_complete:
            self._waiting.discard(self)

    def on_response_complete(self) -> None:
        self._answered = True
        super().on_response_complete()
        self._waiting.discard(self)
        # Unless the next request has arrived meanwhile, or the connection is lost.
        if (self._arriving or self.cycle.response_complete) and self in self.connections:
            self._waiting.add(self, answered=True)

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # does not wait for a client that does not read

    def shutdown(self) -> None:
        is_new = self.cycle is None and not self._answered
        if self._arriving or is_new:
            self._draining = True
            self._restart_timer(STOP_SECONDS if self._arriving else DRAIN_SECONDS)
        if self.cycle is not None or not (self._arriving or is_new):  # a header that has begun to arrive may end
            super().shutdown()

    def _restart_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._start_timer(min(seconds, self._settings.limits.timeout))

    def _start_timer(self, seconds: float | None = None) -> None:
        self._timer = self.loop.call_later(seconds or self._settings.limits.timeout, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self.flow.read_paused:  # the server is late, not the client
            self._start_timer()
        elif self._arriving:
            self._refuse(408, "The request took too long to arrive.")
        else:
            self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Close the connection, after an answer unless another one is being sent."""
        logger.warning("request failed", extra={"fields": {"status": status}})
        if self.cycle is None or not self.cycle.response_started:
            body = _error(status, message)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)


def _error(status: int, message: str) -> bytes:
    return json.dumps({"error": {"code": status, "message": message}}).encode()


@functools.cache
def _max_connections() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(max(limit - RESERVED_DESCRIPTORS, limit // 2), MAX_CONNECTIONS)


class Listener(uvicorn.Server):
    """Uvicorn with the limits of a server's settings.

    After SIGTERM, it still accepts requests for a while, with an unhealthy state, and answers all that it has accepted.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, lifecycle: Lifecycle) -> None:
        super().__init__(
            uvicorn.Config(
                guarded(app, settings.host, settings.origins),
                host=settings.host,
                port=settings.port,
                http=cast(type[asyncio.Protocol], functools.partial(_Connection, settings, lifecycle, _Waiting())),
                ws="none",
                log_config=None,
                access_log=False,
                log_level="warning",
                timeout_graceful_shutdown=round(settings.limits.timeout) + 5,
                timeout_keep_alive=75,
                backlog=2048,
                server_header=False,
            )
        )
        self._settings, self._lifecycle = settings, lifecycle
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        again, self._lifecycle.stopping = self._lifecycle.stopping, True
        if again or sig == signal.SIGINT or self._loop is None:
            self.should_exit = True
            return
        # Not logged here: a signal that arrives while a line is written would fail, and the server would never end.
        self._loop.call_soon_threadsafe(self._exit_later, self._loop)

    def _exit_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(self._settings.linger, self._exit)
        logger.info("stopping: finishing the accepted requests")

    def _exit(self) -> None:
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._lifecycle.refusal is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._lifecycle.stopping = True
        for accepted in self._close_listeners():
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().connect_accepted_socket(self._connection, accepted)
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return cast(
            asyncio.Protocol,
            make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
        )

    def _close_listeners(self) -> list[socket.socket]:
        """Stop listening; return the connections that the kernel has established, which it would reset otherwise."""
        accepted = []
        for server in self.servers:
            for listener in server.sockets:
                with socket.socket(fileno=os.dup(listener.fileno())) as listening:
                    listening.setblocking(False)
                    with contextlib.suppress(OSError):  # none is left, or no descriptor is
                        while True:
                            accepted.append(listening.accept()[0])
            server.close()
        return accepted


def guarded(app: ASGIApp, host: str, origins: tuple[str, ...]) -> ASGIApp:
    """Return the application as it answers on an address.

    A loopback address trusts its clients, but a page of any site can make the user's browser one of them. So the
    requests of pages are refused unless they are the server's own, or of an allowed origin. Behind any other address,
    proxies and health checks send the names that they know.
    """
    if not is_loopback(host):
        return _with_origins(app, origins)
    names = {urlsplit(origin).hostname for origin in origins}

    @functools.lru_cache(maxsize=256)
    def fault(host: str, origin: str) -> str | None:
        name = _hostname(f"//{host}")
        if host and not (is_loopback(name) or name in names):
            return (
                f"The request is for the host {host!r:.80}. To allow it: slipway serve --allow-origin http://{host:.80}"
            )
        if origin and origin not in (*origins, f"http://{host}"):
            return f"The request is of a page of {origin!r:.80}. To allow it: slipway serve --allow-origin {origin:.80}"
        return None

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            message = fault(headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin", b"").decode("latin-1"))
            if message is not None:
                body = _error(403, message)
                start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
                await send({"type": "http.response.start", "status": 403, "headers": start})
                await send({"type": "http.response.body", "body": body})
                return
        await inner(scope, receive, send)

    inner = _with_origins(app, origins)
    return guard


def _with_origins(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    if not origins:
        return app
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["content-type"])


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
