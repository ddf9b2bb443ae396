"""TensorFlow's devices, and its distribution strategy for several machines."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager import context

from slipway.core.errors import UserError
from slipway.trainer.distributed.accelerators import virtual_devices
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.rendezvous import NO_ENGINE_HEARTBEAT_SECONDS

logger = logging.getLogger(__name__)


def devices() -> list[str]:
    """Return the devices to train on, such as GPU:0; virtual CPU devices if SLIPWAY_VIRTUAL_DEVICES is set."""
    virtual = virtual_devices(os.environ)
    if virtual:
        tf.config.set_visible_devices([], "GPU")
        processor = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * virtual)
        return [f"CPU:{number}" for number in range(virtual)]
    accelerators = tf.config.list_physical_devices("GPU")
    for accelerator in accelerators:
        tf.config.experimental.set_memory_growth(accelerator, True)
    return [f"GPU:{number}" for number in range(len(accelerators))] or ["CPU:0"]


def multi_worker_strategy(cluster: Cluster, names: Sequence[str]) -> tf.distribute.Strategy:
    # The cluster is passed in because TensorFlow's own resolver does not know `master`, which Vertex AI may use.
    tasks: dict[str, list[str]] = {}
    for task in cluster.tasks:
        if not task.address:
            raise UserError(
                f"TensorFlow requires the address of each replica; {cluster.source} does not have that of {task}.",
                setting="train.engine",
                value="tensorflow",
                allowed="tensorflow with TF_CONFIG or CLUSTER_SPEC in the environment, or pytorch under torchrun",
                fix="unset RANK and set TF_CONFIG, or --set train.engine=pytorch",
            )
        tasks.setdefault(_job(task.type), []).append(task.address)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(tasks),
        task_type=_job(cluster.task.type),
        task_id=cluster.task.index,
        num_accelerators={"GPU": len(names)} if names[0].startswith("GPU") else {},
        rpc_layer="grpc",
    )
    # As the strategy would, but without heartbeats: see rendezvous.py.
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(tasks),
        heartbeat_timeout_in_ms=1000 * NO_ENGINE_HEARTBEAT_SECONDS,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=name, num_tasks=len(addresses))
            for name, addresses in tasks.items()
        ],
    )
    with _several_processors(names) if names[0].startswith("CPU") else contextlib.nullcontext():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    host, port = cluster.task.host_and_port
    if host in ("127.0.0.1", "localhost") and sys.platform == "linux":
        accept_only_local_connections(port)
    return strategy


def accept_only_local_connections(port: int) -> None:
    """Bind this process's server on `port` to the loopback interface: TensorFlow's listens on all interfaces."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_socket()]
    for number in (int(path.name) for path in links):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as server:
            if server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and server.getsockname()[1] == port:
                try:
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
                except OSError as error:
                    logger.warning("other machines can connect to port %d of this replica: %s", port, error.strerror)


def gather(values: tf.Tensor) -> tf.Tensor:
    """Return `values` of all devices, [devices, …], in replica context; differentiable."""
    context = tf.distribute.get_replica_context()
    one_hot = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync, dtype=values.dtype)
    one_hot = tf.reshape(one_hot, [-1, *[1] * len(values.shape)])
    return context.all_reduce(tf.distribute.ReduceOp.SUM, one_hot * values[tf.newaxis])


def _job(task_type: str) -> str:
    return "chief" if task_type == "master" else task_type


@contextlib.contextmanager
def _several_processors(names: Sequence[str]) -> Iterator[None]:
    """Make the strategy use all virtual CPU devices; by default it uses only the first."""
    original = CollectiveAllReduceExtended._initialize_local_devices

    def initialize(_self: object, _resolver: object, worker_device: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker_device}/device:{device}" for device in names), "CPU"

    CollectiveAllReduceExtended._initialize_local_devices = initialize
    try:
        yield
    finally:
        CollectiveAllReduceExtended._initialize_local_devices = original


def kind(names: Sequence[str]) -> str:
    """CPU, GPU or TPU."""
    return names[0].partition(":")[0]


def maker_name(names: Sequence[str]) -> str:
    """Return the first device's vendor name, or its kind if it has none."""
    return str(_details(names).get("device_name") or kind(names))


def capability(names: Sequence[str]) -> tuple[int, int] | None:
    """Return a GPU's compute capability, None for other devices."""
    version = _details(names).get("compute_capability")
    return (int(version[0]), int(version[1])) if isinstance(version, tuple) else None


def _details(names: Sequence[str]) -> dict[str, object]:
    physical = tf.config.list_physical_devices("GPU")
    return dict(tf.config.experimental.get_device_details(physical[0])) if kind(names) == "GPU" and physical else {}
