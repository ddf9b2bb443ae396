"""Peak FLOP/s by the device name that the driver reports."""

from __future__ import annotations

import pytest

from slipway.trainer.engines.base import Work
from slipway.trainer.metrics.speed import mfu, peak_flops


@pytest.mark.parametrize(
    ("device", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "mixed_bfloat16", 989.5),
        ("NVIDIA H100 PCIe", "mixed_bfloat16", 756.0),
        ("NVIDIA H200", "float32", 494.5),
        ("NVIDIA A100-SXM4-40GB", "mixed_float16", 312.0),
        ("NVIDIA L4", "mixed_bfloat16", 121.0),
        ("Tesla T4", "mixed_float16", 65.0),
        ("Tesla V100-SXM2-16GB", "mixed_float16", 125.0),
        ("TPU v5 lite", "mixed_bfloat16", 197.0),
        ("TPU v5", "mixed_bfloat16", 459.0),
        ("TPU v6 lite", "mixed_bfloat16", 918.0),
        ("TPU7x", "mixed_bfloat16", 1153.5),
    ],
)
def test_known_devices(device: str, precision: str, tera: float) -> None:
    assert peak_flops(device, precision) == tera * 1e12


def test_what_is_not_known_is_not_guessed() -> None:
    assert peak_flops("CPU", "float32") is None
    assert peak_flops("NVIDIA L40S", "float32") is None
    assert peak_flops("Tesla T4", "mixed_bfloat16") is None  # not in hardware
    assert mfu(Work("NVIDIA H200", 1, "float32", lambda: None), 10.0) is None


def test_steps_are_not_counted_for_a_device_without_a_known_peak() -> None:
    def count() -> float:
        raise AssertionError("counting traces the network once more")

    assert mfu(Work("CPU", 1, "float32", count), 10.0) is None


def test_mfu_is_relative_to_the_peak_of_all_devices() -> None:
    assert mfu(Work("TPU v4", 8, "mixed_bfloat16", lambda: 275e12), 4.0) == pytest.approx(0.5)
