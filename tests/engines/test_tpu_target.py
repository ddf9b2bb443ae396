"""`slipway run --target tpu` on a slice of two machines, which only JAX trains on."""

from __future__ import annotations

import pytest

from tests.end_to_end.tpu_target import TpuRuns
from tests.end_to_end.workspace import Workspace, steps
from tests.engines.conftest import ENGINE
from tests.fakes.google import FakeGoogle


@pytest.mark.engine("jax")
def test_a_run_with_target_tpu_trains_on_a_slice_of_two_hosts(
    tmp_path_factory: pytest.TempPathFactory, ready_google: FakeGoogle
) -> None:
    tpu = TpuRuns(Workspace(tmp_path_factory.mktemp("workspace")), ready_google)
    ready_google.tpu.machines.containers["JAX_PLATFORMS"] = "cpu"
    done = tpu.workspace.slipway("run", *tpu.arguments("tpu-v5p-2x2x2", f"train.engine={ENGINE}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not ready_google.tpu.resources
    record, log = tpu.workspace.record(), tpu.workspace.log("train")
    assert record["metrics"]["accuracy"] >= 0.97
    checksum = steps(record)["train"]["outputs"]["weights_checksum"]
    for host in ("workerpool0-0-host0", "workerpool0-0-host1"):
        assert f"[{host}] weights checksum {checksum}" in log
