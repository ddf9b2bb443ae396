"""The inputs of a batch as tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from slipway.trainer.data.features import Inputs, each

# Inputs of a batch: one tensor, or a dict by name.
Tensors: TypeAlias = Any


def scaled(decoded: Tensors) -> Tensors:
    """Convert decoded inputs to the network's: uint8 pixels to float32 in [0, 1]."""
    if isinstance(decoded, dict):
        return {name: scaled(tensor) for name, tensor in decoded.items()}
    return decoded.to(torch.float32) * np.float32(1.0 / 255.0).item() if decoded.dtype == torch.uint8 else decoded


def tensors(arrays: Inputs) -> Tensors:
    """Return a batch's arrays as tensors that share their memory."""
    return each(torch.from_numpy, arrays)
