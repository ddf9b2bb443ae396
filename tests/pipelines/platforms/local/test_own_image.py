"""Programs with an image of their own, on this machine."""

from __future__ import annotations

import pytest

from slipway.components.plan_training.plan import plan_training
from slipway.pipelines.config.config import validate
from slipway.pipelines.hardware import parse
from slipway.pipelines.platforms.local.steps import LocalSteps

IMAGE = f"host/image@sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ({"module": "own"}, ["-m", "slipway.trainer.launch", "own"]),
        ({"command": ["julia", "fit.jl"]}, ["-m", "slipway.trainer.distributed.verification", "julia", "fit.jl"]),
    ],
)
def test_as_a_process_it_is_verified_as_a_program_without_an_image_is(
    program: dict[str, object], command: list[str]
) -> None:
    config = validate({"name": "own", "train": {"image": IMAGE, **program}}, "the test")
    train = LocalSteps(own_image=True).training(config)
    (pool,) = plan_training(parse("l4x4").worker_pools(), 4, None, "", None, train, "").worker_pool_specs
    assert pool["container_spec"]["command"] == ["python", *command]
