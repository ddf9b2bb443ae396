"""A disk that is really full: a small file system, mounted in an unprivileged namespace."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.core.errors import ERROR_PREFIX
from slipway.trainer import __main__ as worker
from slipway.trainer.checkpoint.store import StorageUnavailable
from slipway.trainer.distributed.signals import StopRequest

ROOT = Path(__file__).parents[3]
IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
PROGRAM = """
import logging, sys
from pathlib import Path
import numpy as np
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints

logging.basicConfig(format="%(message)s", stream=sys.stdout)
folder = Path(sys.argv[1])
checkpoints = Checkpoints(folder / "checkpoints", keep=2)
save = lambda step: checkpoints.save(Checkpoint(step, {"weights": np.full(50_000, step, np.float32)}, {}))
print("first", save(1))
filler = folder / "filler"
with filler.open("wb", buffering=0) as file:  # others fill the disk
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        print("full:", error.strerror)
print("second", save(2))
print("newest", checkpoints.newest().step, sorted(path.name for path in (folder / "checkpoints").iterdir()))
filler.unlink()
print("third", save(3))
print("newest", checkpoints.newest().step, checkpoints.newest().state["weights"][0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_a_full_file_system_costs_one_checkpoint_and_no_more(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    try:
        allowed = subprocess.run([*IN_NAMESPACE, "sh", "-c", mount], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("this machine lets no user mount a file system in a namespace")
    command = f'{mount} && exec "$0" -c "$1" {tmp_path}'
    ended = subprocess.run(
        [*IN_NAMESPACE, "sh", "-c", command, sys.executable, PROGRAM], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "first True"
    assert lines[1] == "full: No space left on device"
    assert lines[2].startswith("could not save a checkpoint at step 2: no space left in")
    assert lines[3:] == [
        "second False",
        "newest 1 ['latest', 'step-00000001']",
        "third True",
        "newest 3 3.0",
    ]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a/model"),
        RuntimeError("PosixWritableFile: No space left on device; runs/a/model"),  # as an engine puts it
    ],
)
def test_a_model_that_does_not_fit_is_a_users_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def work(_config: str, _stop: StopRequest) -> None:
        raise error

    monkeypatch.setattr(worker, "_work", work)
    monkeypatch.setattr(StopRequest, "install", lambda _stop: None)
    assert worker.main(["--config", "{}"]) == 1
    told = capsys.readouterr().err
    assert ERROR_PREFIX in told
    assert "runs/a/model" in told
    assert "slipway run --resume latest" in told
    assert "Traceback" not in told


def test_storage_that_cannot_be_read_ends_with_the_exit_code_for_another_attempt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_config: str, _stop: StopRequest) -> None:
        raise StorageUnavailable("The storage is unavailable: Input/output error.")

    monkeypatch.setattr(worker, "_work", work)
    monkeypatch.setattr(StopRequest, "install", lambda _stop: None)
    assert worker.main(["--config", "{}"]) == 75
    assert "Traceback" not in capsys.readouterr().err
