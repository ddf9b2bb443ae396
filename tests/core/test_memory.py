"""Kills for lack of memory: read from control groups of both versions, and from a real one where it can be made."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.core import memory

GROUP = "jobs/digits"


class Machine:
    """A folder in place of /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path, version: int, limit: str = "2000000000") -> None:
        self.proc, self.groups, self.version = folder / "proc", folder / "cgroup", version
        (self.proc / "self").mkdir(parents=True)
        prefix = "0::" if version == 2 else "4:memory:"
        (self.proc / "self" / "cgroup").write_text(f"9:pids:/other\n{prefix}/{GROUP}\n")
        (self.proc / "meminfo").write_text("MemTotal:        4000000 kB\n")
        self.group = (self.groups / "memory" if version == 1 else self.groups) / GROUP
        self.group.mkdir(parents=True)
        names = dict(zip(("events", "limit", "peak"), memory.FILES[2 - version], strict=True))
        self._events = self.group / names["events"]
        (self.group / names["limit"]).write_text(limit + "\n")
        (self.group / names["peak"]).write_text("1999998976\n")
        self.kill(group=0, machine=0)

    def kill(self, group: int, machine: int) -> None:
        """Set the numbers of kills so far."""
        first = "low 0\noom 7\n" if self.version == 2 else "oom_kill_disable 0\nunder_oom 0\n"
        self._events.write_text(f"{first}oom_kill {group}\n")
        (self.proc / "vmstat").write_text(f"nr_free_pages 1\noom_kill {machine}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Machine:
    made = Machine(tmp_path, *request.param)
    monkeypatch.setattr(memory, "PROC", made.proc)
    monkeypatch.setattr(memory, "GROUPS", made.groups)
    return made


@pytest.mark.parametrize("machine", [(1,), (2,)], indirect=True)
def test_a_kill_in_the_control_group_is_told_with_its_limit_and_peak(machine: Machine) -> None:
    machine.kill(group=3, machine=5)
    kills = memory.MemoryKills()
    assert kills.describe() is None, "those were before"
    machine.kill(group=4, machine=6)
    assert kills.describe() == "out of memory: the limit of its control group is 2.00 GB, the peak was 2.00 GB"
    assert kills.describe() is None, "that one was told"


@pytest.mark.parametrize("machine", [(1, "9223372036854771712"), (2, "max")], indirect=True)
def test_without_a_limit_it_is_the_machines_memory(machine: Machine) -> None:
    kills = memory.MemoryKills()
    machine.kill(group=0, machine=1)
    assert kills.describe() is None, "that was a process of somebody else"
    machine.kill(group=1, machine=2)
    assert kills.describe() == "out of memory: the machine has 4.10 GB, and the kernel killed a process"


@pytest.mark.parametrize("machine", [(2,)], indirect=True)
def test_without_a_control_group_it_is_the_machines_count(machine: Machine) -> None:
    (machine.proc / "self" / "cgroup").write_text("0::/\n")
    kills = memory.MemoryKills()
    machine.kill(group=0, machine=1)
    assert kills.describe() == "out of memory: the machine has 4.10 GB, and the kernel killed a process"


def test_nothing_is_told_where_nothing_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path)
    assert memory.MemoryKills().describe() is None


PROGRAM = """
import os, subprocess, sys
from slipway.core.memory import MemoryKills
kills = MemoryKills()
ended = subprocess.run([sys.executable, "-c", "x = bytearray(300_000_000); x[::4096] = b'1' * len(x[::4096])"])
print(ended.returncode, kills.describe())
"""


@pytest.mark.root
def test_a_real_kill_is_told() -> None:
    """In a control group of 100 MB, where this user may make one."""
    for root, name in ((memory.GROUPS / "memory", "memory.limit_in_bytes"), (memory.GROUPS, "memory.max")):
        group = root / f"slipway-test-{os.getpid()}"
        limit = group / name
        with contextlib.suppress(OSError):
            if root.joinpath("cgroup.procs").is_file():
                group.mkdir()
                break
    else:
        pytest.skip("this user may not make a control group")
    try:
        try:
            limit.write_text("100000000")
        except OSError as error:
            pytest.skip(f"the control group has no limit of memory: {error}")
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        ran = subprocess.run(
            ["sh", "-c", enter, "sh", sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
        )
        assert ran.stdout.startswith(
            "-9 out of memory: the limit of its control group is 0.10 GB, the peak was 0.10 GB"
        ), ran
    finally:
        group.rmdir()
