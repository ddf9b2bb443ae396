"""AI Platform Training's machines and tables, read from `old_service.yaml` and checked as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path

import yaml

from slipway.pipelines.hardware.typed_rows import build

OLD_SERVICE_FILE = Path(__file__).with_name("old_service.yaml")
TPU_WORKER = "cloud_tpu"
TPU_CORES = 8


@dataclass(frozen=True, kw_only=True)
class MachineName:
    """One of the service's own names for a machine: what it was, and what of that is not known for sure."""

    name: str
    machine: str
    accelerator: str | None = None
    count: int = 0
    unverified: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScaleTier:
    """A predefined cluster: what it was, and as hardware; `hardware` None where that is not known well enough."""

    name: str
    meant: str
    hardware: str | None
    unverified: str | None = None


@dataclass(frozen=True, kw_only=True)
class OldService:
    """All of it. `gpus` are the counts of each GPU (by our names) that a machine type took."""

    shutdown: date
    gpus: dict[str, dict[str, tuple[int, ...]]]
    machine_names: tuple[MachineName, ...]
    scale_tiers: tuple[ScaleTier, ...]
    gpu_regions: tuple[str, ...]
    tpu_regions: dict[str, tuple[str, ...]]

    def machine_name(self, name: str) -> MachineName | None:
        """The row of one of the service's own names."""
        return next((row for row in self.machine_names if row.name == name), None)

    def scale_tier(self, name: str) -> ScaleTier | None:
        """The row of a scale tier; None for CUSTOM, which is no predefined one."""
        return next((row for row in self.scale_tiers if row.name == name), None)


@lru_cache(maxsize=1)
def load() -> OldService:
    """The tables, read once."""
    return build(OldService, yaml.safe_load(OLD_SERVICE_FILE.read_text()), OLD_SERVICE_FILE.name)
