"""The compute precision: resolve `train.precision` for the available device, the same way for every engine."""

from __future__ import annotations

from typing import Literal

from slipway.trainer.config import TrainSettings

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
# Minimum NVIDIA compute capability for matrix multiplication in bfloat16 (Ampere) and in float16 (Volta).
BFLOAT16_CAPABILITY = (8, 0)
FLOAT16_CAPABILITY = (7, 0)


def choose(train: TrainSettings, device: str, capability: tuple[int, int] | None = None) -> Precision:
    """Return the configured precision; for "auto" the fastest one that the device supports natively.

    Args:
        train: The settings.
        device: CPU, GPU or TPU.
        capability: A GPU's compute capability, None if unknown.
    """
    if train.precision != "auto":
        return train.precision
    if device == "TPU" or (device == "GPU" and (capability or (0, 0)) >= BFLOAT16_CAPABILITY):
        return "mixed_bfloat16"
    if device == "GPU" and (capability or (0, 0)) >= FLOAT16_CAPABILITY:
        return "mixed_float16"
    return "float32"
