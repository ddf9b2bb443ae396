"""Cut links between replicas and freeze replicas; each fault must be noticed, blamed on its cause and survived.

Each replica runs in its own network namespace (root, iproute2 and iptables on Linux); nothing leaves this machine.
`python -m tests.chaos.links --engine E` prints a row for each fault.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from slipway.components.train.restarts import CHECKSUM, Restarts
from slipway.core.exit_codes import PEER_LOST, TRY_AGAIN, status_of
from slipway.trainer.checkpoint.store import pointed_step
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.accelerators import VIRTUAL_DEVICES_VARIABLE
from tests.chaos.chaos import Chaos, _job

NOTICED_SECONDS = 60.0
LIMIT_SECONDS = 300.0
PORT = 5000
STEPS = 200
# The step at which the fault begins: the training has reached its usual speed.
FAULT_STEP = 60

_numbers = itertools.count()


def missing() -> str | None:
    """Return what this machine lacks for network namespaces; None if they can be made."""
    for program in ("ip", "iptables", "ss", "unshare"):
        if shutil.which(program) is None:
            return f"no program {program}"
    name = f"links-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Network:
    """A switch and `count` machines, each a network namespace; removed at the end of the context."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._prefix = f"links-{os.getpid()}-{next(_numbers)}"
        self.addresses = [f"10.9.0.{rank + 1}" for rank in range(count)]

    def __enter__(self) -> Network:
        switch = f"{self._prefix}-switch"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "name", "bridge0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge0", "up")
        for rank, address in enumerate(self.addresses):
            machine = self.machine(rank)
            _run("ip", "netns", "add", machine)
            peer = ("peer", "name", "eth0", "netns", machine)
            _run("ip", "-n", switch, "link", "add", f"port{rank}", "type", "veth", *peer)
            _run("ip", "-n", switch, "link", "set", f"port{rank}", "master", "bridge0", "up")
            _run("ip", "-n", machine, "address", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", machine, "link", "set", "eth0", "up")
            _run("ip", "-n", machine, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*map(self.machine, range(self.count)), f"{self._prefix}-switch"):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def machine(self, rank: int) -> str:
        """The name of a machine's namespace."""
        return f"{self._prefix}-{rank}"

    def inside(self, rank: int, *command: str) -> str:
        """Run a command on a machine and return its output."""
        return _run("ip", "netns", "exec", self.machine(rank), *command)

    def drop(self, rank: int, *rule: str) -> None:
        """Drop a machine's packets without a word."""
        self.inside(rank, "iptables", "-A", *rule, "-j", "DROP")

    def heal(self) -> None:
        """Remove all rules of the packet filters."""
        for rank in range(self.count):
            self.inside(rank, "iptables", "-F")


class Replica:
    """A worker on a machine of the network, named as the restart policy names it."""

    def __init__(self, network: Network, rank: int, config: str, folder: Path, devices: int) -> None:
        self.name = f"workerpool{min(rank, 1)}-{max(0, rank - 1)}"
        addresses = [f"{address}:{PORT}" for address in network.addresses]
        task = {"type": "worker" if rank else "chief", "index": max(0, rank - 1)}
        hosts = folder / f"hosts-{rank}"  # libraries listen at the address of the machine's name
        hosts.write_text(f"127.0.0.1 localhost\n{network.addresses[rank]} {self.name}\n")
        self.log = folder / f"{self.name}-{next(_numbers)}.log"
        removed = ("TF_CONFIG", "CLUSTER_SPEC")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", network.machine(rank), "unshare", "--mount", "--uts", "sh", "-c"),
                    'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"',
                    *("sh", self.name, str(hosts), sys.executable, "-m", "slipway.trainer", "--config", config),
                ],
                env={
                    **{name: value for name, value in os.environ.items() if name not in removed},
                    "TF_CONFIG": json.dumps(
                        {"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task}
                    ),
                    "AIP_MODEL_DIR": str(folder / "model"),
                    "AIP_CHECKPOINT_DIR": str(folder / "checkpoints"),
                    "AIP_TENSORBOARD_LOG_DIR": str(folder / "logs"),
                    "GLOO_SOCKET_IFNAME": "eth0",
                    "PYTHONUNBUFFERED": "1",
                    **({VIRTUAL_DEVICES_VARIABLE: str(devices)} if devices > 1 else {}),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def status(self) -> int:
        """The exit status; waits for the end."""
        return status_of(self.process.wait())

    @property
    def tail(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def connections(self) -> set[tuple[int, int]]:
        """The local and remote ports of its connections between machines."""
        ports = {}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, remote, state, *rest = line.split()
                if state == "01" and not local.startswith("0100007F"):
                    ports[rest[5]] = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
        own = set()
        for process in self.processes():
            with contextlib.suppress(OSError):  # ended or closed meanwhile
                for file in Path(f"/proc/{process.pid}/fd").iterdir():
                    own.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
        return {ports[inode] for inode in own & ports.keys()}

    def processes(self) -> list[psutil.Process]:
        """Its initial process, and those of its devices."""
        with contextlib.suppress(psutil.NoSuchProcess):
            initial = psutil.Process(self.process.pid)
            return [initial, *initial.children(recursive=True)]
        return []

    def signal(self, number: int) -> None:
        """Send a signal to all of its processes."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@dataclass(frozen=True)
class Scene:
    """A running job: its network and replicas, and the rank of the victim, the last one or the chief.

    `connections` are the victim's in the order in which they were seen: the watch connects before the engine does.
    """

    network: Network
    replicas: list[Replica]
    victim: int
    connections: list[tuple[int, int]]

    @property
    def neighbor(self) -> int:
        return abs(self.victim - 1)

    def data(self) -> list[tuple[int, int]]:
        """The victim's connections without the watch's."""
        watched = 1 if self.victim else len(self.replicas) - 1
        current = self.replicas[self.victim].connections()
        return [each for each in self.connections[watched:] if each in current]


def _vanish(scene: Scene) -> None:
    scene.network.drop(scene.victim, "INPUT", "-i", "eth0")
    scene.network.drop(scene.victim, "OUTPUT", "-o", "eth0")


def _outbound(scene: Scene) -> None:
    scene.network.drop(scene.victim, "OUTPUT", "-o", "eth0")


def _inbound(scene: Scene) -> None:
    scene.network.drop(scene.victim, "INPUT", "-i", "eth0")


def _pair(scene: Scene) -> None:
    other = scene.network.addresses[scene.neighbor]
    scene.network.drop(scene.victim, "INPUT", "-s", other)
    scene.network.drop(scene.victim, "OUTPUT", "-d", other)


def _data_only(scene: Scene) -> None:
    for own, other in scene.data():
        scene.network.drop(scene.victim, "INPUT", "-p", "tcp", "--dport", str(own), "--sport", str(other))
        scene.network.drop(scene.victim, "OUTPUT", "-p", "tcp", "--sport", str(own), "--dport", str(other))


def _reset(scene: Scene) -> None:
    for own, other in scene.data():
        scene.network.inside(scene.victim, "ss", "-K", "sport", "=", f":{own}", "and", "dport", "=", f":{other}")


def _freeze(seconds: float, *, everything: bool = False) -> Callable[[Scene], None]:
    def freeze(scene: Scene) -> None:
        frozen = scene.replicas if everything else [scene.replicas[scene.victim]]
        for replica in frozen:
            replica.signal(signal.SIGSTOP)
        time.sleep(seconds)
        for replica in frozen:
            replica.signal(signal.SIGCONT)

    return freeze


CHIEF = "workerpool0-0"
# What happens, whether the job has to survive it without a restart, and who is to blame otherwise: see `_is_just`.
FAULTS: dict[str, tuple[Callable[[Scene], None], str | None]] = {
    "vanish": (_vanish, "cable"),
    "outbound": (_outbound, "direction"),
    "inbound": (_inbound, "direction"),
    "pair": (_pair, "pair"),
    "data only": (_data_only, "connection"),
    "reset": (_reset, "connection"),
    "frozen 5 s": (_freeze(5), None),
    "frozen 20 s": (_freeze(20), None),
    "frozen 60 s": (_freeze(60), "victim"),
    "all frozen 20 s": (_freeze(20, everything=True), None),
}
# gRPC of TensorFlow may connect again.
SURVIVABLE = ("reset",)


@dataclass(frozen=True)
class Outcome:
    """A fault's row in the table; `problems` is empty if all is as it should be."""

    fault: str
    replicas: int
    seconds: float | None  # until all replicas but the victim have ended; None: nothing had to be noticed
    statuses: list[int]
    blamed: str
    same_weights: bool
    problems: list[str]

    def row(self, engine: str) -> str:
        """Return the row in Markdown."""
        seconds = "-" if self.seconds is None else f"{self.seconds:.0f}"
        codes = ", ".join(map(str, self.statuses))
        same = "same" if self.same_weights else "DIFFERENT"
        return f"| {engine} | {self.replicas} | {self.fault} | {seconds} | {codes} | {self.blamed or '-'} | {same} |"


class Links:
    """Faults of the links between `replicas` workers of a job with the engine, in `folder`; each has `devices`."""

    def __init__(self, engine: str, replicas: int, folder: Path, *, victim: int = -1, devices: int = 1) -> None:
        self.replicas, self._folder, self._victim = replicas, folder, victim % replicas
        self._engine, self._devices = engine, devices
        pools, _ = _job(Chaos(0, engine, replicas, 0, STEPS), folder, devices)
        command = pools[0]["container_spec"]["command"] + pools[0]["container_spec"].get("args", [])
        self._config = command[command.index("--config") + 1]

    def undisturbed(self) -> str:
        """Return the checksum of the weights without a fault."""
        with Network(self.replicas) as network, self._job(network, self._folder / "calm") as replicas:
            _wait(replicas)
            assert [replica.status for replica in replicas] == [0] * self.replicas, replicas[0].tail
            return _checksums(replicas).pop()

    def run(self, fault: str, expected: str) -> Outcome:
        """Train with a fault, and again to the end after one that ended the job; compare the weights."""
        folder = self._folder / fault.replace(" ", "-")
        act, cause = FAULTS[fault]
        with Network(self.replicas) as network:
            with self._job(network, folder) as replicas:
                deadline, victim = time.monotonic() + LIMIT_SECONDS, replicas[self._victim]
                connections: dict[tuple[int, int], None] = {}
                while (pointed_step(folder / "checkpoints") or 0) < FAULT_STEP:
                    assert all(replica.process.poll() is None for replica in replicas), replicas[0].tail[-20:]
                    assert time.monotonic() < deadline
                    connections.update(dict.fromkeys(victim.connections()))
                    time.sleep(0.01)
                scene = Scene(network, replicas, self._victim, list(connections))
                began = time.monotonic()
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    acting = pool.submit(act, scene)
                    _wait([replica for replica in replicas if replica is not victim])
                    seconds = time.monotonic() - began
                    acting.result()
                _wait([victim], NOTICED_SECONDS)
                victim.process.kill()
                statuses = [replica.status for replica in replicas]
                blamed, problems = "", []
                if failed := [replica for replica in replicas if replica.status]:
                    restart = Restarts(RestartSettings(), folder / "checkpoints").next(replicas, failed)
                    blamed = restart.replica
                if fault in SURVIVABLE and not any(statuses):
                    cause = None
                wanted = {PEER_LOST, *([TRY_AGAIN] if self._engine == "jax" else [])} if cause else {0}
                if not wanted.issuperset(statuses):
                    problems.append(f"exit codes {statuses} instead of {wanted}")
                if cause and seconds > NOTICED_SECONDS:
                    problems.append(f"noticed after {seconds:.0f} s")
                if not _is_just(cause, blamed, victim.name, replicas[scene.neighbor].name, len(replicas)):
                    problems.append(f"blamed {blamed!r}")
                checksums = _checksums(replicas)
                if not cause and len(checksums) != 1:
                    problems.append("no weights")
            if cause:
                network.heal()
                with self._job(network, folder) as replicas:
                    _wait(replicas)
                    checksums = _checksums(replicas)
        if checksums != {expected}:
            problems.append(f"the weights are {checksums}, undisturbed {expected}")
        return Outcome(
            fault, self.replicas, seconds if cause else None, statuses, blamed, checksums == {expected}, problems
        )

    @contextlib.contextmanager
    def _job(self, network: Network, folder: Path) -> Iterator[list[Replica]]:
        folder.mkdir(exist_ok=True)
        replicas = [Replica(network, rank, self._config, folder, self._devices) for rank in range(self.replicas)]
        try:
            yield replicas
        finally:
            for replica in replicas:
                replica.process.kill()
                replica.process.wait()


def _is_just(cause: str | None, blamed: str, victim: str, neighbor: str, count: int) -> bool:
    """Return whether who is blamed is to blame, as far as the product can know."""
    pair = f"the connection of {' and '.join(sorted((victim, neighbor)))}"
    if cause is None:
        return not blamed
    if cause == "victim":
        return blamed == victim
    if cause == "pair" or (cause == "cable" and count == 2):  # two replicas cannot know whose cable is cut
        # The chief watches the others: of three, it names the one at the other end of its own cut connection.
        return blamed == pair or (count > 2 and CHIEF in (victim, neighbor) and blamed in (victim, neighbor))
    if cause in ("cable", "direction"):  # an engine may notice it first, and knows its own connection only
        return blamed == victim or (victim in blamed and "connection" in blamed)
    return "connection" in blamed or blamed == victim  # all of its connections are lost


def _wait(replicas: list[Replica], seconds: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while any(replica.process.poll() is None for replica in replicas) and time.monotonic() < deadline:
        time.sleep(0.05)


def _checksums(replicas: list[Replica]) -> set[str]:
    return {found for replica in replicas for line in replica.tail for found in CHECKSUM.findall(line)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.links", description=__doc__)
    parser.add_argument("--engine", default="tensorflow")
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--victim", choices=("chief", "last"), default="last", help="the replica that is struck")
    parser.add_argument("--devices", type=int, default=1, help="virtual devices of each replica")
    parser.add_argument("--at-once", type=int, default=3, help="number of faults that are tried at the same time")
    parser.add_argument("--keep", type=Path, help="an empty folder for the runs' output; default: a temporary folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no process and no namespace
    if lacking := missing():
        parser.error(lacking)
    print("| engine | replicas | fault | seconds until noticed | exit codes | blamed | weights |", flush=True)
    problems = []
    with tempfile.TemporaryDirectory(prefix="links-") as temporary:
        for count in options.replicas:
            folder = (options.keep or Path(temporary)) / str(count)
            folder.mkdir(parents=True, exist_ok=True)
            links = Links(
                options.engine, count, folder, victim=0 if options.victim == "chief" else -1, devices=options.devices
            )
            expected = links.undisturbed()
            with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
                for outcome in pool.map(links.run, options.faults, itertools.repeat(expected)):
                    print(outcome.row(options.engine), flush=True)
                    problems += [f"{outcome.fault}, {count} replicas: {problem}" for problem in outcome.problems]
    print(f"links: {'FAILED: ' + '; '.join(problems) if problems else 'passed'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
