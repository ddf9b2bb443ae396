"""Time of an all-reduce between two processes, each on a core of its own: `python -m benchmarks.all_reduce`.

Compares TensorFlow's collectives over gRPC, gloo through PyTorch (where torch is installed), and the least that two
processes can do over a loopback connection: each sends its gradients and adds those that it receives. The sizes are
those of the gradients of two networks of `benchmarks.step_rate --part processes`; nothing is trained.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
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

# Name of the network: bytes of its gradients, and all-reduces of a measurement.
SIZES = {"dense": (4 * 101_125, 1000), "flowers": (4 * 3_989_285, 40)}
WARM_UP = 20
Repeat = Callable[[int], object]  # runs that many all-reduces


def over_a_socket(rank: int, address: tuple[str, int], size: int) -> Repeat:
    """Exchange whole gradients over one connection, and add them with numpy."""
    if rank:
        connection = _connected(address)
    else:
        with socket.create_server(address) as server:
            connection, _ = server.accept()
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


def with_gloo(rank: int, address: tuple[str, int], size: int) -> Repeat:
    """All-reduce with gloo through PyTorch."""
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://{address[0]}:{address[1]}", rank=rank, world_size=2)
    gradients = torch.zeros(size // 4)
    return lambda count: [distributed.all_reduce(gradients) for _ in range(count)]


def with_tensorflow(rank: int, address: tuple[str, int], size: int) -> Repeat:
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
            gradients = [tf.fill([size // 8], value) for _ in range(2)]
            total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return 0.0 * (total[0][0] + total[1][0])

        def one(number: Any, value: Any) -> Any:
            return number + 1, strategy.run(summed, args=(value,))

        return tf.while_loop(lambda number, _: number < count, one, (tf.constant(0), tf.constant(0.0)))[1]

    return lambda count: run(tf.constant(count)).numpy()


SIDES = {"socket": over_a_socket, "gloo": with_gloo, "tensorflow": with_tensorflow}


def measure(side: str, rank: int, port: int, size: int, count: int) -> None:
    """Run one of two processes; print wall and CPU milliseconds of an all-reduce."""
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
    repeat = SIDES[side](rank, ("127.0.0.1", port), size)
    repeat(WARM_UP)
    started, processor = time.perf_counter(), time.process_time()
    repeat(count)
    wall, processor = time.perf_counter() - started, time.process_time() - processor
    print(1000 * wall / count, 1000 * processor / count, flush=True)
    sys.stdin.read()  # until both are done: gloo and TensorFlow abort if the other process ends earlier
    os._exit(0)


def together(side: str, size: int, count: int) -> tuple[float, float]:
    """Run both processes; return wall and CPU milliseconds of the first."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.all_reduce", "--process", *map(str, (side, rank, port, size, count))],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    lines = [process.stdout.readline() if process.stdout else "" for process in processes]
    for process in processes:
        process.communicate()
    if not all(lines):
        sys.exit(f"{side} failed")
    wall, processor = map(float, lines[0].split())
    return wall, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--process", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        side, *numbers = options.process
        measure(side, *map(int, numbers))
    sides = [side for side in SIDES if side != "gloo" or importlib.util.find_spec("torch")]
    print(f"{'milliseconds':<24}{'wall':>10}{'CPU':>10}")
    for network, (size, count) in SIZES.items():
        for side in sides:
            pairs = [together(side, size, count) for _ in range(options.rounds)]
            wall, processor = (statistics.median(values) for values in zip(*pairs, strict=True))
            print(f"{network + ', ' + side:<24}{wall:>10.2f}{processor:>10.2f}", flush=True)
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"median of {options.rounds}, load {load}")


if __name__ == "__main__":
    main()
