"""Trainings that do nothing are ended; those that compute, read, compile or wait for one that does are not."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipway.components.train.local_cluster import run_local_cluster
from slipway.components.worker_pools import WorkerPool
from slipway.core import idle as signs
from slipway.core.errors import UserError
from slipway.core.idle import IDLE_VARIABLE
from slipway.trainer import launch
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed import idle
from slipway.trainer.distributed.accelerators import Accelerators
from slipway.trainer.distributed.cluster import Cluster, Task
from slipway.trainer.distributed.rendezvous import Watch

CONFIGURATION = Path(__file__).parents[3] / "configs" / "digits.yaml"
SECONDS = 4.0
CLUSTER = Cluster((Task("workerpool0", 0, ""),), 0, "nothing", Accelerators("none", 0, ""))
SPIN = "began = time.process_time()\n    while time.process_time() - began < 0.1: pass\n    time.sleep(0.5)"


def pools(module: str, replicas: int = 1) -> list[WorkerPool]:
    """The pools of a custom program that may do nothing for some seconds."""
    environment = [{"name": IDLE_VARIABLE, "value": str(SECONDS)}]
    pool: WorkerPool = {
        "replica_count": 1,
        "machine_spec": {"machine_type": "x"},
        "container_spec": {"command": launch.command(module, 1), "env": environment},
    }
    return [pool] * replicas


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the program, which is the module `program` of a project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)]))
    return tmp_path / "program.py"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_program_that_sleeps_is_ended(program: Path, replicas: int) -> None:
    program.write_text("import time\nfrom pathlib import Path\nPath('checkpoint').touch()\ntime.sleep(300)\n")
    log = io.StringIO()
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        run_local_cluster(pools("program", replicas), program.parent / "output", log=log)
    error = caught.value
    assert error.message.startswith("The training was idle: workerpool0-0 did nothing for "), log.getvalue()
    assert "The last sign of life was its start, at 20" in error.message
    assert error.setting == "budget.idle"
    assert "--set budget.idle=null" in str(error.fix)
    assert SECONDS < time.monotonic() - began < 60
    assert (program.parent / "checkpoint").exists()


WORKING = {
    "it computes and reports nothing": f"while time.monotonic() < end:\n    {SPIN}\n",
    "its child process computes": "import subprocess, sys\n"
    "code = 'import time; end = time.monotonic() + 9\\nwhile time.monotonic() < end: pass'\n"
    "subprocess.run([sys.executable, '-c', code])\n",
    "it reads": "file = open('data', 'w+b')\nfile.write(bytes(1 << 20))\n"
    "while time.monotonic() < end:\n    file.seek(0)\n    file.read()\n    time.sleep(0.5)\n",
    "it reports": "from slipway.core import idle\n"
    "while time.monotonic() < end:\n    idle.sign('a step')\n    time.sleep(1.0)\n",
    "it saves": "from slipway.core import idle\nidle.sign('the export', busy=True)\ntime.sleep(9)\n",
    "the other replica computes": "import os\n"
    "if os.environ['RANK'] == '0': time.sleep(end - time.monotonic())\n"
    f"while time.monotonic() < end:\n    {SPIN}\n",
    "the chief computes": "import os\n"
    "if os.environ['RANK'] == '1': time.sleep(end - time.monotonic())\n"
    f"while time.monotonic() < end:\n    {SPIN}\n",
}


@pytest.mark.parametrize("name", WORKING)
def test_a_program_that_works_is_not_ended(program: Path, name: str) -> None:
    program.write_text(f"import time\nend = time.monotonic() + {2.2 * SECONDS}\n{WORKING[name]}\n")
    run_local_cluster(pools("program", 2 if "RANK" in WORKING[name] else 1), program.parent / "output")


AUGMENT = """
import time
from pathlib import Path

import tensorflow as tf


def slow(images, seed):
    def wait(batch):
        time.sleep(600 if Path("hang").exists() else {seconds})
        return batch

    waited = tf.py_function(wait, [images], tf.float32)
    waited.set_shape(images.shape)
    return waited
"""


def test_slipways_trainer_is_ended_in_a_step_that_hangs_and_not_for_slow_steps(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = program.parent
    (folder / "slipway.yaml").write_text(CONFIGURATION.read_text())
    (folder / "augment.py").write_text(AUGMENT.format(seconds=0.05))
    settings = (
        *("train.steps=4", "train.steps_per_call=1", "train.augment.function=augment:slow"),
        *("evaluate.gate.minimum=0", "budget.idle=1m"),
    )
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "slipway", "run", *options]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (planned,) = folder.glob("runs/latest/artifacts/*/plan-training/executor_output.json")
    specs = json.loads(planned.read_bytes())["parameterValues"]["Output"]
    (variable,) = specs[0]["container_spec"]["env"]
    assert variable == {"name": IDLE_VARIABLE, "value": "60"}
    variable["value"] = str(SECONDS)
    (folder / "augment.py").write_text(AUGMENT.format(seconds=SECONDS / 2))
    run_local_cluster(specs, folder / "slow")
    (folder / "hang").touch()
    with pytest.raises(UserError, match="The training was idle: workerpool0-0 did nothing"):
        run_local_cluster(specs, folder / "hanging", restarts=RestartSettings(at_most=0))


@pytest.mark.long
def test_the_command_after_the_error_resumes_an_idle_training(program: Path) -> None:
    folder = program.parent
    program.write_text(
        "import json, os, time\nfrom pathlib import Path\n"
        "if not Path('awake').exists(): time.sleep(600)\n"
        "Path(os.environ['AIP_MODEL_DIR'], 'metrics.json').write_text(json.dumps({'accuracy': 0.75}))\n"
    )
    (folder / "slipway.yaml").write_text("name: idle\ntrain:\n  module: program\nbudget:\n  idle: 1m\n")
    slipway = [sys.executable, "-m", "slipway"]
    failed = subprocess.run([*slipway, "run"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    (then,) = re.findall(r"then: slipway (.*)", failed.stderr)
    assert then.startswith("run --resume idle-")
    assert then.endswith(" --set budget.idle=null")
    (folder / "awake").touch()
    subprocess.run([*slipway, *shlex.split(then)], capture_output=True, check=True)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> idle.IdleCheck:
    """A check whose thread never runs, of processes that use nothing."""
    monkeypatch.setenv(signs.SIGNS_VARIABLE, "")
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    check = idle.IdleCheck(100.0, CLUSTER, Watch({}), print, root=True)
    check._gpu_command = None
    return check


def usages(check: idle.IdleCheck, monkeypatch: pytest.MonkeyPatch, *values: tuple[float, float, float]) -> list[bool]:
    """Whether the replica is idle at each check, by the time, and the CPU time and bytes that it has used."""
    started = time.monotonic()
    measured = iter([idle.Usage(started + at, cpu, size) for at, cpu, size in values])
    monkeypatch.setattr(check._processes, "usage", lambda: next(measured))
    check._began = check._gpu_at = started
    return [check.is_idle() for _ in values]


def test_a_replica_is_idle_after_the_time_and_not_while_it_uses_more_than_threads_that_wait(
    check: idle.IdleCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [float(at) for at in range(0, 301, 5)]
    assert usages(check, monkeypatch, *((at, 0.005 * at, 9e4 * at) for at in times)) == [at >= 95 for at in times]
    check._usages.clear()
    assert not any(usages(check, monkeypatch, *((at, 0.02 * at, 0.0) for at in times)))
    check._usages.clear()
    assert not any(usages(check, monkeypatch, *((at, 0.0, 2e5 * at) for at in times)))


def test_a_replica_that_was_frozen_has_not_been_idle(check: idle.IdleCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usages(check, monkeypatch, (0.0, 0.0, 0.0), (5.0, 0.0, 0.0), (900.0, 0.0, 0.0), (905.0, 0.0, 0.0)) == 4 * [
        False
    ]


@pytest.mark.parametrize(("output", "works"), [("0\n0\n", False), ("0\n7\n", True), ("[N/A]\n", True)])
def test_a_gpu_that_is_used_or_does_not_say_works(
    check: idle.IdleCheck, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, works: bool
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{output}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert check._gpus_work() is works
