"""Where the minutes of the tests go: seconds of each test and of each fixture, on the clock and of the processor.

    python -m pytest -p tests.costs --costs=FILE …     one line of JSON for each test, its phases, and each fixture
    python -m tests.costs FILE [--top N]               a table by folder, and the tests and fixtures that cost most

CPU seconds include those of child processes that have ended. A fixture's seconds are counted in those of the first
test that uses it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


class Clock:
    """Seconds since this object was created, on the clock and of the processor."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.monotonic(), cpu_seconds()

    def seconds(self) -> dict[str, float]:
        return {"wall": round(time.monotonic() - self.wall, 4), "cpu": round(cpu_seconds() - self.cpu, 4)}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended, user and system."""
    return sum(os.times()[:4])


class Costs:
    """Writes the seconds of tests and fixtures to a file that several workers share."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lines = file.open("a", buffering=1)

    def write(self, **row: Any) -> None:
        self._lines.write(json.dumps(row) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        clock = Clock()
        try:
            return (yield)
        finally:
            self.write(
                kind="fixture",
                name=fixturedef.argname,
                scope=fixturedef.scope,
                test=request.node.nodeid,
                **clock.seconds(),
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        clock = Clock()
        try:
            return (yield)
        finally:
            self.write(
                kind="test", name=item.nodeid, slow=item.get_closest_marker("slow") is not None, **clock.seconds()
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="append the seconds of each test and fixture to this file")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--costs"):
        config.pluginmanager.register(Costs(file.absolute()))


@dataclass
class Total:
    """Seconds of a group of tests."""

    count: int = 0
    wall: float = 0
    cpu: float = 0

    def add(self, row: dict[str, Any]) -> None:
        self.count += 1
        self.wall += row["wall"]
        self.cpu += row["cpu"]


@dataclass
class Table:
    """Totals of tests by folder, of tests and of fixtures."""

    folders: dict[str, Total] = field(default_factory=lambda: defaultdict(Total))
    tests: dict[str, Total] = field(default_factory=lambda: defaultdict(Total))
    fixtures: dict[str, Total] = field(default_factory=lambda: defaultdict(Total))
    total: Total = field(default_factory=Total)


def read(file: Path) -> Table:
    """Return the totals of the rows of `file`."""
    table = Table()
    for line in file.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "fixture":
            table.fixtures[f"{row['name']} ({row['scope']})"].add(row)
            continue
        path = Path(row["name"].split("::")[0]).parts[1:]
        table.folders["/".join(path[:2]) if path[0] in {"components", "pipelines"} else path[0]].add(row)
        table.tests[row["name"]].add(row)
        table.total.add(row)
    return table


def show(title: str, totals: dict[str, Total], top: int) -> None:
    """Print the totals that cost most."""
    print(f"\n{title:<72} {'tests':>6} {'seconds':>8} {'CPU':>7}")
    for name, total in sorted(totals.items(), key=lambda item: -item[1].cpu)[:top]:
        print(f"{name[:72]:<72} {total.count:6} {total.wall:8.1f} {total.cpu:7.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--top", type=int, default=15, help="how many tests and fixtures to name")
    arguments = parser.parse_args()
    table = read(arguments.file)
    show("folder", {**table.folders, "all": table.total}, 100)
    show("fixture", table.fixtures, arguments.top)
    show("test", table.tests, arguments.top)


if __name__ == "__main__":
    main()
