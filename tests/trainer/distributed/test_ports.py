"""Reserved ports on loopback."""

from __future__ import annotations

import socket

import pytest

from slipway.trainer.distributed.ports import Ports


def test_ports_are_kept_from_others_and_let_our_servers_in():
    ports = Ports(3)
    assert len(set(ports.numbers)) == 3
    with socket.socket() as stranger, pytest.raises(OSError):
        stranger.bind(("127.0.0.1", ports.numbers[0]))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", ports.numbers[0]))
        server.listen()
        socket.create_connection(("127.0.0.1", ports.numbers[0]), timeout=2).close()
    ports.close()
