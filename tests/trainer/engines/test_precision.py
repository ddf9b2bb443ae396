"""`auto` depends on the device; an explicit precision is used as is."""

from __future__ import annotations

import pytest

from slipway.trainer.config import TrainSettings
from slipway.trainer.engines.precision import choose


@pytest.mark.parametrize(
    ("device", "capability", "precision"),
    [
        ("CPU", None, "float32"),
        ("TPU", None, "mixed_bfloat16"),
        ("GPU", (9, 0), "mixed_bfloat16"),  # H100
        ("GPU", (8, 0), "mixed_bfloat16"),  # A100
        ("GPU", (7, 5), "mixed_float16"),  # T4
        ("GPU", (7, 0), "mixed_float16"),  # V100
        ("GPU", (6, 1), "float32"),  # P4
        ("GPU", None, "float32"),
    ],
)
def test_auto_is_what_the_device_is_fast_in(device: str, capability: tuple[int, int] | None, precision: str) -> None:
    assert choose(TrainSettings(steps=1), device, capability) == precision


def test_what_is_asked_for_is_taken() -> None:
    assert choose(TrainSettings(steps=1, precision="float32"), "GPU", (9, 0)) == "float32"
    assert choose(TrainSettings(steps=1, precision="mixed_float16"), "CPU") == "mixed_float16"
