"""Resources of steps: quantities, the names of steps, and what a platform can give."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.config.kubernetes import quantity
from tests.pipelines.platforms.vertex.test_spec import VERTEX


def configuration(platform: str, steps: dict[str, Any]) -> RunConfig:
    sections: dict[str, Any] = {
        "vertex": VERTEX,
        "kubeflow": {"host": "https://k", "image": "r/i@sha256:" + "0" * 64, "volume": "v"},
    }
    values = {
        "name": "digits",
        "data": {"source": "digits"},
        "model": {"builder": "slipway.trainer.models.digits:build"},
        "train": {"epochs": 1},
        platform: {**sections[platform], "steps": steps},
    }
    return validate(yaml.safe_load(yaml.safe_dump(values)), "the test")


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("500m", 0.5), ("1.5", 1.5), ("64G", 64e9), ("64Gi", 64 * 2**30), ("512k", 512e3)]
)
def test_a_quantity_is_kubernetess(text, value):
    assert quantity(text) == value


def test_what_is_not_a_quantity():
    with pytest.raises(ValueError, match="not a quantity"):
        quantity("64GB")


@pytest.mark.extension("vertex")
def test_memory_is_rounded_up_to_the_gigabytes_that_vertex_reads():
    assert configuration("vertex", {"evaluate": {"memory": "32Gi"}}).vertex.steps["evaluate"].memory_gb == 35


@pytest.mark.parametrize(
    ("platform", "steps", "setting", "says", "fix"),
    [
        ("vertex", {"prepare_date": {"cpu": 8}}, "vertex.steps", "step on vertex 'prepare_date'", "steps.prepare_data"),
        ("vertex", {"train": {"cpu": 8}}, "vertex.steps", "those of the training hardware", "--hardware CHOICE"),
        ("vertex", {"evaluate": {"cpu": 97}}, "vertex.steps.evaluate.cpu", "a cpu of 97", "evaluate.cpu=96"),
        ("vertex", {"evaluate": {"memory": "625G"}}, "vertex.steps.evaluate.memory", "625G", "evaluate.memory=624G"),
        ("vertex", {"evaluate": {"memory": "1Ti"}}, "vertex.steps.evaluate.memory", "1,100G", "evaluate.memory=624G"),
        ("vertex", {"prepare_data": {"disk": "50G"}}, "vertex.steps.prepare_data.disk", "50G", "disk=100G"),
        ("vertex", {"prepare_data": {"disk": "70T"}}, "vertex.steps.prepare_data.disk", "70,000G", "disk=64000G"),
        ("vertex", {"setup_access": {"disk": "200G"}}, "vertex.steps.setup_access.disk", "larger disk", "disk=null"),
        ("vertex", {"evaluate": {"memory": "64 GB"}}, "vertex.steps.evaluate.memory", "64 GB", "memory=VALUE"),
        ("vertex", {"evaluate": {"cpu": "0.0"}}, "vertex.steps.evaluate.cpu", "0.0", "cpu=VALUE"),
        ("kubeflow", {"setup_access": {"cpu": 1}}, "kubeflow.steps", "no step on kubeflow 'setup_access'", ""),
        ("kubeflow", {"evaluate": {"disk": "200G"}}, "kubeflow.steps.evaluate.disk", "disk", ""),
    ],
)
@pytest.mark.extension("vertex", "kubeflow")
def test_what_a_step_cannot_have_is_refused(platform, steps, setting, says, fix):
    with pytest.raises(UserError) as error:
        configuration(platform, steps)
    assert error.value.setting == setting
    assert says in str(error.value)
    assert fix in (error.value.fix or "")
