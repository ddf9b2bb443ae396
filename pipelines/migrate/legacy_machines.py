"""AI Platform Training's legacy machine types and scale tiers, and the hardware behind them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from slipway.pipelines.hardware.grammar import Request

SHUTDOWN = date(2025, 1, 31)
# The machine type of TPU workers; without acceleratorConfig, a TPU v2 with 8 cores.
TPU_WORKER = "cloud_tpu"
TPU_CORES = 8


@dataclass(frozen=True)
class LegacyMachine:
    """One replica's machine: a Compute Engine machine type (None: not named) and its accelerators.

    `accelerator` is the catalogue's name; `unverified` names the part that could not be verified.
    """

    machine: str | None
    accelerator: str | None = None
    count: int | None = None
    unverified: str | None = None

    def __str__(self) -> str:
        accelerators = f"{self.count or ''} {self.accelerator}".strip()
        if self.machine is None:
            return accelerators if self.accelerator else "a machine without a type"
        return f"{self.machine} with {accelerators}" if self.accelerator else self.machine


LEGACY_MACHINES = {
    "standard": LegacyMachine("n1-standard-4"),
    "large_model": LegacyMachine("n1-highmem-8"),
    "complex_model_s": LegacyMachine("n1-highcpu-8"),
    "complex_model_m": LegacyMachine("n1-highcpu-16"),
    "complex_model_l": LegacyMachine("n1-highcpu-32"),
    "standard_gpu": LegacyMachine("n1-standard-8", "k80", 1),
    "complex_model_m_gpu": LegacyMachine("n1-standard-16", "k80", 4),
    "complex_model_l_gpu": LegacyMachine("n1-standard-32", "k80", 8),
    "standard_p100": LegacyMachine("n1-standard-8", "p100", 1),
    "complex_model_m_p100": LegacyMachine("n1-standard-16", "p100", 4),
    "standard_v100": LegacyMachine("n1-standard-8", "v100", 1, unverified="the machine type"),
    "large_model_v100": LegacyMachine("n1-highmem-8", "v100", 1, unverified="the machine type"),
    "complex_model_m_v100": LegacyMachine("n1-standard-16", "v100", 4, unverified="the machine type"),
    "complex_model_l_v100": LegacyMachine("n1-standard-32", "v100", 8, unverified="the machine type"),
}


@dataclass(frozen=True)
class ScaleTier:
    """A predefined cluster and its equivalent hardware; `hardware` is None if no equivalent is known."""

    description: str
    hardware: Request | None
    unverified: str | None = None


# All scale tiers except CUSTOM, whose machines the job names.
SCALE_TIERS = {
    "BASIC": ScaleTier("a single worker", Request(machine="n1-standard-4"), unverified="the machine type"),
    "STANDARD_1": ScaleTier("many workers and a few parameter servers", None),
    "PREMIUM_1": ScaleTier("a large number of workers with many parameter servers", None),
    "BASIC_GPU": ScaleTier("a single worker with one K80", Request("k80", 1, machine="n1-standard-8")),
    "BASIC_TPU": ScaleTier("a master and a TPU of 8 v2 cores", Request("tpu-v2", TPU_CORES)),
}
