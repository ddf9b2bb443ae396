"""Throughput of an epoch: steps and examples per second, time waiting for input, fraction of the devices' peak.

The peak is used for model FLOPs utilization (MFU): dense FLOP/s of one device by compute precision, from the vendor's
data sheet. float32 means TF32 on NVIDIA GPUs that support it, since they use it for matrix products. A TPU device is a
chip; for v2, v3 and 7x it is one of the chip's two cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.trainer.engines.base import Work

TERA = 1e12
# Prefix pattern of the device name; TFLOP/s in float32, float16 and bfloat16; None: no hardware support.
_PEAKS: tuple[tuple[str, float, float | None, float | None], ...] = (
    (r"Tesla P4\b", 5.5, None, None),
    (r"Tesla P100-PCIE", 9.3, 18.7, None),
    (r"Tesla P100", 10.6, 21.2, None),
    (r"Tesla V100-PCIE", 14.0, 112.0, None),
    (r"Tesla V100", 15.7, 125.0, None),
    (r"Tesla T4\b", 8.1, 65.0, None),
    (r"NVIDIA L4\b", 60.0, 121.0, 121.0),
    (r"NVIDIA A100", 156.0, 312.0, 312.0),
    (r"NVIDIA H100 PCIe", 378.0, 756.0, 756.0),
    (r"NVIDIA H100 NVL", 417.5, 835.5, 835.5),
    (r"NVIDIA (H100|H200)", 494.5, 989.5, 989.5),
    (r"NVIDIA B200", 1125.0, 2250.0, 2250.0),
    (r"NVIDIA GB200", 1250.0, 2500.0, 2500.0),
    (r"TPU v2", 22.5, None, 22.5),
    (r"TPU v3", 61.5, None, 61.5),
    (r"TPU v4\b", 275.0, None, 275.0),
    (r"TPU v5( lite|e)", 197.0, None, 197.0),
    (r"TPU v5p?", 459.0, None, 459.0),
    (r"TPU v6( lite|e)", 918.0, None, 918.0),
    (r"TPU ?v?7", 1153.5, None, 1153.5),
)


@dataclass
class Speed:
    """Steps and seconds spent in engine calls since the epoch began, without warm-up, validation and saving.

    `waited` is the part of `seconds` spent waiting for input; None if the engine does not measure it.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float | None = 0.0

    def add(self, steps: int, seconds: float, waited: float | None) -> None:
        """Add one engine call."""
        self.steps += steps
        self.seconds += seconds
        self.waited = None if waited is None or self.waited is None else self.waited + waited

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second; None before the first measured call."""
        return self.steps / self.seconds if self.seconds else None

    def metrics(self, batch_size: int, work: Work) -> dict[str, float | None]:
        """Return the metrics under their names in the history; fractions are 0 to 1, unknown values None."""
        rate = self.steps_per_second
        if rate is None:
            return {}
        utilization = mfu(work, rate)
        return {
            "steps_per_second": round(rate, 3),
            "examples_per_second": round(rate * batch_size, 1),
            "examples_per_second_per_device": round(rate * batch_size / work.devices, 1),
            "waiting_for_input": None if self.waited is None else round(min(1.0, self.waited / self.seconds), 4),
            "mfu": None if utilization is None else round(utilization, 4),
        }

    def describe(self, batch_size: int, work: Work) -> str:
        """Return the metrics as text; "" before the first measured call."""
        metrics = self.metrics(batch_size, work)
        if not metrics:
            return ""
        text = f"{metrics['steps_per_second']:.1f} steps/s, {metrics['examples_per_second_per_device']:,.0f} examples/s"
        text += " per device" if work.devices > 1 else ""
        if metrics["waiting_for_input"] is not None:
            text += f", waiting for input {metrics['waiting_for_input']:.0%} of the time"
        if metrics["mfu"] is not None:
            text += f", {metrics['mfu']:.1%} of the peak of {work.device} in {work.precision}"
        return text


def peak_flops(device: str, precision: str) -> float | None:
    """Return a device's peak FLOP/s in float32, mixed_float16 or mixed_bfloat16; None if unknown."""
    name = re.sub(r"^NVIDIA (?=Tesla)", "", device)
    for pattern, float32, float16, bfloat16 in _PEAKS:
        if re.match(pattern, name):
            rate = {"float32": float32, "mixed_float16": float16, "mixed_bfloat16": bfloat16}[precision]
            return None if rate is None else rate * TERA
    return None


def mfu(work: Work, steps_per_second: float) -> float | None:
    """Return the model FLOPs utilization over all devices, 0 to 1; None if peak or work are unknown."""
    peak = peak_flops(work.device, work.precision)
    if peak is None or work.step_flops is None:  # in this order: counting takes longer
        return None
    return work.step_flops * steps_per_second / (peak * work.devices)
