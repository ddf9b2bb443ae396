"""AI Platform Training's machine types, scale tiers and regions, loaded from `old_service.yaml`."""

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
    """A legacy machine type and its Compute Engine equivalent; `unverified` names what could not be verified."""

    name: str
    machine: str
    accelerator: str | None = None
    count: int = 0
    unverified: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScaleTier:
    """A predefined cluster and its equivalent hardware; `hardware` is None if no equivalent is known."""

    name: str
    meant: str
    hardware: str | None
    unverified: str | None = None


@dataclass(frozen=True, kw_only=True)
class OldService:
    """All tables. `gpus` maps machine type and GPU (Slipway's name) to the supported counts."""

    shutdown: date
    gpus: dict[str, dict[str, tuple[int, ...]]]
    machine_names: tuple[MachineName, ...]
    scale_tiers: tuple[ScaleTier, ...]
    gpu_regions: tuple[str, ...]
    tpu_regions: dict[str, tuple[str, ...]]

    def machine_name(self, name: str) -> MachineName | None:
        """Return the row of a legacy machine type."""
        return next((row for row in self.machine_names if row.name == name), None)

    def scale_tier(self, name: str) -> ScaleTier | None:
        """Return the row of a scale tier; None for CUSTOM, which is not predefined."""
        return next((row for row in self.scale_tiers if row.name == name), None)


@lru_cache(maxsize=1)
def load() -> OldService:
    """Load the tables, once."""
    return build(OldService, yaml.safe_load(OLD_SERVICE_FILE.read_text()), OLD_SERVICE_FILE.name)
