"""A company's proxy on loopback: it alone knows the names below DOMAIN, and counts the connections to each."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
from collections import Counter
from typing import Any

# A domain that no name server knows: https://www.rfc-editor.org/rfc/rfc6761#section-6.2.
DOMAIN = "slipway.test"
UNKNOWN = b"HTTP/1.1 502 Bad Gateway\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Proxy:
    """A context manager; `connections` counts the requests to connect by host, without DOMAIN."""

    def __init__(self) -> None:
        self.connections: Counter[str] = Counter()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            target = re.match(rb"CONNECT ([\w.-]+):(\d+) HTTP/1\.[01]\r\n", head)
            assert target is not None, head
            name, _, domain = target[1].decode().partition(".")
            if domain != DOMAIN:
                client.sendall(UNKNOWN)
                return
            self.connections[name] += 1
            with socket.create_connection(("127.0.0.1", int(target[2]))) as service:
                client.sendall(ESTABLISHED)
                _copy(client, service)


def _copy(*ends: socket.socket) -> None:
    """Copy in both directions until one end closes."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while True:
        for end in select.select(ends, (), ())[0]:
            data = end.recv(65536)
            if not data:
                return
            other[end].sendall(data)
