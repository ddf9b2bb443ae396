"""Run the tests of the copy: once to record which of them run which site, then those of each mutant until one fails."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

PYTEST = [".venv/bin/python", "-m", "pytest", "-p", "_mutant_recorder", "-p", "no:cacheprovider"]
SELECTION = "not long"  # that of `make test`


@dataclass
class Test:
    """What the recording run showed of a test; `shared` are its fixtures of a wider scope."""

    outcomes: set[str] = field(default_factory=set)
    seconds: float = 0.0
    shared: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Verdict:
    """What the tests noticed of a mutant.

    Attributes:
        killer: The test that failed, twice with the mutant and not without it; None if the mutant survived.
        tried: How many tests ran.
        skipped: How many more tests run its site, but not within the limit of seconds.
    """

    killer: str | None
    tried: int
    skipped: int


class Judge:
    """The suite of a copy: its tests, with what they cost and which sites they run."""

    def __init__(self, copy: Path, folder: Path) -> None:
        self._copy, self._folder = copy, folder
        self.tests: dict[str, Test] = {}
        self._sites: dict[int, set[str]] = defaultdict(set)
        self._reliable: dict[str, bool] = {}
        self._runs = itertools.count()

    def record(self) -> None:
        """Run the suite without a mutant, unless its results are in the folder."""
        results, hits, done = (self._folder / name for name in ("results", "hits", "recorded"))
        if not done.exists():
            results.unlink(missing_ok=True)
            hits.unlink(missing_ok=True)
            hits.touch()
            variables = {"MUTANT_HITS": str(hits), "MUTANT_RESULTS": str(results)}
            with (self._folder / "log").open("w") as log:
                command = [*PYTEST, "-m", SELECTION]
                subprocess.run(command, cwd=self._copy, env=os.environ | variables, stdout=log, stderr=log, check=False)
            done.touch()
        users = defaultdict(set)
        for result in _read(results):
            if result["outcome"] != "started":
                test = self.tests.setdefault(result["test"], Test())
                test.outcomes.add(result["outcome"])
                test.seconds += result["seconds"]
                test.shared.update(result["shared"])
                for fixture in result["shared"]:
                    users[fixture].add(result["test"])
        for line in hits.read_text().splitlines():
            number, name, *fixtures = line.split("\t")
            self._sites[int(number)].update([name], *(users[fixture] for fixture in fixtures))

    @property
    def failed(self) -> list[str]:
        """The tests that fail without a mutant, which judge none."""
        return [name for name, test in self.tests.items() if "failed" in test.outcomes]

    def covering(self, number: int, file: str) -> list[str]:
        """Return the tests that run a site, cheap files and tests first.

        Of a site that runs only when its module is imported or tests are collected, those in the mirrored folder.
        """
        names = self._sites[number] - {""}
        if not names and self._sites[number]:
            folder = f"tests/{Path(file).parent.as_posix().removeprefix('slipway/')}/"
            names = {name for name in self.tests if name.startswith(folder)}
        names = {name for name in names if self._passed(name)}
        files: dict[str, list[float]] = defaultdict(list)
        for name in names:
            files[name.partition("::")[0]].append(self.tests[name].seconds)

        def cost(name: str) -> tuple[float, str, float]:
            path = name.partition("::")[0]
            return mean(files[path]), path, self.tests[name].seconds

        return sorted(names, key=cost)

    def judge(self, number: int, file: str, previous: str | None, limit: float) -> Verdict:
        """Try the tests of a mutant until one fails."""
        covering = self.covering(number, file)
        if previous and self._passed(previous):
            covering = [previous, *(name for name in covering if name != previous)]
        seconds, untried = 0.0, list[str]()
        for name in covering:
            seconds += self.tests[name].seconds
            if untried and seconds > limit:
                break
            untried.append(name)
        tried, selected = 0, len(untried)
        while untried:
            failing, ran = self._run(number, untried)
            tried += ran
            if failing is None:
                break
            if self._run(number, [failing])[0] and self._passes(failing):
                return Verdict(failing, tried, len(covering) - selected)
            untried = untried[untried.index(failing) + 1 :] if failing in untried else []
        return Verdict(None, tried, len(covering) - selected)

    def _passed(self, name: str) -> bool:
        return name in self.tests and self.tests[name].outcomes == {"passed"}

    def _passes(self, name: str) -> bool:
        """Return whether a test passes without a mutant, alone."""
        if name not in self._reliable:
            self._reliable[name] = self._run(None, [name])[0] is None
        return self._reliable[name]

    def _run(self, number: int | None, names: Sequence[str]) -> tuple[str | None, int]:
        """Run tests until one fails; return its name (a file, if it cannot be collected) and how many ran."""
        token = f"{os.getpid()}-{next(self._runs)}"
        results, selected = self._folder / f"results-{token}", self._folder / f"tests-{token}"
        selected.write_text(json.dumps(names))
        results.touch()
        recorded = [self.tests[name].seconds for name in names if name in self.tests]
        variables = {"MUTANT_RESULTS": str(results), "MUTANT_TESTS": str(selected), "MUTANT_RUN": token}
        if number is not None:
            variables["MUTANT"] = str(number)
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        options = ["-n", "0", "-x", "--timeout", str(int(60 + 5 * max(recorded, default=0.0)))]
        process = subprocess.Popen(
            [*PYTEST, *options, *files], cwd=self._copy, env=os.environ | variables, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(120 + 3 * sum(recorded))
        except subprocess.TimeoutExpired:
            status = None
        _end(token, process)
        records = list(_read(results))
        selected.unlink()
        results.unlink()
        started = [record["test"] for record in records if record["outcome"] == "started"]
        failing = next((record["test"] for record in records if record["outcome"] == "failed"), None)
        if failing is None and status not in (0, 5):  # 5: there was no test, as when a file is collected again
            failing = started[-1] if started else names[0]
        return failing, len(started)


def _end(token: str, process: subprocess.Popen[bytes]) -> None:
    """End what tests with a mutant have left running, also in sessions of its own."""
    for other in psutil.process_iter():
        try:
            if other.environ().get("MUTANT_RUN") == token:
                other.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    process.wait()


def _read(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        yield json.loads(line)
