"""Time of an all-reduce between two processes, each on a core of its own: `python -m benchmarks.all_reduce`.

Compares TensorFlow's collectives over gRPC, gloo through PyTorch and through JAX (where they are installed), and the
least that two processes can do over a loopback connection: each sends its gradients and adds those that it receives;
and the sum through shared memory that the engines use for the replicas of one machine.
The gradients have the shapes of those of the networks of `benchmarks.step_rate --part processes`; nothing is trained.
The engines combine them as in training: TensorFlow to two messages, PyTorch to one, and JAX not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Name of the network: elements of its gradients, and all-reduces of a measurement.
NETWORKS = {
    "dense": ((100_352, 128, 640, 5), 1000),
    "convolutional": ((288, 32, 9216, 32, 92_160, 5), 1000),
    "flowers": ((432, 16, 4608, 32, 18_432, 64, 3_964_928, 128, 640, 5), 40),
}
WARM_UP = 20
RESULT = "milliseconds"  # begins the line with a process's result; gloo prints others
Repeat = Callable[[int], object]  # runs that many all-reduces


def over_a_socket(rank: int, address: tuple[str, int], elements: tuple[int, ...]) -> Repeat:
    """Exchange whole gradients over one connection, and add them with numpy."""
    if rank:
        connection = _connected(address)
    else:
        with socket.create_server(address) as server:
            connection, _ = server.accept()
    size = 4 * sum(elements)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, buffer, size)
    connection.setblocking(False)
    own, other = np.zeros(size // 4, np.float32), np.zeros(size // 4, np.float32)

    def exchange(count: int) -> None:
        for _ in range(count):
            unsent, missing = own.data.cast("B"), other.data.cast("B")
            while unsent or missing:
                with contextlib.suppress(BlockingIOError):  # with a core to itself, asking again is quickest
                    unsent = unsent[connection.send(unsent) :]
                with contextlib.suppress(BlockingIOError):
                    missing = missing[connection.recv_into(missing) :]
            np.add(own, other, out=own)

    return exchange


def _connected(address: tuple[str, int]) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:  # the other process has not come as far
            time.sleep(0.01)


def over_shared_memory(rank: int, address: tuple[str, int], elements: tuple[int, ...]) -> Repeat:
    """Add with numpy in memory that both processes have, as the replicas of one machine do."""
    from slipway.trainer.distributed.shared_sums import SharedSums, segment_bytes

    name = f"\0slipway-benchmark-{address[1]}"
    if rank:
        link = socket.socket(socket.AF_UNIX)
        while link.connect_ex(name):
            time.sleep(0.01)
        _, (segment,), _, _ = socket.recv_fds(link, 1, 1)
    else:
        segment = os.memfd_create("sums")
        os.ftruncate(segment, segment_bytes(2))
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen()
            link, _ = server.accept()
        socket.send_fds(link, [b"0"], [segment])
    sums = SharedSums(rank, [link], segment)
    gradients = [np.zeros(count, np.float32) for count in elements]

    def add(count: int) -> None:
        for _ in range(count):
            sums.add(gradients)

    return add


def with_pytorch(rank: int, address: tuple[str, int], elements: tuple[int, ...]) -> Repeat:
    """All-reduce with gloo through PyTorch, which copies the gradients to one tensor."""
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://{address[0]}:{address[1]}", rank=rank, world_size=2)
    gradients = torch.zeros(sum(elements))
    return lambda count: [distributed.all_reduce(gradients) for _ in range(count)]


def with_jax(rank: int, address: tuple[str, int], elements: tuple[int, ...]) -> Repeat:
    """All-reduce with gloo through JAX, where XLA inserts it for gradients that are split over the processes."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"{address[0]}:{address[1]}", 2, rank)
    mesh = Mesh(np.array(jax.devices()), ("examples",))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["examples"], []))
    gradients = [jax.make_array_from_process_local_data(split, np.zeros((1, count), np.float32)) for count in elements]
    summed = jax.jit(lambda values: [value.sum(axis=0) for value in values], out_shardings=whole)
    return lambda count: [jax.block_until_ready(summed(gradients)) for _ in range(count)]


def with_tensorflow(rank: int, address: tuple[str, int], elements: tuple[int, ...]) -> Repeat:
    """All-reduce with MultiWorkerMirroredStrategy in one loop in a graph, as the engine does."""
    workers = [f"{address[0]}:{address[1] + number}" for number in range(2)]
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function(autograph=False)
    def run(count: Any) -> Any:
        def summed(value: Any) -> Any:
            gradients = [tf.fill([sum(elements) // 2], value) for _ in range(2)]
            total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return 0.0 * (total[0][0] + total[1][0])

        def one(number: Any, value: Any) -> Any:
            return number + 1, strategy.run(summed, args=(value,))

        return tf.while_loop(lambda number, _: number < count, one, (tf.constant(0), tf.constant(0.0)))[1]

    return lambda count: run(tf.constant(count)).numpy()


SIDES = {
    "socket": over_a_socket, "memory": over_shared_memory, "tensorflow": with_tensorflow, "torch": with_pytorch,
    "jax": with_jax,
}  # fmt: skip


def measure(side: str, network: str, rank: int, port: int) -> None:
    """Run one of two processes; print wall and CPU milliseconds of an all-reduce."""
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
    elements, count = NETWORKS[network]
    repeat = SIDES[side](rank, ("127.0.0.1", port), elements)
    repeat(WARM_UP)
    started, processor = time.perf_counter(), time.process_time()
    repeat(count)
    wall, processor = time.perf_counter() - started, time.process_time() - processor
    print(RESULT, 1000 * wall / count, 1000 * processor / count, flush=True)
    sys.stdin.read()  # until both are done: gloo and TensorFlow abort if the other process ends earlier
    os._exit(0)


def together(side: str, network: str) -> tuple[float, float]:
    """Run both processes; return wall and CPU milliseconds of the first."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.all_reduce", "--process", side, network, str(rank), str(port)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [next((line for line in process.stdout or () if line.startswith(RESULT)), "") for process in processes]
    for process in processes:
        process.communicate()
    if not all(results):
        sys.exit(f"{side} failed")
    wall, processor = map(float, results[0].split()[1:])
    return wall, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, action="append", help="only this one (repeatable)")
    parser.add_argument("--process", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        side, network, rank, port = options.process
        measure(side, network, int(rank), int(port))
    sides = options.side or [side for side in SIDES if side in ("socket", "memory") or importlib.util.find_spec(side)]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number, network, side in itertools.product(range(options.rounds), NETWORKS, sides):
        pairs = found.setdefault((network, side), [])
        pairs.append(together(side, network))
        print(f"round {number + 1}: {network}, {side} {pairs[-1][0]:.2f}", file=sys.stderr, flush=True)
    print(f"{RESULT:<26}{'wall':>10}{'CPU':>10}")
    for (network, side), pairs in found.items():
        wall, processor = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"{network + ', ' + side:<26}{wall:>10.2f}{processor:>10.2f}")
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"median of {options.rounds}, load {load}")


if __name__ == "__main__":
    main()
