"""Meeting the job's other replicas at the start, and noticing when one is gone.

Every worker connects to the chief at the chief's own port, and says who it is; once all have, the chief lets them go
on, and only then do the engines' servers have the ports. The connections stay: when one breaks without a farewell, or
nothing is heard on it for long, that replica is gone, the chief tells the others, and a process that hangs in the
engine (a collective operation waits for ever where a library does not notice) is ended: it can be started again.

Engines notice a dead peer in different ways and times: TensorFlow 2.21 a killed one after 0.1 s and a frozen one after
7 s (measured, four processes on one machine), but not at all while its own cluster is being formed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping

from slipway.core.errors import UserError
from slipway.trainer.distributed.cluster import Cluster, Task
from slipway.trainer.distributed.signals import PEER_LOST_EXIT_CODE

PEER_SECONDS_VARIABLE = "SLIPWAY_PEER_SECONDS"
DEFAULT_PEER_SECONDS = 300.0

FIRST_REPORT_SECONDS = 5.0
REPORT_SECONDS = 15.0
POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 1.0
# A replica that is heard of for so long is taken for dead: its machine is gone, or the process is frozen.
SILENCE_SECONDS = 30.0
# How long the engine may take to notice by itself that a peer is gone, and the last checkpoint to be written.
LOST_SECONDS = 5.0
# How long the chief waits for the others' farewells, and how long any replica waits for its own to be heard.
FAREWELL_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Connection:
    """A connection to another replica, by which lines of text go both ways: hello, waiting, go, lost, bye.

    An empty line says only that the sender lives.
    """

    def __init__(self, connected: socket.socket) -> None:
        # Lines are short: each is sent at once and does not wait until the one before is acknowledged.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        self.socket = connected
        self.heard_at = time.monotonic()
        self.has_left = False
        self._rest = b""

    def send(self, line: str) -> None:
        """Send a line; a connection that cannot take it is found broken when it is read."""
        with contextlib.suppress(OSError):
            self.socket.send(line.encode() + b"\n")

    def receive(self) -> list[str] | None:
        """The lines that have come, maybe none; None when the other side has closed the connection."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self.heard_at = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def say_bye(self) -> None:
        """Send the farewell, the last line of this side."""
        self.send("bye")
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self, deadline: float) -> None:
        """Close the connection once the other side has closed its own, or at `deadline` (time.monotonic).

        A socket that is closed with unread bytes resets the connection, which drops what the other side has not read.
        """
        with contextlib.suppress(OSError):
            while (seconds := deadline - time.monotonic()) > 0:
                self.socket.settimeout(seconds)
                if not self.socket.recv(65536):
                    break
        self.socket.close()


def meet(cluster: Cluster, seconds: float) -> Watch:
    """Return once all replicas are there, with the watch over them.

    A lone replica meets nobody, nor does one that torchrun started, which brings its own together and watches them.

    Raises:
        UserError: A peer did not come within `seconds`, or this replica's port is taken.
    """
    if cluster.replicas == 1 or cluster.source == "torchrun":
        return Watch({})
    patience = _Patience(seconds)
    with _listening(cluster.task) as listener:
        if cluster.is_chief:
            return Watch(_gather(cluster, listener, patience), leaves_last=True)
        return Watch({str(cluster.tasks[0]): _report_to(cluster.tasks[0], cluster, patience)})


class _Patience:
    """Says now and then for whom is waited, and for how long; gives up at the deadline."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = time.monotonic()
        self._report_at = self._started + FIRST_REPORT_SECONDS

    def wait(self, names: str) -> None:
        """Wait a little for the replicas of these names.

        Raises:
            UserError: The time is over.
        """
        now = time.monotonic()
        if now - self._started > self._seconds:
            raise UserError(
                f"Not all replicas came within {self._seconds:g} s; missing: {names}.",
                setting=PEER_SECONDS_VARIABLE,
                value=self._seconds,
                fix=f"see that replica's log for why it did not start; if it only needs longer, set "
                f"{PEER_SECONDS_VARIABLE}",
            )
        if now >= self._report_at:
            logger.info("waiting for %s (%.0f s of %g)", names, now - self._started, self._seconds)
            self._report_at = now + REPORT_SECONDS
        time.sleep(POLL_SECONDS)


def _gather(cluster: Cluster, listener: socket.socket, patience: _Patience) -> dict[str, Connection]:
    """The chief's part: take in all others, then let them go on."""
    there: dict[int, Connection] = {}
    unknown: list[Connection] = []
    told_at = 0.0
    while True:
        unknown += _accepted(listener)
        for connection in list(unknown):
            lines = connection.receive()
            if lines is None:
                unknown.remove(connection)
            for line in lines or ():
                word, _, number = line.partition(" ")
                if word == "hello" and number.isdecimal() and 0 < int(number) < cluster.replicas:
                    there[int(number)] = connection  # in the place of an earlier start of the same replica
                    unknown.remove(connection)
        for rank, connection in list(there.items()):
            if connection.receive() is None:
                del there[rank]  # gone again; maybe another start of it will come
        if len(there) == cluster.replicas - 1:
            for connection in there.values():
                connection.send("go")
            return {str(cluster.tasks[rank]): connection for rank, connection in there.items()}
        missing = ", ".join(str(task) for rank, task in enumerate(cluster.tasks) if rank and rank not in there)
        if time.monotonic() - told_at > HEARTBEAT_SECONDS:
            told_at = time.monotonic()
            for connection in there.values():
                connection.send(f"waiting {missing}")
        patience.wait(missing)


def _accepted(listener: socket.socket) -> list[Connection]:
    with contextlib.suppress(OSError):
        return [Connection(listener.accept()[0])]
    return []


def _report_to(chief: Task, cluster: Cluster, patience: _Patience) -> Connection:
    """A worker's part: report to the chief until it says go. A server that is no chief of this try does not answer."""
    missing = str(chief)
    while True:
        connection = _connected(chief)
        with contextlib.ExitStack() as given_up:
            if connection is not None:
                given_up.callback(connection.socket.close)
                connection.send(f"hello {cluster.rank}")
            while connection is not None and not _is_silent(connection, 5 * HEARTBEAT_SECONDS):
                lines = connection.receive()
                if lines is None:
                    break
                for line in lines:
                    word, _, names = line.partition(" ")
                    if word == "go":
                        given_up.pop_all()
                        return connection
                    missing = names if word == "waiting" else missing
                patience.wait(missing)
        missing = str(chief)
        patience.wait(missing)


def _connected(task: Task) -> Connection | None:
    with contextlib.suppress(OSError):
        return Connection(socket.create_connection(task.host_and_port, timeout=1.0))
    return None


def _is_silent(connection: Connection, seconds: float) -> bool:
    return time.monotonic() - connection.heard_at > seconds


@contextlib.contextmanager
def _listening(task: Task) -> Iterator[socket.socket]:
    """A listener on this replica's own port, which shows as well that no other program has it."""
    host, port = task.host_and_port
    with socket.socket() as listener:
        # Whoever started this replica may hold its port for it with a socket that shares it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind(("127.0.0.1" if host in ("127.0.0.1", "localhost") else "", port))
        except OSError as error:
            raise UserError(
                f"This replica's port {port} cannot be listened on: {error.strerror}.",
                fix="end the program that holds the port (an earlier run?)",
            ) from None
        listener.listen(128)
        listener.setblocking(False)
        yield listener


class Watch:
    """The watch over the replicas at the other ends of `connections`, by name: the chief's over all, a worker's over
    the chief. The one that `leaves_last` is the chief's."""

    def __init__(self, connections: dict[str, Connection], *, leaves_last: bool = False) -> None:
        self.lost: str | None = None
        self._connections = connections
        self._leaves_last = leaves_last
        self._finished, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if connections:
            self._thread.start()

    def finish(self) -> None:
        """All replicas have agreed that they are done: from now on the loss of one is no error."""
        self._finished.set()

    def wait_for_farewells(self) -> None:
        """Return when the replicas at the other ends have left, or after `FAREWELL_SECONDS`."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < deadline and not self._all_left():
            time.sleep(0.02)

    def close(self) -> None:
        """Say farewell and leave. The chief closes when all have said it, and so a worker stays until all are done."""
        self.finish()
        if self._leaves_last:
            self.wait_for_farewells()
        self._closed.set()
        for connection in self._connections.values():
            connection.say_bye()
        if self._connections:
            self._thread.join(timeout=2 * HEARTBEAT_SECONDS)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for connection in self._connections.values():
            connection.close(deadline)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for name, connection in self._connections.items():
                selector.register(connection.socket, selectors.EVENT_READ, name)
            beat_at = 0.0
            end_at: float | None = None
            while not self._closed.is_set() and (self.lost is not None or not self._all_left()):
                for key, _ in selector.select(HEARTBEAT_SECONDS / 2):
                    if not self._listen(key.data):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if now - beat_at >= HEARTBEAT_SECONDS:
                    beat_at = now
                    self._beat()
                if self.lost is None or self._finished.is_set():
                    continue
                if end_at is None:
                    end_at = now + LOST_SECONDS
                    self._report(self.lost)
                elif now >= end_at:  # the engine has not noticed it by itself
                    os._exit(PEER_LOST_EXIT_CODE)

    def _all_left(self) -> bool:
        return all(connection.has_left for connection in self._connections.values())

    def _listen(self, name: str) -> bool:
        """Process what came from a replica; whether there may be more."""
        connection = self._connections[name]
        lines = connection.receive()
        for line in lines or ():
            word, _, who = line.partition(" ")
            if word == "bye":
                connection.has_left = True
            elif word == "lost":
                self._lose(who)
        if lines is None and not connection.has_left:
            connection.has_left = True
            self._lose(name)
        return lines is not None

    def _beat(self) -> None:
        for name, connection in self._connections.items():
            if connection.has_left:
                continue
            connection.send("")
            if _is_silent(connection, SILENCE_SECONDS):
                self._lose(f"{name} (silent for {SILENCE_SECONDS:g} s)")

    def _lose(self, name: str) -> None:
        if self.lost is None and not self._finished.is_set():
            self.lost = name

    def _report(self, lost: str) -> None:
        for connection in self._connections.values():
            connection.send(f"lost {lost}")
        logger.error("%s is gone; this replica cannot continue alone", lost)


def seconds_to_wait(environment: Mapping[str, str]) -> float:
    """How long to wait for peers, as the environment says."""
    return float(environment.get(PEER_SECONDS_VARIABLE) or DEFAULT_PEER_SECONDS)
