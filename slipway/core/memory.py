"""How much memory there is, and whether the kernel has killed a process for lack of it.

The control group's word, or else the machine's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")
# A limit of cgroup v1 that is none: the largest number of whole pages.
NO_LIMIT = 1 << 60
# Names of the files of a group: the count of kills, the limit, the peak. Version 2, then 1.
FILES = (
    ("memory.events", "memory.max", "memory.peak"),
    ("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
)


class MemoryKills:
    """The kernel's kills for lack of memory since this object was made or last asked."""

    def __init__(self) -> None:
        self._before = _kills()

    def describe(self) -> str | None:
        """Return what happened, as in "out of memory: …"; None if no process was killed for that, or nobody knows."""
        before, self._before = self._before, _kills()
        if all(count <= before.get(where, count) for where, count in self._before.items()):
            return None
        if not (limited := _limits()):
            return f"out of memory: the machine has {_gigabytes(_machine_bytes())}, and the kernel killed a process"
        limit, peak = min(limited, key=lambda usage: usage[0])
        at_peak = "" if peak is None else f", the peak was {_gigabytes(peak)}"
        return f"out of memory: the limit of its control group is {_gigabytes(limit)}{at_peak}"


def available_bytes() -> int | None:
    """Return the memory that this process may use with others: its control groups' limit, else the machine's."""
    return min([limit for limit, _ in _limits()], default=_machine_bytes()) or None


def _limits() -> list[tuple[int, int | None]]:
    """Return the limits of this process's control groups, with the groups' peaks."""
    usages = [(_number(folder / limit), _number(folder / peak)) for folder, (_, limit, peak) in _groups()]
    return [(limit, peak) for limit, peak in usages if limit is not None and limit < NO_LIMIT]


def _kills() -> dict[str, int]:
    """Return the kills so far in this process's control groups, or on the machine if there are none."""
    counts = {str(folder): _field(folder / events, "oom_kill") for folder, (events, *_) in _groups()}
    counts = counts or {"machine": _field(PROC / "vmstat", "oom_kill")}
    return {where: count for where, count in counts.items() if count is not None}


def _groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """This process's control groups of memory, from the innermost outwards, with their files' names."""
    for line in _text(PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        files, root = (FILES[1], GROUPS / "memory") if controllers else (FILES[0], GROUPS)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = root / path.lstrip("/")
        # In a container, the path may be the host's, and the container's own group is mounted at the root.
        for group in (folder, *folder.parents):
            if group.is_relative_to(root) and (group / files[0]).is_file():
                yield group, files


def _field(path: Path, name: str) -> int | None:
    match = re.search(rf"^{name} (\d+)$", _text(path), re.MULTILINE)
    return int(match[1]) if match else None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _machine_bytes() -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB$", _text(PROC / "meminfo"), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
