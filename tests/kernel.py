"""A Jupyter kernel for tests: cells run in it as in a notebook, and their messages are kept with their times."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any, Self

import jupyter_client.launcher
from jupyter_client.manager import KernelManager

PROJECT = Path(__file__).resolve().parent.parent
START_SECONDS = 60
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Message:
    """A message of the kernel about a cell, such as `stream`, `display_data`, `update_display_data` or `error`.

    `seconds` is the time since the cell was sent.
    """

    seconds: float
    kind: str
    content: Mapping[str, Any]


@dataclass
class Cell:
    """A cell that was sent to the kernel, and its messages so far."""

    code: str
    sent: float
    messages: list[Message] = field(default_factory=list)
    done: bool = False

    @property
    def text(self) -> str:
        """What the cell wrote to stdout and stderr."""
        return "".join(each.content["text"] for each in self.of("stream"))

    @property
    def result(self) -> str | None:
        """The text of the cell's last expression."""
        found = self.of("execute_result")
        return found[-1].content["data"]["text/plain"] if found else None

    @property
    def displays(self) -> list[Mapping[str, Any]]:
        """The MIME bundles that the cell displayed or updated, in their order."""
        return [each.content["data"] for each in self.of("display_data", "update_display_data")]

    @property
    def error(self) -> str | None:
        """The cell's exception, as `NAME: MESSAGE`."""
        found = self.of("error")
        return f"{found[-1].content['ename']}: {found[-1].content['evalue']}" if found else None

    def of(self, *kinds: str) -> list[Message]:
        """Return the messages of these kinds."""
        return [each for each in self.messages if each.kind in kinds]


class Kernel:
    """A kernel that imports Slipway from this checkout; a context manager.

    Args:
        folder: Where the kernel starts, as a notebook in this folder does.
        environment: Variables in addition to this process's.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._home = tempfile.mkdtemp(prefix="kernel-")  # IPython's history and the connection file
        self._cells: dict[str, Cell] = {}
        self._manager = KernelManager(
            connection_file=f"{self._home}/connection.json", transport="ipc", ip=f"{self._home}/socket"
        )
        variables = {"PYTHONPATH": str(PROJECT), "IPYTHONDIR": self._home, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        jupyter_client.launcher.Popen = subprocess.Popen  # as tests/forks.py starts it; the module keeps the first one
        try:
            self._manager.start_kernel(cwd=str(folder), env={**os.environ, **variables, **(environment or {})})
            self._client = self._manager.blocking_client()
            self._client.start_channels()
            self._client.wait_for_ready(timeout=START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self._manager.provisioner.pid)

    def execute(self, code: str, timeout: float = 60) -> Cell:
        """Run a cell to its end."""
        return self.wait(self.start(code), timeout)

    def start(self, code: str) -> Cell:
        """Send a cell and return at once; cells that are sent meanwhile are queued, as in a notebook."""
        cell = Cell(code, time.monotonic())
        self._cells[self._client.execute(code, stop_on_error=False)] = cell
        return cell

    def wait(self, cell: Cell, timeout: float = 60) -> Cell:
        """Wait for the end of a cell."""
        return self.until(cell, lambda each: each.done, timeout)

    def until(self, cell: Cell, condition: Callable[[Cell], bool], timeout: float = 60) -> Cell:
        """Collect messages until a condition holds for a cell, such as that it has printed a text.

        Raises:
            TimeoutError: It did not, in `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not condition(cell):
            if time.monotonic() > deadline:
                raise TimeoutError(f"cell {cell.code!r}: {cell.messages[-5:]}")
            self._read()
        return cell

    def interrupt(self) -> None:
        """Interrupt the running cell, as the notebook's stop button does."""
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """Restart the kernel, as the notebook's menu does: its processes are not asked, and variables are lost."""
        self._manager.restart_kernel(now=True)
        self._cells.clear()
        self._client.wait_for_ready(timeout=START_SECONDS)

    def close(self) -> None:
        """End the kernel."""
        if hasattr(self, "_client"):
            self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        shutil.rmtree(self._home, ignore_errors=True)

    def _read(self) -> None:
        """Add the next message, if there is one soon, to its cell."""
        try:
            message = self._client.get_iopub_msg(timeout=POLL_SECONDS)
        except Empty:
            return
        cell = self._cells.get(message["parent_header"].get("msg_id", ""))
        if cell is None:
            return
        kind, content = message["msg_type"], message["content"]
        cell.messages.append(Message(time.monotonic() - cell.sent, kind, content))
        cell.done |= kind == "status" and content["execution_state"] == "idle"
