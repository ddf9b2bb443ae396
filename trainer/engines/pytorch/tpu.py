"""The pytorch engine on a TPU: an adapter for torch_tpu and for its predecessor torch_xla.

Written from both packages' documentation; not tested on a TPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipway.core.errors import UserError

# Environment variables of a TPU machine or of Vertex AI's TPU jobs.
VARIABLES = ("TPU_CONFIG", "TPU_NODE_NAME", "TPU_ACCELERATOR_TYPE")


@dataclass(frozen=True)
class Tpu:
    """Access to the TPU: device, process group backend, and `end_step`, which makes torch_xla execute a lazy step."""

    package: str
    device: Any
    backend: str
    end_step: Callable[[], None]


def is_here(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Whether this machine has a TPU."""
    return any(environment.get(name) for name in VARIABLES) or any(devices.glob("accel[0-9]*"))


def open_tpu() -> Tpu:
    """Open the TPU with torch_tpu, else with torch_xla.

    Raises:
        UserError: Neither is installed.
    """
    if importlib.util.find_spec("torch_tpu") is not None:
        importlib.import_module("torch_tpu")
        return Tpu("torch_tpu", torch.device("tpu"), "tpu_dist", lambda: None)
    if importlib.util.find_spec("torch_xla") is not None:
        torch_xla: Any = importlib.import_module("torch_xla")
        importlib.import_module("torch_xla.distributed.xla_backend")
        return Tpu("torch_xla", torch_xla.device(), "xla", torch_xla.sync)
    raise UserError(
        "PyTorch cannot use this machine's TPU: neither torch_tpu nor torch_xla is installed.",
        setting="train.engine",
        value="pytorch",
        allowed="on a TPU: pytorch with torch_tpu (or torch_xla 2.9), or jax",
        nearest="jax",
        fix="pip install torch_tpu, or --set train.engine=jax",
    )
