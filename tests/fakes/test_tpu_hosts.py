"""The machines of the imitation of Cloud TPU."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from tests.fakes.tpu import hosts

# A process that hands over to a fork of itself again and again, while its file is there.
HOPS = "import os, sys\nwhile os.path.exists(sys.argv[1]):\n    if os.fork(): os._exit(0)"


def test_a_process_that_is_forked_while_a_machine_is_searched_is_one_of_its_processes(tmp_path: Path) -> None:
    mark, file = uuid.uuid4().hex, tmp_path / "hops"
    file.touch()
    subprocess.run([sys.executable, "-c", HOPS, str(file)], env={"MARK": mark}, check=True)
    try:
        assert all(hosts._marked(mark) for _ in range(20))
    finally:
        file.unlink()
