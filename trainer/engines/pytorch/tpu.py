"""The pytorch engine on a TPU: one small adapter for torch_tpu and for torch_xla, which it takes the place of.

Written from both packages' documentation; it has not run on a TPU.
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

# What the environment of a TPU machine, or Vertex AI's of a TPU job, holds.
VARIABLES = ("TPU_CONFIG", "TPU_NODE_NAME", "TPU_ACCELERATOR_TYPE")


@dataclass(frozen=True)
class Tpu:
    """A way to the TPU: device, process group's backend, and what ends a step (torch_xla collects until then)."""

    package: str
    device: Any
    backend: str
    end_step: Callable[[], None]


def is_here(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Whether this machine has a TPU."""
    return any(environment.get(name) for name in VARIABLES) or any(devices.glob("accel[0-9]*"))


def open_tpu() -> Tpu:
    """The TPU by torch_tpu, or by torch_xla where that is what is installed.

    Raises:
        UserError: Neither is.
    """
    if importlib.util.find_spec("torch_tpu") is not None:
        importlib.import_module("torch_tpu")
        return Tpu("torch_tpu", torch.device("tpu"), "tpu_dist", lambda: None)
    if importlib.util.find_spec("torch_xla") is not None:
        torch_xla: Any = importlib.import_module("torch_xla")
        importlib.import_module("torch_xla.distributed.xla_backend")
        return Tpu("torch_xla", torch_xla.device(), "xla", torch_xla.sync)
    raise UserError(
        "PyTorch does not find the TPU of this machine: neither torch_tpu nor torch_xla is installed.",
        setting="train.engine",
        value="pytorch",
        allowed="on a TPU: pytorch with torch_tpu (or torch_xla 2.9), or jax",
        nearest="jax",
        fix="pip install torch_tpu, or --set train.engine=jax",
    )
