"""Interrupted runs (kill -9, Ctrl-C, a closed terminal, cancel) can be resumed where they stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.end_to_end.workspace import Workspace, processes_of, steps, trainers, wait_for

OFTEN = ("--set", "train.checkpoint.every_steps=20")
LONG = ("run", "--set", "train.steps=200000", "--set", "train.checkpoint.every_steps=200")
# A training without TensorFlow, of which these tests wait for the first checkpoint only.
WAITING = """
import os
import time
from pathlib import Path

folder = Path(os.environ["AIP_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "latest").write_text("step-00000001")
time.sleep(1000)
Path(os.environ["AIP_MODEL_DIR"], "model.txt").write_text("trained")
"""
PROGRAM = ("run", "--set", "model=null", "--set", "train={module: program}", "--set", "evaluate.gate.minimum=0")


@pytest.fixture
def space(tmp_path) -> Iterator[Workspace]:
    yield Workspace(tmp_path)
    for process in processes_of(tmp_path):  # of a failed test: a long training slows all others down
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def checkpoint_pointer(space: Workspace) -> bool:
    return (space.path / "runs/latest/train/checkpoints/latest").exists()


def newest_checkpoint(space: Workspace) -> str:
    return (space.path / "runs/latest/train/checkpoints/latest").read_text()


def test_a_trainer_killed_in_mid_epoch_resumes_from_its_checkpoint(space, finished):
    """Restarted automatically until the limit, then with --resume."""
    process = space.start("run", *OFTEN, "--set", "train.restarts.at_most=1")
    wait_for(lambda: checkpoint_pointer(space))
    trainers(space.path)[0].kill()
    wait_for(lambda: "resuming from the checkpoint" in space.log("train"))
    trainers(space.path)[0].kill()
    output, error = process.communicate(timeout=200)
    assert "workerpool0-0 was killed by SIGKILL: all start again from the checkpoint of step" in output
    assert process.returncode == 1, output
    record = space.record()
    assert record["status"] == "failed"
    assert record["error"]["step"] == "train"
    assert "workerpool0-0 was killed by SIGKILL, for the 2nd time" in record["error"]["message"]
    assert f"slipway run --resume {record['run_id']}" in error
    prepared = record["steps"][0]

    resumed = space.slipway("run", "--resume", "latest")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    after = space.record()
    assert after["run_id"] == record["run_id"]
    assert after["status"] == "succeeded"
    again = steps(after)["prepare_data"]
    assert (again["reused"], again["outputs"]["dataset"]) == (True, prepared["outputs"]["dataset"])
    assert "the run began with this data set" in space.log("prepare_data")
    going_on = re.search(r"resuming from the checkpoint at step (\d+)", space.log("train"))
    assert going_on
    assert int(going_on[1]) >= 20
    checksums = {steps(record)["train"]["outputs"]["weights_checksum"] for record in (after, finished.record)}
    assert len(checksums) == 1, "a run that was killed ends with the weights of one that was not"


@pytest.mark.parametrize("how", ["Ctrl-C", "closed terminal", pytest.param("cancel", marks=pytest.mark.long)])
def test_a_stopped_run_leaves_no_processes_and_can_be_resumed(space, how):
    """`cancel` works while a replica and the command line are suspended, the latter as with Ctrl-Z."""
    (space.path / "program.py").write_text(WAITING)
    process, terminal = space.start_in_terminal(*(LONG if how == "Ctrl-C" else PROGRAM), "--hardware", "cpu*2")
    shown = b""

    def read_until(condition):
        nonlocal shown
        with contextlib.suppress(OSError):  # the command has ended
            while select.select([terminal], [], [], 0)[0]:
                shown += os.read(terminal, 65536)
        return condition()

    wait_for(lambda: read_until(lambda: checkpoint_pointer(space)))
    if how == "Ctrl-C":  # the first validation is compiled for seconds, in which a stop request does not wait
        first = newest_checkpoint(space)
        wait_for(lambda: read_until(lambda: newest_checkpoint(space) != first))
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(trainers(space.path)) == 2
    if how == "Ctrl-C":
        os.write(terminal, b"\x03")
    elif how == "cancel":
        frozen = trainers(space.path)[1]
        frozen.suspend()
        wait_for(lambda: read_until(lambda: f"kill -CONT {frozen.pid}".encode() in shown))
        process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        assert "cancelled" in space.slipway("cancel").stdout
        assert time.monotonic() - started < 15
    if how == "closed terminal":
        os.close(terminal)
        process.wait(timeout=120)
    else:
        wait_for(lambda: read_until(lambda: process.poll() is not None))
        assert b"slipway run --resume" in shown
        os.close(terminal)
    assert process.returncode == 130, shown
    record = space.record()
    assert record["status"] == "cancelled"
    assert steps(record)["train"]["status"] == "cancelled"
    assert steps(record)["prepare_data"]["status"] == "succeeded"
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not processes_of(space.path)
    if how == "Ctrl-C":
        events = (space.path / "runs/latest/events.jsonl").read_text()
        assert "saving the last checkpoint" in events, "the trainer had the time for it"


@pytest.mark.long
def test_a_preempted_worker_restarts_and_the_run_reports_it(space):
    """Both replicas end with the same weights, as after a run without restarts."""
    short = ("--set", "train.epochs=8", "--set", "evaluate.gate.minimum=0.9")
    process = space.start("run", "--hardware", "cpu*2", *OFTEN, *short)
    wait_for(lambda: checkpoint_pointer(space))
    trainers(space.path)[1].terminate()
    output, error = process.communicate(timeout=200)
    assert process.returncode == 0, output + error
    said = "was stopped by SIGTERM: all start again from the checkpoint of step"
    assert said in output
    assert "1 restart" in output
    assert said in space.log("train")
    (restart,) = steps(space.record())["train"]["outputs"]["restarts"]
    assert restart["replica"] in ("workerpool0-0", "workerpool1-0")
    assert restart["step"] > 0
    checksums = dict(re.findall(r"\[(workerpool\d-\d)\] .*weights checksum ([0-9a-f]+)", space.log("train")))
    assert set(checksums) == {"workerpool0-0", "workerpool1-0"}
    assert len(set(checksums.values())) == 1
    record = space.record()
    assert record["metrics"]["accuracy"] >= 0.9
    assert record["hardware"] == "cpu*2"
    assert steps(record)["plan_training"]["outputs"]["batch_per_replica"] == 32


def test_killing_the_command_ends_its_run(space):
    (space.path / "program.py").write_text(WAITING)
    process = space.start(*PROGRAM)
    wait_for(lambda: checkpoint_pointer(space))
    process.kill()
    process.wait()
    wait_for(lambda: not processes_of(space.path))
    status = json.loads(space.call("status", "--json").stdout)
    assert status["status"] == "failed"
    assert status["error"]["fix"] == f"slipway run --resume {status['run_id']}"


def test_of_two_resumes_of_one_run_one_trains(space):
    """Also while the processes of the killed command still end; the other names the first one's process."""
    (space.path / "program.py").write_text(WAITING)
    first = space.start(*PROGRAM)
    wait_for(lambda: checkpoint_pointer(space))
    first.kill()
    first.wait()
    (space.path / "runs/latest/train/checkpoints/latest").unlink()
    resumes = [space.start("run", "--resume", "latest") for _ in range(2)]
    wait_for(lambda: checkpoint_pointer(space))
    wait_for(lambda: any(process.poll() is not None for process in resumes))
    assert len(trainers(space.path)) == 1
    (refused,) = (process for process in resumes if process.poll() is not None)
    (running,) = (process for process in resumes if process is not refused)
    _, error = refused.communicate()
    run_id = (space.path / "runs/latest").resolve().name
    assert refused.returncode == 2
    assert f"error: run {run_id} is still running, in process {running.pid}." in error
    assert "Traceback" not in error
    assert space.record()["status"] == "running"
    assert "cancelled" in space.slipway("cancel").stdout
    assert running.wait(timeout=180) == 130


def test_a_command_killed_before_its_run_has_a_record_leaves_no_run(space):
    """Repeatedly, at the first sight of the run's folder."""
    (space.path / "program.py").write_text(WAITING)
    for _ in range(3):
        process = space.start(*PROGRAM)
        wait_for(lambda: space.runs())
        process.kill()
        process.wait()
        if (space.path / "runs/latest").is_symlink():
            wait_for(lambda: json.loads(space.call("status", "--json").stdout)["status"] == "failed")


def test_the_temporary_folder_of_a_killed_command_is_removed_by_the_next_run(space, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (space.path / "program.py").write_text(WAITING)
    process = space.start(*PROGRAM, TMPDIR=str(temporary))
    wait_for(lambda: checkpoint_pointer(space))
    (left,) = temporary.glob("slipway-*")
    process.kill()
    process.wait()
    (space.path / "runs/latest/train/checkpoints/latest").unlink()
    process = space.start("run", "--resume", "latest", TMPDIR=str(temporary))
    wait_for(lambda: checkpoint_pointer(space))
    assert not left.exists()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 130
    assert not list(temporary.glob("slipway-*"))
