"""Sums over the replicas of one machine through shared memory, several times as fast as through the loopback interface.

Each replica copies its arrays to its own part of a shared segment and sends one byte to each of the others; once it has
received theirs, it adds the parts of all in the order of ranks. All replicas therefore have the same bits, and two have
those of any other sum of two. The segment has two buffers, used in turn: a replica writes to one again only after all
others have sent the byte of the next, and so have read it.

The segment has no name and the sockets are pairs, so nothing is left of them once the processes have ended. If a
replica ends, its sockets are closed, which ends the wait of the others at once.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.trainer.distributed.cluster import Cluster

# Set to 0 to sum through the engine's own collectives.
SHARED_SUMS_VARIABLE = "SLIPWAY_SHARED_SUMS"
LOOPBACK = ("127.0.0.1", "localhost")
# Larger sums are computed in pieces of this many bytes. What is never used of the segment takes no memory.
PIECE_BYTES = 1 << 25
# Of the results, as TensorFlow and XLA require it of memory that they do not copy.
ALIGNMENT = 64
JOIN_SECONDS = 10.0
# To be woken takes longer than most waits last.
POLL_SECONDS = 0.001
BUFFERS = 2

Array = NDArray[Any]

logger = logging.getLogger(__name__)


class ProcessEnded(ConnectionError):
    """Another process has ended; it takes part in no more sums."""


def join(cluster: Cluster, agree: Callable[[Sequence[float]], Sequence[float]]) -> SharedSums | None:
    """Connect all processes of the cluster, for sums through shared memory; all must call it.

    Args:
        cluster: The cluster.
        agree: Function that returns the maxima of numbers over all processes.

    Returns:
        None for a single process, for several machines, for a rehearsal of them, which sums as they do, and where a
        process cannot share memory with the others, which is logged.
    """
    if cluster.accelerators.kind == "virtual":
        return None
    if not 1 < cluster.world_size == cluster.on_this_machine or cluster.tasks[0].host_and_port[0] not in LOOPBACK:
        return None
    sums, reason = None, "another replica cannot share memory"
    with contextlib.ExitStack() as closed:
        server = None
        try:
            if os.environ.get(SHARED_SUMS_VARIABLE) == "0":
                raise OSError(f"{SHARED_SUMS_VARIABLE}=0")
            if sys.platform != "linux":
                raise OSError(f"not implemented for {sys.platform}")
            if cluster.is_chief:
                server = closed.enter_context(socket.socket(socket.AF_UNIX))
                server.bind(socket_name(cluster))
                server.listen(cluster.world_size)
            can_share = True
        except OSError as error:
            can_share, reason = False, str(error)
        if not agree([float(not can_share)])[0]:
            try:
                sums = _connected(cluster) if server is None else _gathered(server, cluster.world_size)
            except (OSError, ValueError) as error:  # ValueError: the other end sent nothing
                reason = str(error)
            if agree([float(sums is None)])[0]:
                sums = None
    if sums:
        logger.info("the replicas sum gradients through shared memory")
    else:
        logger.info("the replicas sum gradients through the network, not through shared memory: %s", reason)
    return sums


def socket_name(cluster: Cluster) -> str:
    """Return the abstract name of the Unix socket at which the chief has the others connect."""
    return f"\0slipway-sums-{cluster.tasks[0].host_and_port[1]}"


def _gathered(server: socket.socket, processes: int) -> SharedSums:
    """Give the others the segment and their sockets, as the process of rank 0."""
    server.settimeout(JOIN_SECONDS)
    with contextlib.ExitStack() as closed:
        segment = os.memfd_create("slipway-sums")
        closed.callback(os.close, segment)
        os.ftruncate(segment, segment_bytes(processes))
        pairs = {pair: socket.socketpair() for pair in itertools.combinations(range(processes), 2)}
        for (first, _), ends in pairs.items():
            for link in ends[1:] if first == 0 else ends:  # the first end of its own pairs is kept
                closed.callback(link.close)
        for _ in range(1, processes):
            process = closed.enter_context(server.accept()[0])
            process.settimeout(JOIN_SECONDS)
            _check_user(process)
            rank = int(process.recv(16))
            links = [pairs[pair][pair[1] == rank].fileno() for pair in pairs if rank in pair]
            socket.send_fds(process, [b"0"], [segment, *links])
        return SharedSums(0, [pairs[0, rank][0] for rank in range(1, processes)], segment)


def _connected(cluster: Cluster) -> SharedSums:
    """Receive them, as another process."""
    with socket.socket(socket.AF_UNIX) as chief:
        chief.settimeout(JOIN_SECONDS)
        chief.connect(socket_name(cluster))
        _check_user(chief)
        chief.send(str(cluster.rank).encode())
        _, (segment, *links), _, _ = socket.recv_fds(chief, 1, cluster.world_size)
    try:
        return SharedSums(cluster.rank, [socket.socket(fileno=link) for link in links], segment)
    finally:
        os.close(segment)


def _check_user(connected: socket.socket) -> None:
    """Raise OSError if another user's process is at the other end."""
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.getuid():
        raise OSError(f"a process of another user, {user}, has connected")


class SharedSums:
    """Sums arrays over processes of one machine, which must all make the same calls.

    Args:
        rank: This process's rank.
        links: The sockets to the other processes, in the order of ranks.
        segment: The file descriptor of the shared segment, of `segment_bytes`.

    Attributes:
        lost: Which process has ended; None if none has.
    """

    def __init__(self, rank: int, links: Sequence[socket.socket], segment: int) -> None:
        self.lost: str | None = None
        self._links = {other + (other >= rank): link for other, link in enumerate(links)}
        memory = mmap.mmap(segment, segment_bytes(len(links) + 1))
        self._parts = np.frombuffer(memory, np.uint8).reshape(BUFFERS, len(links) + 1, PIECE_BYTES)
        self._rank, self._count = rank, 0

    def add(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the sums of `arrays` over all processes, in new memory.

        Raises:
            ProcessEnded: Another process has ended.
        """
        results: list[Array] = [np.empty(0)] * len(arrays)
        for dtype in {array.dtype: None for array in arrays}:
            numbers = [number for number, array in enumerate(arrays) if array.dtype == dtype]
            total = self._add_flat([arrays[number].reshape(-1) for number in numbers], dtype)
            start = 0
            for number in numbers:
                shape, size = arrays[number].shape, arrays[number].size
                results[number] = total[start : start + size].reshape(shape)
                start += size
        return results

    def _add_flat(self, arrays: Sequence[Array], dtype: np.dtype[Any]) -> Array:
        total = _empty(sum(array.size for array in arrays), dtype)
        rest = PIECE_BYTES // dtype.itemsize
        for start in range(0, total.size, rest):
            piece = total[start : start + rest]
            parts = self._parts[self._count % BUFFERS, :, : piece.nbytes].view(dtype)
            _copy(arrays, start, parts[self._rank])
            self._exchange()
            np.add(parts[0], parts[1], out=piece)
            for part in parts[2:]:
                np.add(piece, part, out=piece)
        return total

    def _exchange(self) -> None:
        """Tell the others that this process's part is complete, and wait for theirs."""
        self._count += 1
        for rank, link in self._links.items():
            try:
                link.send(b"\0")
            except OSError:
                self._lose(rank)
        deadline = time.perf_counter() + POLL_SECONDS
        for rank, link in self._links.items():
            try:
                is_there = _received(link, deadline)
            except OSError:
                is_there = b""
            if not is_there:
                self._lose(rank)

    def _lose(self, rank: int) -> None:
        self.lost = f"the process of rank {rank} has ended"
        raise ProcessEnded(self.lost)


def _received(link: socket.socket, deadline: float) -> bytes:
    """Return a byte, or nothing at the end; ask until `deadline` (time.perf_counter), and sleep from then on."""
    while time.perf_counter() < deadline:
        try:
            return link.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()  # the other process may have the same core
    return link.recv(1)


def segment_bytes(processes: int) -> int:
    """Return the size of the segment."""
    return BUFFERS * processes * PIECE_BYTES


def _empty(size: int, dtype: np.dtype[Any]) -> Array:
    memory = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size * dtype.itemsize].view(dtype)


def _copy(arrays: Sequence[Array], start: int, target: Array) -> None:
    """Copy the elements from `start` of `arrays`, joined, to `target`."""
    first = 0
    for array in arrays:
        begin, end = max(start, first), min(start + target.size, first + array.size)
        if begin < end:
            target[begin - start : end - start] = array[begin - first : end - first]
        first += array.size
