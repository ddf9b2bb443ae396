"""Several replicas: real processes, real all-reduce, the same weights everywhere."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.workspace import Workspace, steps


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


@pytest.mark.parametrize(("hardware", "processes", "devices"), [("t4x2*2", 2, 2), ("tpu-v3-8", 1, 8)])
def test_a_cloud_layout_is_rehearsed_with_virtual_devices(workspace: Workspace, hardware, processes, devices):
    result = workspace.slipway("rehearse", "--hardware", hardware, "--steps", "4")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "not proven" in result.stdout
    assert "state of adam" in result.stdout
    log = workspace.log("train")
    opened = re.findall(r"\[(workerpool\d-\d)\] .*MirroredStrategy, (\d+) x CPU", log)
    assert opened == [(name, str(devices)) for name, _ in opened]
    assert len(opened) == processes
    assert len(set(re.findall(r"weights checksum ([0-9a-f]+)", log))) == 1


BROKEN = """
import keras
from keras import layers

def built_in_batch(image_shape, classes):
    return keras.Sequential([keras.Input(batch_shape=(64, *image_shape)), layers.Flatten(), layers.Dense(classes)])

OUTSIDE = layers.Dense(10)
OUTSIDE.build((None, 64))

def variable_from_outside(image_shape, classes):
    return keras.Sequential([keras.Input(image_shape), layers.Flatten(), OUTSIDE])
"""


@pytest.mark.parametrize(
    ("builder", "words"),
    [("built_in_batch", "a fixed batch size of 64"), ("variable_from_outside", "was created outside of the builder")],
)
def test_a_model_that_cannot_train_in_the_layout_fails(workspace: Workspace, builder, words):
    (workspace.path / "broken.py").write_text(BROKEN)
    result = workspace.slipway("rehearse", "--hardware", "t4x2", "--set", f"model.builder=broken:{builder}")
    assert result.returncode == 1
    assert "The step train failed" in result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
