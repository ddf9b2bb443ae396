"""A command as a user types it: what it must print, and what the services do meanwhile.

Each command starts a new interpreter once. What it does with a fault, or again, is tested in a fork (tests/forks.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slipway.core.parent_death import dying_with_parent
from tests import forks

BIN = Path(sys.executable).parent
SITE = Path(__file__).with_name("site")
# On a machine with forty times as much to do, the longest command takes half of this.
SECONDS = 300
# Google's SDK, which creates pipeline jobs, and the commands that do.
SDK = "google.cloud.aiplatform"
SUBMITTING = ("run ", "tune ", "schedule apply ")
# The most lines that an error has: one screen.
SCREEN = 24
# Lines of a traceback of a program that is installed, and what else is never said.
NEVER = r'File "/|partially initialized|bug in Slipway|Exception ignored|never retrieved'


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        name: What it shows.
        command: The arguments of `slipway`, as in a shell.
        code: Its exit code.
        text: Regular expressions that its output, with single spaces, matches.
        absent: A regular expression that its output does not match.
        fault: What is asked for at the control address's /faults before the command; see tests/fakes/control.py.
        script: Python code that runs in place of the command.
        interrupted_at: A call, during which the command receives SIGINT, as by Ctrl-C.
        environment: Additional variables.
        forked: Run it as a fork, because another case starts a new interpreter for this command. Forks are also the
            cases with a fault or an exit code other than 0, unless they are interrupted.
    """

    name: str
    command: str = ""
    code: int = 0
    text: str | tuple[str, ...] = ""
    absent: str = ""
    fault: Mapping[str, Any] | None = None
    script: str = ""
    interrupted_at: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    forked: bool = False

    @property
    def is_fork(self) -> bool:
        """Whether it runs in a fork."""
        anew = bool(self.script or self.interrupted_at)
        return not anew and (self.forked or self.fault is not None or self.code != 0)


class Services:
    """A process of `python -m tests.fakes serve`."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.fakes", "serve", str(folder), "--json", *options]
        self._log = folder.with_suffix(".log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                dying_with_parent(command), cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        answer = json.loads(line)
        self.environment: dict[str, str] = answer["environment"]
        self.sections: dict[str, Any] = answer["sections"]
        self._control = self.environment["SLIPWAY_TEST_CONTROL"]

    def stop(self) -> None:
        """End the process, which must have answered every call."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(30) == 0, self._log.read_text()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the control address; return its answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self._control + path, data, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def calls(self, after: int = 0) -> list[str]:
        """Return the methods that were called, without the first ones."""
        found: list[str] = self.ask("GET", f"/calls?after={after}")["calls"]
        return found


class Project:
    """A folder, and commands in it that find the services."""

    def __init__(self, services: Services, folder: Path) -> None:
        self.services = services
        self.folder = folder

    def add(self, *sections: str, **more: object) -> None:
        """Append sections to the configuration: those of the services, and others."""
        file = self.folder / "slipway.yaml"
        added = {name: self.services.sections[name] for name in sections} | more
        if added:
            file.write_text(file.read_text() + yaml.safe_dump(added))

    def commit(self) -> None:
        """Commit all files to a new repository, from which images are built."""
        for command in ("init", "add .", "-c user.name=a -c user.email=a@example.com commit --message start"):
            subprocess.run(["git", *command.split()], cwd=self.folder, check=True, capture_output=True)

    def slipway(self, command: str) -> str:
        """Run a command that succeeds; return its output."""
        return self.output(Case(command, command))

    def check(self, cases: Iterable[Case]) -> None:
        """Run the commands one after another; raise AssertionError for the first that is not as it should be."""
        for case in cases:
            self.output(case)

    def output(self, case: Case) -> str:
        """Run a command and return its output, if it is as it should be."""
        before = len(self.services.calls())
        if case.fault is not None:
            self.services.ask("POST", "/faults", case.fault)
        try:
            done = self._run(case)
        finally:
            struck = self.services.ask("DELETE", "/faults")["struck"]
        problems = _problems(case, done)
        if case.fault is not None and not struck:
            problems.append("the fault struck no call")
        if imports := self._imports(case):
            problems.append(f"imports of {', '.join(imports[:9])}")
        if problems:
            calls = "\n  ".join(f"{call} ({count})" for call, count in Counter(self.services.calls(before)).items())
            command = case.script or f"slipway {case.command}"
            raise AssertionError(
                f"{case.name}: {'; '.join(problems)}\n$ {command}\n{done.stdout}{done.stderr}\n"
                f"The services received:\n  {calls or 'nothing'}"
            )
        return done.stdout + done.stderr

    def _imports(self, case: Case) -> list[str]:
        """Return the imports on threads, and those of large libraries that the command does not need."""
        if not self._imports_file.exists():
            return []
        imports = self._imports_file.read_text().splitlines()
        self._imports_file.unlink()
        needed = SDK if case.script or f"{case.command} ".startswith(SUBMITTING) else ""
        return [line for line in imports if line != needed]

    @property
    def _imports_file(self) -> Path:
        return self.folder / "imports.txt"

    def _run(self, case: Case) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "slipway"), *shlex.split(case.command)]
        if case.script:
            command = [str(BIN / "python"), "-c", case.script]
        before = len(self.services.calls())
        environment = self._environment | case.environment
        if case.is_fork:
            at_start = {name: value for name, value in os.environ.items() if forks.READ_AT_START.match(name)}
            environment = {name: value for name, value in environment.items() if not forks.READ_AT_START.match(name)}
            environment |= at_start | {"PYTHONPATH": ""}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=None if case.is_fork else lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        with process:
            while case.interrupted_at and process.poll() is None:
                if any(case.interrupted_at in call for call in self.services.calls(before)):
                    process.send_signal(signal.SIGINT)
                    break
                time.sleep(0.05)
            try:
                stdout, stderr = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
            "HTTPS_PROXY": "http://127.0.0.1:9",  # nobody listens there: no call leaves this machine
            "NO_PROXY": "localhost,127.0.0.1",
            "PYTHONPATH": str(SITE),
            "SLIPWAY_TEST_IMPORTS": str(self._imports_file),
            "SLIPWAY_RETRY_SECONDS": "0.01",
            **self.services.environment,
        }


def _problems(case: Case, done: subprocess.CompletedProcess[str]) -> list[str]:
    output = " ".join((done.stdout + done.stderr).split())
    problems = []
    if done.returncode != case.code:
        problems.append(f"its exit code is {done.returncode}, not {case.code}")
    texts = (case.text,) if isinstance(case.text, str) else case.text
    problems += [f"no text /{text}/" for text in texts if not re.search(text, output)]
    forbidden = (re.search(pattern, output) for pattern in (case.absent, NEVER) if pattern)
    problems += [f"the text {match[0]!r}" for match in forbidden if match]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    if case.code == 2 and (len(errors) != 1 or len(done.stderr.splitlines()) > SCREEN):
        problems.append(f"{len(errors)} errors in {len(done.stderr.splitlines())} lines, not one on one screen")
    return problems
