"""The catalogue of hardware for Vertex AI training, read from `catalogue.json` and validated.

It is JSON because importing a YAML parser takes longer than everything else in `slipway hardware`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from slipway.core.values import JsonObject
from slipway.trainer.engines import table

Provisioning = Literal["standard", "spot", "flex"]
Status = Literal["offered", "tpu-vm", "retired", "not-for-training", "enum-only", "here"]

QUOTA_PREFIX = "aiplatform.googleapis.com/custom_model_training_"
CORES_PER_HOST = 8  # of TPU v2 and v3
ENGINES = tuple(table.ENGINES)
CATALOGUE_FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Multi-host TPU slices without a topology: number of cores, and regions."""

    multiple_of: int
    largest: int
    regions: tuple[str, ...]
    certainty: str

    @property
    def counts(self) -> range:
        """The numbers of cores."""
        return range(self.multiple_of, self.largest + 1, self.multiple_of)


@dataclass(frozen=True, kw_only=True)
class TpuVm:
    """A TPU generation in the TPU API: AcceleratorConfig.Type, its runtime versions (the default first) and quota.

    `quota` is the metric of on-demand TPUs after tpu.googleapis.com/, None if it is not known; that of Spot ends with
    -preemptible. A chip draws `quota_per_chip` on it. Slices of one machine draw on `serving_quota` instead, if the
    generation has one, whatever they are used for.
    """

    type: str
    runtime_versions: tuple[str, ...]
    quota: str | None = None
    serving_quota: str | None = None
    quota_per_chip: int = 1


@dataclass(frozen=True, kw_only=True)
class Family:
    """A CPU machine family; properties common to its machines."""

    name: str
    provisioning: tuple[Provisioning, ...]
    default_quota: dict[str, int] = field(default_factory=dict)
    certainty: str
    source: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A GPU as XLA's compiler knows it: its multiprocessors and what each has, caches in bytes, bytes per second, GHz.

    The values are those that XLA has of the same product, or the vendor's.
    """

    multiprocessors: int
    fpus: int
    threads: int
    shared_bytes: int
    block_shared_bytes: int
    l2_bytes: int
    bandwidth: int
    ghz: float


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A GPU or a TPU generation. `type` is Vertex's name, None if a topology is used instead.

    `memory_gb` is per chip, 0 if it depends on the machine at hand; `cores_per_chip` is the number of devices that a
    program sees per chip; `python` is the minimum version of its libraries, if they need a newer Python than others;
    `compute_capability` and `chip` are a GPU's. `gke` and `product` are labels of Kubernetes nodes: a TPU's on GKE, and
    a GPU's. `tpu_types` maps what Google's tools call a TPU before its size to how many of that size are a chip.
    """

    name: str
    type: str | None = None
    tpu_types: dict[str, int] = field(default_factory=dict)
    title: str
    aliases: tuple[str, ...] = ()
    compute_capability: float | None = None
    chip: Chip | None = None
    memory_gb: int
    cores_per_chip: int = 1
    regions: tuple[str, ...] = ()
    slices: Slices | None = None
    tpu_vm: TpuVm | None = None
    provisioning: tuple[Provisioning, ...] = ()
    engines: tuple[str, ...] = ENGINES
    quota: str | None = None
    default_quota: dict[str, int] = field(default_factory=dict)
    status: Status = "offered"
    replacements: tuple[str, ...] = ()
    certainty: str
    source: tuple[str, ...]
    python: str | None = None
    note: str | None = None
    gke: str | None = None
    product: str | None = None

    @property
    def names(self) -> list[str]:
        """All names: the catalogue's, aliases, and Vertex's ("nvidia-l4")."""
        names = [self.name, *self.aliases, *([self.type.lower().replace("_", "-")] if self.type else [])]
        return list(dict.fromkeys(names))

    def why_not(self, engine: str, *, own_build: bool = False) -> str | None:
        """Return why `engine` does not run on it, as a sentence; None if it does.

        With `own_build`, the engine's library is not the build of Slipway's images.
        """
        if engine not in self.engines:
            return f"{engine} does not run on {self.title}."
        if self.is_tpu and table.ENGINES[engine].tpus == "none" and not own_build:
            return f"{engine} does not train on TPUs."
        lowest, here = table.ENGINES[engine].compute_capability, self.compute_capability
        if own_build or here is None or here >= lowest:
            return None
        return f"{engine} in Slipway's images needs compute capability {lowest} or later; {self.title} has {here}."

    @property
    def supported_engines(self) -> tuple[str, ...]:
        """The engines that run on it with Slipway's images."""
        return tuple(engine for engine in ENGINES if self.why_not(engine) is None)

    def spelled(self, size: str | int) -> str:
        """Return a choice of a count or topology of it, as text: "t4x2", "tpu-v3-8", "tpu-v5e-2x4", "gpu"."""
        if self.status == "here" and str(size) == "1":
            return self.name
        return f"{self.name}{'-' if self.is_tpu else 'x'}{size}"

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU, which always has one worker pool of one replica."""
        return self.name.startswith("tpu")

    @property
    def device_memory_gb(self) -> float:
        """Memory of one device: the chip's, divided by its cores."""
        return self.memory_gb / self.cores_per_chip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine type. `accelerators` maps names to the supported counts, `topologies` to the number of machines.

    `provisioning` is how Compute Engine offers it, if it is not in all ways.
    """

    name: str
    vcpus: int | None
    memory_gb: float | None
    accelerators: dict[str, tuple[int, ...]] = field(default_factory=dict)
    cramped: bool = False
    tpu: str | None = None
    chips: int | None = None
    topologies: dict[str, int] = field(default_factory=dict)
    provisioning: tuple[Provisioning, ...] = ()
    certainty: str | None = None

    @property
    def family(self) -> str:
        """The part before the first dash: n1, g2, a2 …"""
        return self.name.partition("-")[0]

    @property
    def series(self) -> str:
        """The name without the size: n1-highmem, ct5lp-hightpu …"""
        return self.name.rpartition("-")[0]

    @property
    def is_tpu(self) -> bool:
        """Whether it is the host of a TPU."""
        return self.tpu is not None or any(name.startswith("tpu") for name in self.accelerators)

    @property
    def size(self) -> tuple[float, float]:
        """vCPUs and memory, the sort key of machines; unknown values sort last."""
        return (self.vcpus or math.inf, self.memory_gb or math.inf)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The whole catalogue. Look up machines and accelerators with `machine` and `accelerator`."""

    about: tuple[str, ...]
    checked: date
    sources: dict[str, str]
    certainties: dict[str, str]
    cpu_machine: str
    cpu_quotas: dict[str, str]
    families: tuple[Family, ...]
    accelerators: tuple[Accelerator, ...]
    machines: tuple[Machine, ...]
    prebuilt_images: dict[str, date]

    @cached_property
    def machine_index(self) -> dict[str, Machine]:
        """The machines by name."""
        return {machine.name: machine for machine in self.machines}

    @cached_property
    def accelerator_index(self) -> dict[str, Accelerator]:
        """The accelerators by name, including aliases and Vertex's names."""
        return {name: accelerator for accelerator in self.accelerators for name in accelerator.names}

    def accelerator(self, name: str) -> Accelerator | None:
        """Return the accelerator with this name, alias or Vertex name ("NVIDIA_L4")."""
        return self.accelerator_index.get(name.lower().replace("_", "-"))

    def machine(self, name: str) -> Machine | None:
        """Return the machine type called `name`."""
        return self.machine_index.get(name.lower())

    def family(self, machine: Machine) -> Family | None:
        """Return a CPU machine's family; None for machines that always have an accelerator."""
        return next((family for family in self.families if family.name == machine.family), None)

    def machines_with(self, accelerator: Accelerator) -> list[Machine]:
        """Return the machines that support `accelerator`, smallest first."""
        machines = [m for m in self.machines if accelerator.name in m.accelerators or m.tpu == accelerator.name]
        return sorted(machines, key=lambda machine: machine.size)

    def sizes(self, accelerator: Accelerator) -> list[str]:
        """Return the counts or topologies of `accelerator` that machines support, smallest first, without slices."""
        machines = self.machines_with(accelerator)
        sizes = {str(size) for m in machines for size in (*m.accelerators.get(accelerator.name, ()), *m.topologies)}
        return sorted(sizes, key=chips_of)

    def regions(self) -> list[str]:
        """Return all regions with accelerators; the catalogue lists no others."""
        return sorted({region for accelerator in self.accelerators for region in accelerator.regions})


def chips_of(topology: str) -> int:
    """Return the number of chips in a topology such as "2x4"."""
    return math.prod(int(edge) for edge in topology.split("x"))


@lru_cache(maxsize=1)
def load() -> Catalogue:
    """Return the catalogue, read once."""
    return build(json.loads(CATALOGUE_FILE.read_text()))


def build(values: JsonObject) -> Catalogue:
    """Return the catalogue of parsed JSON. Its tests check the types of all values, and the names that rows refer to.

    Raises:
        TypeError: A row has an unknown or a missing key.
    """
    values = _frozen(values)
    nested = {"chip": Chip, "slices": Slices, "tpu_vm": TpuVm}
    rows = {
        "checked": date.fromisoformat(values["checked"]),
        "families": tuple(Family(**row) for row in values["families"]),
        "accelerators": tuple(
            Accelerator(**row | {name: kind(**row[name]) for name, kind in nested.items() if name in row})
            for row in values["accelerators"]
        ),
        "machines": tuple(Machine(**row) for row in values["machines"]),
        "prebuilt_images": {name: date.fromisoformat(end) for name, end in values["prebuilt_images"].items()},
    }
    return Catalogue(**{**values, **rows})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return {key: _frozen(inner) for key, inner in value.items()} if isinstance(value, dict) else value
