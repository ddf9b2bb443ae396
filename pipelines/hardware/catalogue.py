"""The catalogue: what Vertex AI training offers, read from `catalogue.json` and checked as it is read.

It is JSON because importing a YAML reader takes longer than all else that `slipway hardware` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from slipway.pipelines.hardware.typed_rows import build

Provisioning = Literal["standard", "spot", "flex"]
Status = Literal["offered", "retired", "not-for-training", "enum-only"]

QUOTA_PREFIX = "aiplatform.googleapis.com/custom_model_training_"
CORES_PER_HOST = 8  # of TPU v2 and v3
ENGINES = ("tensorflow", "jax", "pytorch")
CATALOGUE_FILE = Path(__file__).with_name("catalogue.json")
IMAGES_FILE = Path(__file__).with_name("images.json")


@dataclass(frozen=True, kw_only=True)
class Slices:
    """TPUs of several machines that have no topology: how many cores, and where."""

    multiple_of: int
    largest: int
    regions: tuple[str, ...]
    certainty: str


@dataclass(frozen=True, kw_only=True)
class Family:
    """A CPU machine family: what its machines have in common."""

    name: str
    provisioning: tuple[Provisioning, ...]
    quota: str | None
    default_quota: dict[str, int] = field(default_factory=dict)
    certainty: str
    source: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A GPU or a TPU generation. `type` is Vertex's name, None where a topology says it all.

    `memory_gb` is a chip's; `cores_per_chip` is how many devices a chip shows to the program; `python` is the earliest
    version that its libraries are for, where that is later than others'.
    """

    name: str
    type: str | None = None
    title: str
    aliases: tuple[str, ...] = ()
    memory_gb: int
    cores_per_chip: int = 1
    regions: tuple[str, ...] = ()
    slices: Slices | None = None
    provisioning: tuple[Provisioning, ...] = ()
    engines: tuple[str, ...] = ENGINES
    quota: str | None = None
    default_quota: dict[str, int] = field(default_factory=dict)
    status: Status = "offered"
    successors: tuple[str, ...] = ()
    certainty: str
    source: tuple[str, ...]
    python: str | None = None
    note: str | None = None

    @property
    def names(self) -> list[str]:
        """Every name that it goes by: here, by an alias, by Vertex ("nvidia-l4")."""
        names = [self.name, *self.aliases, *([self.type.lower().replace("_", "-")] if self.type else [])]
        return list(dict.fromkeys(names))

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU: one worker pool of one replica, whatever its size."""
        return self.name.startswith("tpu")

    @property
    def device_memory_gb(self) -> float:
        """The memory that one device of a program has: a chip's, or a core's share of it."""
        return self.memory_gb / self.cores_per_chip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine type. `accelerators` says which counts of which it takes, `topologies` on how many machines each is."""

    name: str
    vcpus: int | None
    memory_gb: float | None
    accelerators: dict[str, tuple[int, ...]] = field(default_factory=dict)
    cramped: bool = False
    tpu: str | None = None
    chips: int | None = None
    topologies: dict[str, int] = field(default_factory=dict)
    certainty: str | None = None

    @property
    def family(self) -> str:
        """What comes before the first dash: n1, g2, a2 …"""
        return self.name.partition("-")[0]

    @property
    def size(self) -> tuple[float, float]:
        """vCPUs and memory, by which machines are ordered; unknown counts as largest."""
        return (self.vcpus or math.inf, self.memory_gb or math.inf)

    def __post_init__(self) -> None:
        for topology, machines in self.topologies.items():
            if chips_of(topology) != (self.chips or 0) * machines:
                raise ValueError(f"{self.name}: {topology} is not {machines} machines of {self.chips} chips")


class Offer(NamedTuple):
    """One machine with one accelerator (None: by itself), and in which counts or topologies it comes."""

    machine: Machine
    accelerator: Accelerator | None
    counts: tuple[int, ...]
    topologies: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All of it. Look machines and accelerators up by `machine` and `accelerator`."""

    about: tuple[str, ...]
    checked: date
    sources: dict[str, str]
    certainties: dict[str, str]
    cpu_machine: str
    families: tuple[Family, ...]
    accelerators: tuple[Accelerator, ...]
    machines: tuple[Machine, ...]

    @cached_property
    def machine_index(self) -> dict[str, Machine]:
        """The machines by name."""
        return {machine.name: machine for machine in self.machines}

    @cached_property
    def accelerator_index(self) -> dict[str, Accelerator]:
        """The accelerators by every name that they go by."""
        return {name: accelerator for accelerator in self.accelerators for name in accelerator.names}

    def __post_init__(self) -> None:
        """Every name is used once, and every name that a row mentions exists."""
        names = [name for accelerator in self.accelerators for name in accelerator.names]
        names += [machine.name for machine in self.machines]
        twice = {name for name in names if names.count(name) > 1}
        if twice or self.cpu_machine not in self.machine_index:
            raise ValueError(f"two rows are called {sorted(twice)}, or no machine {self.cpu_machine}")
        accelerators = {accelerator.name for accelerator in self.accelerators}
        families = {family.name for family in self.families}
        for machine in self.machines:
            unknown = {*machine.accelerators, *([machine.tpu] if machine.tpu else [])} - accelerators
            if unknown or (machine.family not in families and not machine.accelerators and not machine.tpu):
                raise ValueError(f"{machine.name} is of no known family or accelerator: {sorted(unknown)}")
        rows: list[Family | Accelerator] = [*self.families, *self.accelerators]
        for row in rows:
            if row.certainty not in self.certainties or not set(row.source) <= set(self.sources):
                raise ValueError(f"{row.name} names an unknown certainty or source")
            if isinstance(row, Accelerator) and not set(row.successors) <= accelerators:
                raise ValueError(f"{row.name} has an unknown successor")

    def accelerator(self, name: str) -> Accelerator | None:
        """The accelerator called `name` here, by an alias or by Vertex ("NVIDIA_L4")."""
        return self.accelerator_index.get(name.lower().replace("_", "-"))

    def machine(self, name: str) -> Machine | None:
        """The machine type called `name`."""
        return self.machine_index.get(name.lower())

    def family(self, machine: Machine) -> Family | None:
        """A CPU machine's family; None for machines that are always with an accelerator."""
        return next((family for family in self.families if family.name == machine.family), None)

    def machines_with(self, accelerator: Accelerator) -> list[Machine]:
        """The machines that take `accelerator`, the smallest first."""
        found = [m for m in self.machines if accelerator.name in m.accelerators or m.tpu == accelerator.name]
        return sorted(found, key=lambda machine: machine.size)

    def counts(self, accelerator: Accelerator) -> list[int]:
        """In which counts some machine takes `accelerator`, in order; slices are not among them."""
        return sorted({count for m in self.machines_with(accelerator) for count in m.accelerators[accelerator.name]})

    def topologies(self, accelerator: Accelerator) -> list[str]:
        """In which topologies `accelerator` comes, the smallest first."""
        names = {topology for m in self.machines_with(accelerator) for topology in m.topologies}
        return sorted(names, key=lambda topology: (chips_of(topology), topology))

    def regions(self) -> list[str]:
        """Every region that a row names; those without accelerators are not tabled."""
        return sorted({region for accelerator in self.accelerators for region in accelerator.regions})

    def offers(self) -> Iterator[Offer]:
        """Every machine with every accelerator that it takes, and by itself where it stands alone."""
        for machine in self.machines:
            if self.family(machine):
                yield Offer(machine, None, (), {})
            for name, counts in machine.accelerators.items():
                yield Offer(machine, self.accelerator_index[name], counts, {})
            if machine.tpu:
                yield Offer(machine, self.accelerator_index[machine.tpu], (), machine.topologies)


def chips_of(topology: str) -> int:
    """How many chips a topology such as "2x4" has."""
    return math.prod(int(edge) for edge in topology.split("x"))


@lru_cache(maxsize=1)
def load() -> Catalogue:
    """The catalogue, read once."""
    return build(Catalogue, json.loads(CATALOGUE_FILE.read_text()), CATALOGUE_FILE.name)


@lru_cache(maxsize=1)
def image_ends() -> dict[str, date]:
    """Google's prebuilt training images, by name without tag: until when each is available."""
    images = json.loads(IMAGES_FILE.read_text())["images"]
    return {name: date.fromisoformat(end) for name, end in images.items()}
