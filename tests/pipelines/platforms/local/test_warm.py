"""The process that imports while other steps run: which steps it runs, and what happens when it is lost."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from slipway.core.exit_codes import FAILED
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.local import forkserver, launch
from slipway.pipelines.platforms.local.warm import Warm, warm_steps
from slipway.pipelines.platforms.table import platform_of
from tests.end_to_end.workspace import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="steps are forks on Linux only")


def configured(hardware: str = "cpu", **train: object) -> RunConfig:
    model = {} if "module" in train else {"model": {"builder": "a:b"}}
    values = {"name": "digits", "hardware": hardware, "data": {"source": "digits"}, "train": {"epochs": 1, **train}}
    return RunConfig.model_validate({**values, **model})


@pytest.mark.parametrize(
    ("config", "platform", "environment", "steps"),
    [
        (configured(), "local", {}, ("train", "evaluate")),
        (configured("cpu*2"), "local", {}, ("train", "evaluate")),
        (configured("l4x1"), "local", {}, ("train", "evaluate")),  # virtual devices in a rehearsal
        (configured(engine="jax"), "local", {}, ("train", "evaluate")),
        (configured("tpu-v5e-1x1"), "tpu", {}, ("evaluate",)),  # the training is not here
        (configured(), "local", {"TPU_NODE_NAME": "local"}, ()),
    ],
)
@pytest.mark.extension("tpu")
def test_only_libraries_that_survive_a_fork_are_imported_before_it(config, platform, environment, steps):
    assert warm_steps(config, platform_of(platform), environment) == steps


def command(name: str, code: str) -> list[str]:
    given = ["--executor_input", '{"outputs": {"outputFile": "out/written.json"}}', "--function_to_execute", name]
    return ["sh", "-ec", "script", code, *given]


def test_each_step_is_a_process_of_its_own(tmp_path: Path, monkeypatch):
    """A killed step fails alone; the libraries are there; once the process is lost, a step runs in another way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    warm = Warm(["evaluate"], "tensorflow")
    try:
        assert warm.run(command("prepare_data", "")) is None
        killed = "import os, signal\ndef evaluate() -> None:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        assert warm.run(command("evaluate", killed)) not in (0, None)
        assert warm.run(command("evaluate", "def evaluate() -> None:\n    raise SystemExit(3)\n")) == 3
        loaded = (
            "import sys\n"
            "from pathlib import Path\n"
            "imported = 'tensorflow' in sys.modules\n"
            "def evaluate() -> None:\n"
            "    Path('imported').write_text(str(imported))\n"
        )
        assert warm.run(command("evaluate", loaded)) == 0
        assert Path("imported").read_text() == "True"
        lost = "import os, signal\ndef evaluate() -> None:\n    os.kill(os.getppid(), signal.SIGKILL)\n"
        assert warm.run(command("evaluate", lost)) == FAILED
        assert warm.run(command("evaluate", loaded)) is None
    finally:
        warm.close()


def test_a_step_dies_with_a_killed_executor_and_holds_the_lock_until_then(tmp_path: Path) -> None:
    """Otherwise the run is resumed beside a training that continues."""
    step = (
        "import os, time\n"
        "from pathlib import Path\n"
        "def evaluate() -> None:\n"
        "    Path('writing').write_text(str(os.getpid()))\n"
        "    Path('writing').rename('running')\n"
        "    time.sleep(100)\n"
    )
    executor = (
        "import fcntl, os\n"
        "from slipway.pipelines.platforms.local.warm import Warm\n"
        "lock = os.open('lock', os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        f"Warm(['evaluate'], 'tensorflow', lock).run({command('evaluate', step)!r})\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", executor], cwd=tmp_path, env=environment)
    wait_for((tmp_path / "running").exists)
    process.kill()
    process.wait()
    with (tmp_path / "lock").open() as file:
        wait_for(lambda: locked(file))
    pid = int((tmp_path / "running").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def locked(file: TextIO) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def test_a_study_whose_server_is_killed_starts_processes(tmp_path: Path, monkeypatch):
    started = []
    monkeypatch.setattr(launch, "start_process", lambda *given: started.append(given) or 7)
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as file, forkserver.run_starter(configured(), platform_of("local")) as start:
        wait_for(servers)  # while a program is being loaded, its process has no command line
        (server,) = servers()
        server.kill()
        server.wait()
        assert start(tmp_path, file.fileno(), (0, 1, 2)) == 7
        assert started == [(tmp_path, file.fileno(), (0, 1, 2))]
    monkeypatch.setenv("TPU_NODE_NAME", "local")
    with forkserver.run_starter(configured(), platform_of("local")) as start:
        assert start is None
        assert not servers()


def servers() -> list[psutil.Process]:
    running = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in running if forkserver.__name__ in child.cmdline()]
