"""Call a user's function a second time, in another process, to check that it yields the same examples."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from slipway.components.prepare_data.examples import source_error
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.exit_codes import describe, status_of
from slipway.core.manifest import TaskName

DIGEST_BYTES = 8
CALL = "from slipway.components.prepare_data.sources.user_module import print_digests; print_digests()"
# The exit status of `print_digests` if it printed the reason of its failure.
FAILED = 1


class DeterminismCheck:
    """The user's function in another process; its examples are compared with ours one by one."""

    def __init__(self, settings: DataSettings, task: TaskName) -> None:
        self._settings = settings
        self._task = task

    def __enter__(self) -> DeterminismCheck:
        self._errors = tempfile.TemporaryFile("w+")
        # A different hash seed, so that sets of strings iterate in a different order.
        seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", CALL, self._settings.model_dump_json(), self._task],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def compare(self, number: int, expected: bytes) -> None:
        """Compare an example's digest with the other process's; b"" stands for the end.

        Raises:
            UserError: The other process yielded a different one.
        """
        assert self._process.stdout is not None
        actual = self._process.stdout.read(DIGEST_BYTES)
        if actual == expected and (expected or self._process.wait() == 0):
            return
        reference = self._settings.source
        if actual == b"" and (code := self._process.wait()) != 0:
            self._errors.seek(0)
            lines = [line for line in self._errors.read().splitlines() if line.strip()]
            why = lines[-1] if code == FAILED and lines else f"it {describe(status_of(code))}"
            problem = f"{reference} failed when it was called a second time, in another process: {why}"
        elif actual and expected:
            problem = f"{reference} is not deterministic: example {number:,} differs when it is called again."
        else:
            more = "fewer" if expected else "more"
            problem = f"{reference} is not deterministic: it yields {more} examples when it is called again."
        raise source_error(
            reference,
            problem,
            allowed="a function that yields the same examples in the same order on every call",
            fix="seed random generators, sort the contents of sets and folders, do not use the time",
        )
