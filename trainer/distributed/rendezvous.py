"""Rendezvous of the job's replicas at startup, and detection of lost replicas.

Every worker connects to the chief's port and sends its rank. Once all are connected, the chief lets them continue and
releases the ports to the engines' servers. The connections stay open: if one breaks without a shutdown message or is
silent for too long, that replica is lost. The chief then notifies the others, and a process that hangs in the engine (a
collective operation can block forever) is terminated so that it can be restarted.

Workers exchange gradients over connections that the chief does not see. Each replica therefore reports a step that
takes far longer than those before it, and which replicas it cannot reach; once all report this, a connection is lost. A
replica that waits for training data does not report: the others wait for it, and no connection is lost.

The engines' own heartbeats are turned off: they end a job in which a replica is frozen for seconds, also if all are,
and do not identify it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from slipway.core.errors import UserError
from slipway.core.exit_codes import PEER_LOST, leave, on_vertex
from slipway.trainer.distributed.cluster import Cluster, Task
from slipway.trainer.distributed.steps import FROZEN_SECONDS, HEARTBEAT_SECONDS, StepClock, StepsOfProcesses, publish

PEER_SECONDS_VARIABLE = "SLIPWAY_PEER_SECONDS"
DEFAULT_PEER_SECONDS = 300.0
# Vertex AI starts each replica as soon as it has a machine and the image, and replaces lost machines; leaving earlier
# would use up one of the three times that it retries a job.
VERTEX_PEER_SECONDS = 1800.0

FIRST_REPORT_SECONDS = 5.0
REPORT_SECONDS = 15.0
# A replica that was idle so many heartbeats ago is.
IDLE_BEATS = 5
POLL_SECONDS = 0.05
# A replica that sends nothing for this long is considered lost: its machine is down, or the process is frozen.
SILENCE_SECONDS = 30.0
# A step is overdue after this long, and `OVERDUE_FACTOR` times as long as the longest before it.
OVERDUE_SECONDS = 30.0
OVERDUE_FACTOR = 10
PROBE_SECONDS = 2.0
# Time for the engine to detect a lost replica itself, and for the last checkpoint to be written.
LOST_SECONDS = 5.0
# How long after an engine's error the watch may still learn which replica is lost.
BLAME_SECONDS = 1.5
# Turns the engines' own heartbeats off, in seconds.
NO_ENGINE_HEARTBEAT_SECONDS = 7 * 24 * 3600
# How long the chief waits for the others' shutdown messages, and any replica for its own to be received.
SHUTDOWN_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Connection:
    """A connection to another replica for lines of text in both directions, such as hello, waiting, go, lost and bye.

    An empty line is a heartbeat; "overdue" is one too, with the ranks that the sender cannot reach.
    """

    def __init__(self, connected: socket.socket) -> None:
        # Send each short line at once instead of waiting for the previous one to be acknowledged.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        self.socket = connected
        self.heard_at = time.monotonic()
        self.has_left = False
        self.idle_at = -math.inf
        self.overdue: set[int] | None = None  # ranks that the other side cannot reach, once its step is overdue
        self._rest = b""

    def send(self, line: str) -> None:
        """Send a line; errors are ignored, since the next `receive` detects a broken connection."""
        with contextlib.suppress(OSError):
            self.socket.send(line.encode() + b"\n")

    def receive(self) -> list[str] | None:
        """Return the lines received since the last call, possibly none; None if the connection is closed."""
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

    def send_shutdown(self) -> None:
        """Send the shutdown message, this side's last line."""
        self.send("bye")
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self, deadline: float) -> None:
        """Close the connection once the other side has closed its own, or at `deadline` (time.monotonic).

        Closing a socket that has unread bytes resets the connection, which drops data in flight to the other side.
        """
        with contextlib.suppress(OSError):
            while (seconds := deadline - time.monotonic()) > 0:
                self.socket.settimeout(seconds)
                if not self.socket.recv(65536):
                    break
        self.socket.close()


class ReplicasMissing(UserError):
    """Replicas did not connect in time; they may after a restart of the job."""


def join(cluster: Cluster, seconds: float, steps: StepsOfProcesses | None = None) -> Watch:
    """Wait until all replicas are connected, and return a watch over them.

    Returns at once for a single replica, and under torchrun, which has its own rendezvous and supervision; a process
    of a replica publishes its steps for the replica's initial process, which has them as `steps`.

    Raises:
        ReplicasMissing: A replica did not connect within `seconds`.
        UserError: This replica's port is in use.
    """
    if cluster.world_size == 1 or cluster.source == "torchrun":
        watch = Watch({})
        if steps is None:
            publish(watch.step)
        return watch
    patience = _Patience(seconds)
    with listen(cluster.task) as listener:
        listener.setblocking(False)
        if cluster.is_chief:
            return Watch(_gather(cluster, listener, patience), cluster, leaves_last=True, steps=steps)
        return Watch({_name(cluster, 0): _report_to(cluster.tasks[0], cluster, patience)}, cluster, steps=steps)


def _name(cluster: Cluster, rank: int) -> str:
    return f"{cluster.tasks[rank]} (rank {rank})"


class _Patience:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = time.monotonic()
        self._report_at = self._started + FIRST_REPORT_SECONDS

    def wait(self, names: str) -> None:
        """Sleep for one polling interval; `names` are the missing replicas.

        Raises:
            ReplicasMissing: The deadline has passed.
        """
        now = time.monotonic()
        if now - self._started > self._seconds:
            raise ReplicasMissing(
                f"Some replicas did not connect within {self._seconds:g} s: {names}.",
                setting=PEER_SECONDS_VARIABLE,
                value=self._seconds,
                fix=f"check the missing replica's log; to wait longer, export "
                f"{PEER_SECONDS_VARIABLE}={2 * self._seconds:g}",
            )
        if now >= self._report_at:
            logger.info("waiting for %s (%.0f s of %g)", names, now - self._started, self._seconds)
            self._report_at = now + REPORT_SECONDS
        time.sleep(POLL_SECONDS)


def _gather(cluster: Cluster, listener: socket.socket, patience: _Patience) -> dict[str, Connection]:
    """The chief's side: accept all other replicas, then let them continue."""
    there: dict[int, Connection] = {}
    unknown: list[Connection] = []
    told_at = 0.0
    while True:
        with contextlib.suppress(OSError):
            unknown.append(Connection(listener.accept()[0]))
        for connection in list(unknown):
            lines = connection.receive()
            if lines is None:
                unknown.remove(connection)
            for line in lines or ():
                word, _, number = line.partition(" ")
                if word == "hello" and number.isdecimal() and 0 < int(number) < cluster.world_size:
                    there[int(number)] = connection  # replaces an earlier start of the same replica
                    unknown.remove(connection)
        for rank, connection in list(there.items()):
            if connection.receive() is None:
                del there[rank]  # disconnected; it may be started again
        if len(there) == cluster.world_size - 1:
            for connection in there.values():
                connection.send("go")
            return {_name(cluster, rank): connection for rank, connection in there.items()}
        missing = ", ".join(str(task) for rank, task in enumerate(cluster.tasks) if rank and rank not in there)
        if time.monotonic() - told_at > HEARTBEAT_SECONDS:
            told_at = time.monotonic()
            for connection in there.values():
                connection.send(f"waiting {missing}")
        patience.wait(missing)


def _report_to(chief: Task, cluster: Cluster, patience: _Patience) -> Connection:
    """A worker's side: report to the chief until it sends "go"; retries if a different server holds the port."""
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


def listen(task: Task) -> socket.socket:
    """Return a socket that listens on this replica's own port.

    Raises:
        UserError: Another program uses the port.
    """
    host, port = task.host_and_port
    listener = socket.socket()
    # The launcher may reserve this replica's port with a socket that shares it (`Ports`).
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(("127.0.0.1" if host in ("127.0.0.1", "localhost") else "", port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"Cannot listen on this replica's port {port}: {error.strerror}.",
            fix=f"stop the process that uses the port, perhaps an earlier run: fuser -k {port}/tcp",
        ) from None
    listener.listen(128)
    return listener


class Watch:
    """A watch over the replicas in `connections`, by name: the chief watches all others, a worker the chief.

    `leaves_last` is true for the chief's. `is_idle` is whether this replica does nothing, which the chief is told.
    `steps` are the steps of this replica's processes, `step` those of this one.
    """

    def __init__(
        self,
        connections: dict[str, Connection],
        cluster: Cluster | None = None,
        *,
        leaves_last: bool = False,
        steps: StepsOfProcesses | None = None,
    ) -> None:
        self.lost: str | None = None
        self.step = StepClock()
        self.is_idle = False
        self._connections, self._cluster = connections, cluster
        self._sentence, self._is_reported = "", False
        self._steps = steps or self.step
        self._overdue: set[int] | None = None  # as `Connection.overdue`, of this replica
        self._leaves_last = leaves_last
        self._finished, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if connections:
            self._thread.start()

    @property
    def has_others(self) -> bool:
        """Whether there are replicas to watch."""
        return bool(self._connections)

    def all_idle(self) -> bool:
        """Return whether the others do nothing, as far as the chief knows; False on other replicas."""
        since = time.monotonic() - IDLE_BEATS * HEARTBEAT_SECONDS
        return all(self._leaves_last and connection.idle_at > since for connection in self._connections.values())

    def give_up(self, message: str) -> None:
        """Log which replica is lost and notify the others, after the engine's error `message`."""
        if not self._connections:
            return
        began = time.monotonic()
        while self.lost is None and time.monotonic() - began < BLAME_SECONDS:
            time.sleep(POLL_SECONDS)
        suffix = f" of {_name(self._cluster, self._cluster.rank)}" if self._cluster else ""
        self._lose(f"a connection{suffix}", message, time.monotonic() - began)
        self._report()

    def finish(self) -> None:
        """Mark the job as done on all replicas: from now on losing one is not an error."""
        self._finished.set()

    def wait_for_shutdown(self) -> None:
        """Wait until the watched replicas have left, for at most `SHUTDOWN_SECONDS`."""
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        while time.monotonic() < deadline and not self._all_left():
            time.sleep(0.02)

    def close(self) -> None:
        """Send the shutdown message and leave; the chief first waits for all workers, so that they stay until then."""
        self.finish()
        if self._leaves_last:
            self.wait_for_shutdown()
        self._closed.set()
        for connection in self._connections.values():
            connection.send_shutdown()
        if self._connections:
            self._thread.join(timeout=2 * HEARTBEAT_SECONDS)
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for connection in self._connections.values():
            connection.close(deadline)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for name, connection in self._connections.items():
                selector.register(connection.socket, selectors.EVENT_READ, name)
            beat_at, woke_at = 0.0, time.monotonic()
            end_at: float | None = None
            while not self._closed.is_set() and (self.lost is not None or not self._all_left()):
                ready = selector.select(HEARTBEAT_SECONDS / 2)
                now = time.monotonic()
                if now - woke_at > FROZEN_SECONDS:
                    self._forgive(now - woke_at)
                for key, _ in ready:
                    if not self._listen(key.data):
                        selector.unregister(key.fileobj)
                now = woke_at = time.monotonic()
                if now - beat_at >= HEARTBEAT_SECONDS:
                    beat_at = now
                    self._beat()
                    woke_at = time.monotonic()  # probing the others takes seconds
                if self.lost is None or self._finished.is_set():
                    continue
                if end_at is None:
                    end_at = now + LOST_SECONDS
                    self._report()
                elif now >= end_at:  # the engine has not detected the loss itself
                    leave(PEER_LOST)

    def _all_left(self) -> bool:
        return all(connection.has_left for connection in self._connections.values())

    def _forgive(self, seconds: float) -> None:
        """Do not count a pause in which this process was frozen, as by the suspension of a laptop."""
        for connection in self._connections.values():
            connection.heard_at += seconds

    def _listen(self, name: str) -> bool:
        """Process a replica's received lines; return whether more may follow."""
        connection = self._connections[name]
        lines = connection.receive()
        for line in lines or ():
            word, _, rest = line.partition(" ")
            if word == "bye":
                connection.has_left = True
            elif word == "lost" and self.lost is None and not self._finished.is_set():
                self._sentence = rest
                self.lost = rest.partition(": ")[0]
            elif word == "idle":
                connection.idle_at = time.monotonic()
            elif word in ("", "overdue"):
                connection.overdue = {int(rank) for rank in rest.split(",") if rank} if word else None
        if lines is None and not connection.has_left:
            connection.has_left = True
            self._lose(name, "it closed its connection", 0.0)
        return lines is not None

    def _beat(self) -> None:
        now = time.monotonic()
        waited, longest = self._steps.read()
        if waited <= max(OVERDUE_SECONDS, OVERDUE_FACTOR * longest):
            self._overdue = None
        elif self._overdue is None and self._cluster is not None:
            self._overdue = _unreachable(self._cluster)
        beat = "" if self._overdue is None else f"overdue {','.join(map(str, sorted(self._overdue)))}"
        there = {name: connection for name, connection in self._connections.items() if not connection.has_left}
        for name, connection in there.items():
            connection.send(beat)
            if self.is_idle:
                connection.send("idle")
            if _is_silent(connection, SILENCE_SECONDS):
                self._lose(name, f"silent for {SILENCE_SECONDS:g} s", now - connection.heard_at)
        if self._leaves_last and self._overdue is not None and all(peer.overdue is not None for peer in there.values()):
            how = f"each replica waits for another in a step, for {waited:.0f} s"
            self._lose(self._lost_connection(), f"{how}; none took over {longest:.2g} s", waited)

    def _lost_connection(self) -> str:
        """Return which connection is lost, the chief's part once the steps of all replicas are overdue."""
        assert self._cluster is not None
        reports = {0: self._overdue} | {
            rank: connection.overdue
            for rank in range(self._cluster.world_size)
            if (connection := self._connections.get(_name(self._cluster, rank)))
        }
        pairs = sorted({(min(a, b), max(a, b)) for a, ranks in reports.items() for b in ranks or ()})
        if not pairs:
            return "a connection between the replicas"
        return f"the connection of {_name(self._cluster, pairs[0][0])} and {_name(self._cluster, pairs[0][1])}"

    def _lose(self, name: str, how: str, ago: float) -> None:
        """Note what is lost, and for how many seconds it has been; the first sign decides."""
        if self.lost is None and not self._finished.is_set():
            since = datetime.fromtimestamp(time.time() - ago, UTC).isoformat(timespec="milliseconds")
            self._sentence = f"{name}: {how}, since {since}"
            self.lost = name

    def _report(self) -> None:
        if self.lost is None or self._is_reported:
            return
        self._is_reported = True
        for connection in self._connections.values():
            connection.send(f"lost {self._sentence}")
        logger.error("lost %s; this replica cannot continue alone", self._sentence)


def _unreachable(cluster: Cluster) -> set[int]:
    """Return the ranks of the replicas that do not answer within `PROBE_SECONDS`; a refusal is an answer."""
    probes: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as closed:
        for rank, task in enumerate(cluster.tasks):
            if rank != cluster.rank:
                with contextlib.suppress(OSError):  # the name cannot be resolved
                    probes[rank] = closed.enter_context(_probe(*task.host_and_port))
        deadline = time.monotonic() + PROBE_SECONDS
        waiting = set(range(cluster.world_size)) - {cluster.rank}
        while waiting and time.monotonic() < deadline:
            waiting -= {rank for rank, probe in probes.items() if _has_answered(probe)}
            time.sleep(POLL_SECONDS)
    return waiting


def _probe(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    probe = socket.socket(family, kind, protocol)
    probe.setblocking(False)
    probe.connect_ex(address)
    return probe


def _has_answered(probe: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        probe.getpeername()
        return True
    return probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def seconds_to_wait(environment: Mapping[str, str]) -> float:
    """Return the rendezvous timeout in seconds from the environment."""
    default = VERTEX_PEER_SECONDS if on_vertex(environment) else DEFAULT_PEER_SECONDS
    return float(environment.get(PEER_SECONDS_VARIABLE) or default)
