"""Several replicas: real processes, real all-reduce, the same weights everywhere."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.workspace import Workspace, steps

pytestmark = pytest.mark.xdist_group("layouts")


def test_two_replicas_end_with_the_same_weights(workspace: Workspace):
    result = workspace.slipway("run", "--hardware", "cpu*2")
    assert result.returncode == 0, result.stdout + result.stderr
    checksums = dict(re.findall(r"\[(workerpool\d-\d)\] .*weights checksum ([0-9a-f]+)", workspace.log("train")))
    assert set(checksums) == {"workerpool0-0", "workerpool1-0"}
    assert len(set(checksums.values())) == 1
    record = workspace.record()
    assert record["metrics"]["accuracy"] >= 0.97
    assert record["hardware"] == "cpu*2"
    assert steps(record)["plan_training"]["outputs"]["batch_per_replica"] == 32


def test_a_rehearsal_proves_the_layout_and_registers_nothing(workspace: Workspace):
    before = sorted((workspace.path / "models").rglob("metadata.json"))
    result = workspace.slipway("rehearse", "--hardware", "cpu*3", "--set", "train.batch_size=48", "--steps", "6")
    assert result.returncode == 0, result.stdout + result.stderr
    record = workspace.record()
    assert record["rehearsal"]
    assert steps(record)["train"]["outputs"]["steps"] == 6
    assert "register_model" not in steps(record)
    assert len(set(re.findall(r"weights checksum ([0-9a-f]+)", workspace.log("train")))) == 1
    assert sorted((workspace.path / "models").rglob("metadata.json")) == before
