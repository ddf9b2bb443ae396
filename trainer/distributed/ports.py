"""Ports on loopback by which the processes of one machine meet."""

from __future__ import annotations

import socket


class Ports:
    """Free ports on loopback that stay ours.

    Each is held by a bound socket that listens to nothing and shares its port (SO_REUSEPORT), so a server of the same
    user can listen on it while no other program is given it.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for held in self._sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
        self.numbers: list[int] = [held.getsockname()[1] for held in self._sockets]

    def close(self) -> None:
        """Let go of the ports."""
        for held in self._sockets:
            held.close()
