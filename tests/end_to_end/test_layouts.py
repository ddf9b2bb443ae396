"""Rehearsals of several replicas and devices: real processes, real all-reduce, the same weights everywhere."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.workspace import Workspace, steps

SMALL = """
import keras
from keras import layers

def builder(image_shape, classes):
    small, last = layers.Dense(4), layers.Dense(classes, name="last")
    return keras.Sequential([keras.Input(image_shape), layers.Flatten(), small, last])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("hardware", "processes", "devices"),
    [("t4x2*3", 3, 2), ("tpu-v3-8", 1, 8)],
)
def test_a_cloud_layout_is_rehearsed_with_virtual_devices(workspace: Workspace, hardware, processes, devices):
    """A rehearsal proves the layout, with steps of every stage, and registers nothing."""
    (workspace.path / "small.py").write_text(SMALL)
    stages = "train.stages=[{epochs: 1, trainable: ['last']}, {epochs: 2}]"
    settings = ("model.builder=small:builder", "train.batch_size=48", stages)
    options = [option for setting in settings for option in ("--set", setting)]
    result = workspace.slipway("rehearse", "--hardware", hardware, "--steps", "4", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    kind = f"framework sees {devices} TPU devices" if "tpu" in hardware else f"driver shows {devices} GPUs"
    assert kind in " ".join(result.stdout.partition("not proven")[2].split())
    assert "state of adam" in result.stdout
    log = workspace.log("train")
    opened = re.findall(r"\[(workerpool\d-\d)\] .*MirroredStrategy, (\d+) x CPU", log)
    assert opened == [(name, str(devices)) for name, _ in opened]
    assert len(opened) == processes
    begun = re.findall(r"stage (\d) of 2, to step (\d)", log)
    assert sorted(begun) == [*[("1", "2")] * processes, *[("2", "4")] * processes]
    assert len(set(re.findall(r"weights checksum ([0-9a-f]+)", log))) == 1
    record = workspace.record()
    assert record["rehearsal"]
    assert steps(record)["train"]["outputs"]["steps"] == 4
    assert "register_model" not in steps(record)
    assert not (workspace.path / "models").exists()


OUTSIDE = """
import keras
from keras import layers

KEPT = layers.Dense(10)
KEPT.build((None, 64))

def builder(image_shape, classes):
    return keras.Sequential([keras.Input(image_shape), layers.Flatten(), KEPT])
"""


def test_a_model_that_cannot_train_in_the_layout_fails(workspace: Workspace):
    (workspace.path / "outside.py").write_text(OUTSIDE)
    result = workspace.slipway("rehearse", "--hardware", "t4x2", "--set", "model.builder=outside:builder")
    assert result.returncode == 1
    assert "the step train failed" in result.stderr
    assert "was created outside of the builder" in result.stderr
    assert "Traceback" not in result.stderr
