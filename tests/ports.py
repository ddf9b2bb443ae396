"""Ports for servers that are started a moment later, by another process.

A port that the kernel gives for `bind(…, 0)` can be taken by any outgoing connection before its server starts, as
happened when two runs of the tests shared a machine. These are below the range of outgoing connections, and drawn at
random among thousands, so that only another test's draw in the same moment could take them.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_random = random.SystemRandom()  # processes are forked, and tests set the seed of the others


def free_ports(count: int) -> list[int]:
    """Return as many different TCP ports on which nothing listens."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    ports: set[int] = set()
    while len(ports) < count:
        if _can_bind(port := _random.randrange(_FIRST, end)):
            ports.add(port)
    return list(ports)


def free_port() -> int:
    """Return a TCP port on which nothing listens."""
    return free_ports(1)[0]


def _can_bind(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("", port))
        except OSError:
            return False
    return True
