"""JAX's devices: those of this process, and the mesh over all processes of the job."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from slipway.core.cores import available_cores
from slipway.core.memory import available_bytes
from slipway.trainer.checkpoint.parts import Parts
from slipway.trainer.distributed.accelerators import virtual_devices
from slipway.trainer.distributed.cluster import SLICE, Cluster, read
from slipway.trainer.distributed.rendezvous import NO_ENGINE_HEARTBEAT_SECONDS
from slipway.trainer.distributed.shared_sums import SharedSums
from slipway.trainer.distributed.verification import verify_library
from slipway.trainer.engines.base import OutOfMemory, PeerLost
from slipway.trainer.engines.quick_import import let_tensorflow_only_read

Built = TypeVar("Built")

# The mesh's only axis: a batch's examples are split along it, everything else is replicated on each device.
AXIS = "examples"
# Smaller variables are whole on each device even if others are sharded: gathering them costs more than it saves.
SHARDED_ELEMENTS = 2**10
# A host of a TPU slice, which only JAX watches, is lost once it sends no heartbeat for this long.
HEARTBEAT_SECONDS = 30
# The devices of a process wait for other processes in threads of one pool: with 1 to 4 threads, two processes of two
# devices blocked each other for ever, with 8 they did not; four of four devices needed more than 16 (jax 0.10.2).
THREADS_PER_DEVICE = 16
# In the errors of gloo, NCCL, gRPC and the coordination service when another process is lost.
_LOST = re.compile(
    r"^(?:UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED):|gloo [\w -]+ failed|gloo/transport|remote (?:process|peer)|"
    r"ncclRemoteError|ncclSystemError|unhandled system error|connection (?:closed|reset|refused|timed out)|"
    r"broken pipe|socket closed|heartbeat|coordination service",
    re.IGNORECASE,
)


class Devices:
    """All devices of the job. Every process must make the same calls of `whole` and `split`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        if cluster.source != SLICE:  # whose hosts have joined already: see slices.py
            configure(cluster.on_this_machine)
            if cluster.world_size > 1:
                _join(cluster)
        verify_library("jax")
        self.all = jax.devices()
        self.local = jax.local_devices()
        self.mesh = Mesh(np.array(self.all), (AXIS,))
        self.whole_layout = NamedSharding(self.mesh, PartitionSpec())

    @property
    def kind(self) -> str:
        """CPU, GPU or TPU."""
        return {"cpu": "CPU", "tpu": "TPU"}.get(self.local[0].platform, "GPU")

    @property
    def capability(self) -> tuple[int, int] | None:
        """A GPU's compute capability, None for other devices."""
        text = getattr(self.local[0], "compute_capability", None)
        if self.kind != "GPU" or not text:
            return None
        major, _, minor = str(text).partition(".")
        return int(major), int(minor or 0)

    @property
    def memory(self) -> int | None:
        """A device's memory in bytes; None if unknown, and for a CPU, which uses the machine's memory.

        See `own_memory`.
        """
        statistics = self.local[0].memory_stats() if self.kind != "CPU" else None
        return int(statistics["bytes_limit"]) if statistics and "bytes_limit" in statistics else None

    @property
    def own_memory(self) -> int | None:
        """The same, of a CPU its part of the machine's memory."""
        if self.kind != "CPU":
            return self.memory
        available = available_bytes()
        return available and available // (len(self.local) * self.cluster.on_this_machine)

    def layout(self, axis: int) -> NamedSharding:
        """Return the sharding of an array that is split along `axis`."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, AXIS))

    def part_layout(self, shape: Sequence[int]) -> NamedSharding:
        """Return the sharding of a variable of which each device holds an even part, if it is large and divisible."""
        axes = [axis for axis, size in enumerate(shape) if size % len(self.all) == 0]
        if math.prod(shape) < SHARDED_ELEMENTS or not axes:
            return self.whole_layout
        return self.layout(max(axes, key=lambda axis: shape[axis]))

    def place(self, array: ArrayLike | Parts, layout: NamedSharding) -> jax.Array:
        """Make an array with a layout from `array`, which is equal on every process or has all parts."""
        is_whole = layout.is_fully_replicated
        values = array if isinstance(array, Parts) and not is_whole else np.asarray(array)
        return jax.make_array_from_callback(values.shape, layout, lambda index: values[index])

    def stored(self, array: jax.Array) -> NDArray[Any] | Parts:
        """Return a copy of an array for a checkpoint: what this process's devices hold if others have the rest."""
        if array.is_fully_addressable or array.is_fully_replicated:
            return np.array(array)
        held: dict[tuple[int, ...], NDArray[Any]] = {}
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                bounds = zip(shard.index, array.shape, strict=True)
                held[tuple(axis_slice.indices(size)[0] for axis_slice, size in bounds)] = np.array(shard.data)
        return Parts.held(array.shape, held)

    def gathered(self, array: jax.Array) -> NDArray[Any]:
        """Return a copy of the whole of an array with any layout. All processes must call it."""
        if not (array.is_fully_addressable or array.is_fully_replicated):
            array = jax.jit(lambda same: same, out_shardings=self.whole_layout)(array)
        return np.array(array)

    def split(self, array: ArrayLike, axis: int = 0) -> jax.Array:
        """Make an array that is split evenly along `axis` over all devices, from this process's part of it."""
        return jax.make_array_from_process_local_data(self.layout(axis), np.asarray(array))

    def on_each(self, array: NDArray[np.generic]) -> jax.Array:
        """Copy `array` to each of this process's devices; the result concatenates the copies along axis 0."""
        shape = (len(self.all) * array.shape[0], *array.shape[1:])
        copies = [jax.device_put(array, device) for device in self.local]
        return jax.make_array_from_single_device_arrays(shape, self.layout(0), copies)

    def built(self, make: Callable[[], Built]) -> Built:
        """Return the network or optimizer that `make` makes, with its variables."""
        return make()

    def leave(self) -> None:
        """Disconnect from the other processes."""
        if self.cluster.world_size > 1:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the chief may have disconnected already
                jax.distributed.shutdown()


class TopologyDevices(Devices):
    """Devices that are not there, of a topology: arrays on them are only shapes, and what is compiled cannot run.

    Args:
        name: The topology, such as "v5e:2x4".
        platform: "tpu" or "cuda".
        options: More arguments of get_topology_desc.
        memory: A device's memory in bytes.

    Attributes:
        needs_values: Whether variables have values, for a network that computes with them before it is trained.
    """

    def __init__(self, name: str, platform: str, options: Mapping[str, object], memory: int) -> None:
        described = topologies.get_topology_desc(topology_name=name, platform=platform, **options)
        self.all = self.local = list(described.devices)
        self.cluster = read({})
        self.mesh = Mesh(np.array(self.all), (AXIS,))
        self.whole_layout = NamedSharding(self.mesh, PartitionSpec())
        self.needs_values = False
        self._memory = memory

    @property
    def kind(self) -> str:
        return "TPU" if "TPU" in self.all[0].device_kind else "GPU"

    @property
    def memory(self) -> int:
        return self._memory

    @property
    def hosts(self) -> int:
        """The number of machines, each with one process."""
        return len({device.process_index for device in self.all})

    def built(self, make: Callable[[], Built]) -> Built:
        """Return what `make` makes, with variables that have shapes only: it may be larger than this machine's memory.

        They have values if there is an error without them.
        """
        made: list[Built] = []
        with contextlib.suppress(Exception):
            if not self.needs_values:
                jax.eval_shape(lambda: made.append(make()))
        self.needs_values = not made
        return made[0] if made else make()

    def place(self, array: Any, layout: NamedSharding) -> Any:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=layout)


def configure(on_this_machine: int) -> None:
    """Configure JAX before it claims the devices, which `on_this_machine` processes of the job share."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # it logs every accelerator that is missing
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # it logs errors that it raises
    let_tensorflow_only_read()
    virtual = virtual_devices(os.environ)
    if virtual:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", virtual)
    if on_this_machine > 1:
        # NPROC sets XLA's number of threads.
        least = THREADS_PER_DEVICE * virtual if virtual > 1 else 1
        os.environ["NPROC"] = str(max(least, available_cores()))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The trainer handles SIGTERM itself: the processes agree on a step to stop at.
    jax.config.update("jax_enable_preemption_service", False)


def _join(cluster: Cluster) -> None:
    address = cluster.tasks[0].address
    host, _, port = address.rpartition(":")
    # Without this, JAX's runtime aborts the processes when one is lost; they report it and exit themselves.
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        coordinator_address=address,
        num_processes=cluster.world_size,
        process_id=cluster.rank,
        cluster_detection_method="deactivate",
        coordinator_bind_address=f"{host if host in ('127.0.0.1', 'localhost') else '[::]'}:{port}",
        heartbeat_timeout_seconds=NO_ENGINE_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=HEARTBEAT_SECONDS,
    )


@contextlib.contextmanager
def errors_named(cluster: Cluster, sums: SharedSums | None = None) -> Iterator[None]:
    """Convert the errors of a lost replica and of exhausted memory to PeerLost and OutOfMemory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        first = text.partition("\n")[0]
        if sums and sums.lost:
            raise PeerLost(sums.lost) from error
        if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
            raise OutOfMemory(first) from error
        if cluster.world_size > 1 and _LOST.search(text):
            raise PeerLost(first) from error
        raise
