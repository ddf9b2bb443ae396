"""Reserved loopback ports for the rendezvous of processes on one machine."""

from __future__ import annotations

import socket


class Ports:
    """Reserved free ports on loopback.

    Each is held by a bound, non-listening socket with SO_REUSEPORT: a server of the same user can listen on the port,
    but the kernel assigns it to no other program.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for held in self._sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
        self.numbers: list[int] = [held.getsockname()[1] for held in self._sockets]

    def close(self) -> None:
        """Release the ports."""
        for held in self._sockets:
            held.close()
