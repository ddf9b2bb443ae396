"""`slipway run --target tpu` against the fake TPU API, whose machines run the start-up script."""

from __future__ import annotations

import contextlib
import signal

import psutil
import pytest

from slipway.pipelines.terminal import EXIT_INTERRUPTED
from slipway.trainer.checkpoint.store import POINTER
from tests.end_to_end.tpu_target import TpuRuns
from tests.end_to_end.workspace import FinishedRun, Workspace, steps, wait_for
from tests.fakes.google import COMPUTE_ACCOUNT, FakeGoogle
from tests.fakes.ready import BUCKET, REPOSITORY, let_build

QUICK_RESTARTS = "train.restarts.backoff_seconds=0"


@pytest.fixture
def tpu(workspace: Workspace, ready_google: FakeGoogle) -> TpuRuns:
    return TpuRuns(workspace, ready_google)


def test_a_run_with_target_tpu_trains_the_weights_of_a_local_run_and_deletes_the_tpu(
    tpu: TpuRuns, finished: FinishedRun
) -> None:
    """Its image is built first."""
    let_build(tpu.google, COMPUTE_ACCOUNT, BUCKET, REPOSITORY)
    done = tpu.workspace.slipway("run", *tpu.arguments(image=None))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/trainer-tpu@sha256:" in done.stdout
    (name,) = tpu.requested()
    assert f"{name} in europe-west4-b: ACTIVE" in done.stdout
    assert tpu.google.tpu.states(name)[-1] == "DELETING"
    assert not tpu.google.tpu.resources
    record = tpu.workspace.record()
    assert record["platform"] == "tpu"
    trained = steps(record)["train"]["outputs"]
    assert trained["weights_checksum"] == steps(finished.record)["train"]["outputs"]["weights_checksum"]
    assert trained["model"] == str(tpu.workspace.path / "runs" / record["run_id"] / "train" / "model")
    assert record["metrics"]["accuracy"] >= 0.97
    assert 0 < record["cost"]["seconds"] < steps(record)["train"]["seconds"]  # without the wait for the TPU
    assert record["cost"]["dollars"] == pytest.approx(1.56 * record["cost"]["seconds"] / 3600, abs=1e-4)
    assert "[workerpool0-0] weights checksum" in tpu.workspace.log("train")


@pytest.mark.long
def test_a_run_with_target_tpu_that_is_preempted_twice_trains_the_same_weights(
    tpu: TpuRuns, finished: FinishedRun
) -> None:
    running = tpu.workspace.start("run", *tpu.arguments("tpu-v5e-1x1+spot", QUICK_RESTARTS))
    for attempt in (1, 2):
        name = tpu.wait_until_active(attempt)
        tpu.wait_for_objects("/state.npz", besides=tpu.objects("/state.npz"))
        tpu.google.tpu.preempt(name)
    output, error = running.communicate(timeout=120)
    assert running.returncode == 0, output + error
    assert len(tpu.requested()) == 3
    assert not tpu.google.tpu.resources
    trained = steps(tpu.workspace.record())["train"]["outputs"]
    assert trained["weights_checksum"] == steps(finished.record)["train"]["outputs"]["weights_checksum"]
    assert [restart["reason"] for restart in trained["restarts"]] == ["was preempted"] * 2
    assert all(restart["step"] > 0 for restart in trained["restarts"])


@pytest.mark.long
def test_a_tpu_whose_launcher_was_killed_is_deleted_by_its_lease_and_the_run_resumes(
    tpu: TpuRuns, finished: FinishedRun
) -> None:
    tpu.google.tpu.machines.containers["SLIPWAY_TEST_HOLD"] = POINTER  # else it might end before the lease does
    running = tpu.workspace.start("run", *tpu.arguments(lease=0.2))
    tpu.wait_for_objects(f"/{POINTER}")
    family = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    running.communicate()
    (name,) = tpu.requested()
    wait_for(lambda: not tpu.google.tpu.resources, 60)
    assert tpu.google.tpu.states(name)[-2:] == ["ACTIVE", "DELETING"]
    tpu.google.tpu.machines.containers.clear()
    done = tpu.workspace.slipway("run", "--resume", "latest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(tpu.requested()) == 2
    assert not tpu.google.tpu.resources
    trained = steps(tpu.workspace.record())["train"]["outputs"]
    assert trained["weights_checksum"] == steps(finished.record)["train"]["outputs"]["weights_checksum"]
    assert "resuming" in tpu.workspace.log("train")


def test_ctrl_c_deletes_the_tpu_of_a_run_with_target_tpu(tpu: TpuRuns) -> None:
    running = tpu.workspace.start("run", *tpu.arguments())
    wait_for(lambda: [each.state for each in tpu.google.tpu.resources.values()] == ["ACTIVE"])
    running.send_signal(signal.SIGINT)
    output, error = running.communicate(timeout=180)
    assert running.returncode == EXIT_INTERRUPTED, output + error
    assert not tpu.google.tpu.resources
    assert "a TPU that was requested is deleted first" in output
    assert tpu.workspace.record()["status"] == "cancelled"
