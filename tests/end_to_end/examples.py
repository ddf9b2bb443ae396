"""The example programs of docs/your-own-training-loop.md, run as they stand there."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.end_to_end.workspace import Workspace, processes_of, wait_for

PAGE = Path(__file__).parents[2] / "docs" / "your-own-training-loop.md"


class Example:
    """A section's program and configuration, in a workspace."""

    def __init__(self, workspace: Workspace, heading: str) -> None:
        section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        (configuration,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
        (self.module,) = re.findall(r"module: (\w+)", configuration)
        self.workspace = workspace
        (workspace.path / f"{self.module}.py").write_text(program)
        (workspace.path / "example.yaml").write_text(configuration)

    def run(self, *options: str, meanwhile: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Run the example and do something after it has started; return the record of the run, which succeeds."""
        process = self.workspace.start("run", "-c", "example.yaml", *options)
        try:
            meanwhile()
            output, error = process.communicate(timeout=600)
        finally:
            process.terminate()
        assert process.returncode == 0, output + error
        return self.workspace.record()

    def interrupt(self, number: signal.Signals, rank: int) -> None:
        """Send a signal to the process of a rank once there is a checkpoint."""
        found = wait_for(lambda: self._processes(rank))
        folder = self.workspace.path / "runs" / "latest" / "train" / "checkpoints"
        wait_for(lambda: any(folder.glob("state.*")), seconds=200)
        found[0].send_signal(number)

    def _processes(self, rank: int) -> list[psutil.Process]:
        """Return the program's process of a rank, which is not the launcher's."""
        with contextlib.suppress(psutil.Error):  # a process has ended
            return [
                process
                for process in processes_of(self.workspace.path)
                if process.cmdline()[1:3] == ["-m", self.module] and process.environ()["RANK"] == str(rank)
            ]
        return []
