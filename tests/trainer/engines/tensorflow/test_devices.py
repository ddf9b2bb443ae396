"""TensorFlow's server of a replica on this machine."""

from __future__ import annotations

import json
import socket
import sys

import pytest

pytestmark = [
    pytest.mark.usefixtures("tensorflow"),
    pytest.mark.skipif(sys.platform != "linux", reason="SO_BINDTODEVICE is Linux's"),
]


def test_a_server_on_all_interfaces_accepts_only_local_connections() -> None:
    from slipway.trainer.engines.tensorflow.devices import accept_only_local_connections

    with socket.create_server(("", 0)) as server, socket.create_server(("", 0)) as other:
        accept_only_local_connections(server.getsockname()[1])
        interfaces = [each.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) for each in (server, other)]
        assert interfaces == [b"lo\0", b""]
        socket.create_connection(("127.0.0.1", server.getsockname()[1]), 5).close()


def test_a_kernel_that_does_not_bind_the_server_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container's seccomp profile, or a kernel before 5.7 without root, refuses it."""
    from slipway.trainer.engines.tensorflow import devices

    with socket.create_server(("", 0)) as server:
        monkeypatch.setattr("socket.SO_BINDTODEVICE", 9999)  # an unknown option
        devices.accept_only_local_connections(server.getsockname()[1])
        assert f"other machines can connect to port {server.getsockname()[1]} " in caplog.text


def test_the_server_of_a_replica_on_loopback_accepts_only_local_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The strategy is replaced by a listening socket: TensorFlow allows one server for the life of a process."""
    import tensorflow as tf

    from slipway.trainer.distributed import cluster as clusters
    from slipway.trainer.engines.tensorflow.devices import multi_worker_strategy

    with socket.create_server(("", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda **_: None)
        cluster = {"cluster": {"chief": [address], "worker": ["127.0.0.1:1"]}, "task": {"type": "chief", "index": 0}}
        multi_worker_strategy(clusters.read({"TF_CONFIG": json.dumps(cluster)}), ["CPU:0"])
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) == b"lo\0"
