"""`Hardware`: a typed choice, its canonical text, its worker pools and scheduling on Vertex AI; `choices` lists all."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

from slipway.core.values import JsonObject
from slipway.pipelines.hardware import catalogue
from slipway.pipelines.hardware.catalogue import Accelerator, Family, Machine, Provisioning, chips_of, load
from slipway.pipelines.hardware.grammar import write_time
from slipway.pipelines.hardware.quotas import machine_quotas
from slipway.trainer.engines.table import ENGINES

AVAILABLE = ("offered", "tpu-vm", "here")
STRATEGIES = {"standard": "STANDARD", "spot": "SPOT", "flex": "FLEX_START"}
# Vertex AI's ReservationAffinity.Type for the words that are not names of reservations.
RESERVATION_TYPES = {"any": "ANY_RESERVATION", "none": "NO_RESERVATION"}
RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Training hardware: replicas, machine type and accelerators per replica. Created and validated by `parse`.

    `accelerator` is the catalogue's name, None for CPU-only machines; `count` is per replica: GPUs, cores of TPU v2 and
    v3, or chips of later TPUs. Times are in seconds, the disk size in gigabytes. `reservation` is empty, "any", "none"
    or full resource names.
    """

    accelerator: str | None = None
    count: int = 0
    topology: str | None = None
    machine: str
    replicas: int = 1
    provisioning: Provisioning = "standard"
    disk_type: str | None = None
    disk_gb: int | None = None
    reservation: tuple[str, ...] = ()
    timeout: int | None = None
    wait: int | None = None
    restart: bool = False

    @property
    def base(self) -> str:
        """The text without machine and options: "cpu", "gpu", "t4x2", "tpu-v5e-2x4"."""
        row = self.accelerator_row
        return row.spelled(self.topology or self.count) if row else "cpu"

    @property
    def accelerators_per_replica(self) -> int:
        """Number of devices per replica, 0 on CPUs; for a TPU slice, the devices of all its machines."""
        row = self.accelerator_row
        return self.count * row.cores_per_chip if row and self.topology else self.count

    @property
    def chips(self) -> int:
        """Number of chips per replica; programs see two devices per chip on TPU v2, v3 and 7x."""
        row = self.accelerator_row
        return self.count // row.cores_per_chip if row and not self.topology else self.count

    @property
    def machines_per_replica(self) -> int:
        """Number of machines per replica: 1, except for TPU slices."""
        if self.topology:
            return self.machine_row.topologies[self.topology]
        return self.count // catalogue.CORES_PER_HOST if self.is_tpu else 1

    @property
    def hosts(self) -> int:
        """Number of machines in total, each of which trains as a replica does."""
        return self.replicas * self.machines_per_replica

    @property
    def accelerators_per_host(self) -> int:
        """Number of devices per machine, 0 on CPUs."""
        return self.accelerators_per_replica // self.machines_per_replica

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU."""
        row = self.accelerator_row
        return row is not None and row.is_tpu

    @property
    def accelerator_row(self) -> Accelerator | None:
        """The accelerator's row in the catalogue."""
        return load().accelerator_index[self.accelerator] if self.accelerator else None

    def why_not(self, engine: str, *, own_program: bool = False, own_build: bool = False) -> str | None:
        """Return why `engine` does not train on it, as a sentence; None if it does.

        With `own_program`, a program of the user's trains, not Slipway's trainer. With `own_build`, the engine's
        library is not the build of Slipway's images.
        """
        row = self.accelerator_row
        if row is None or not row.is_tpu or own_program:
            return row.why_not(engine, own_build=own_build) if row else None
        reason, machines = row.why_not(engine), self.machines_per_replica
        if reason is None and ENGINES[engine].tpus != "all" and machines > 1:
            return f"{engine} trains on TPU slices of one machine; {self} has {machines}."
        return reason

    @property
    def supported_engines(self) -> tuple[str, ...]:
        """The engines that train on it with Slipway's images and trainer."""
        return tuple(engine for engine in ENGINES if self.why_not(engine) is None)

    @property
    def machine_row(self) -> Machine:
        """The machine's row in the catalogue."""
        return load().machine_index[self.machine]

    @property
    def _offer(self) -> Accelerator | Family:
        """The catalogue row with availability and quota: the accelerator's, or the CPU machine's family."""
        return self.accelerator_row or next(f for f in load().families if f.name == self.machine_row.family)

    @property
    def regions(self) -> tuple[str, ...] | None:
        """The regions that have it, or None for every training region."""
        row = self.accelerator_row
        if row is None:
            return None
        return row.slices.regions if row.slices and self.machines_per_replica > 1 else row.regions

    @property
    def provisioning_modes(self) -> tuple[Provisioning, ...]:
        """The available provisioning modes."""
        return self._offer.provisioning

    @property
    def quotas(self) -> Counter[str]:
        """What it draws on by regional quota metric: accelerators, vCPUs and boot disks, if the metric is known."""
        preemptible, row = self.provisioning != "standard", self.accelerator_row
        drawn: Counter[str] = Counter()
        if row is not None and row.status == "here":
            return drawn
        if row is not None and row.quota is not None:
            drawn[f"{catalogue.QUOTA_PREFIX}{'preemptible_' * preemptible}{row.quota}"] = self.count * self.replicas
        return drawn + machine_quotas(
            self.machine_row, self.replicas, preemptible=preemptible, disk_type=self.disk_type, disk_gb=self.disk_gb
        )

    @property
    def doubt(self) -> str | None:
        """Why it may wait for machines in vain, as a sentence; None if nothing is known."""
        offered = self.machine_row.provisioning
        if not offered or self.provisioning in offered:
            return None
        modes = " or ".join(STRATEGIES[mode] for mode in offered)
        return f"Compute Engine offers {self.machine} only as {modes}: this may wait for machines in vain."

    def default_quota(self, region: str) -> int | None:
        """Return a new project's quota of accelerators in `region`, or None if the catalogue does not list it."""
        quotas = self._offer.default_quota
        return quotas.get(region, quotas.get("*"))

    @property
    def certainty(self) -> str:
        """How certain the catalogue's data is, in words."""
        row = self.accelerator_row
        slices = row.slices if row and self.machines_per_replica > 1 else None
        code = slices.certainty if slices else self.machine_row.certainty or self._offer.certainty
        return load().certainties[code]

    def __str__(self) -> str:
        """Return the canonical text, which `parse` reads back as the same choice."""
        machine = "" if self.machine == default_machines()[self.base] else f"@{self.machine}"
        replicas = f"*{self.replicas}" if self.replicas > 1 else ""
        mode = "" if self.provisioning == "standard" else f"+{self.provisioning}"
        options = {
            "disk": ":".join(str(part) for part in (self.disk_type, self.disk_gb) if part),
            "reservation": ",".join(self.reservation),
            "timeout": write_time(self.timeout) if self.timeout is not None else "",
            "wait": write_time(self.wait) if self.wait is not None else "",
        }
        suffix = "".join(f"+{key}={value}" for key, value in options.items() if value)
        return self.base + machine + replicas + mode + suffix + "+restart" * self.restart

    def worker_pools(self) -> list[JsonObject]:
        """Return Vertex worker pools without a container: the chief in pool 0, the other replicas in pool 1.

        A TPU of any size is one pool of one replica.
        """
        row, spec = self.accelerator_row, JsonObject(machine_type=self.machine)
        if self.topology:
            spec["tpu_topology"] = self.topology
        elif row is not None:
            spec |= {"accelerator_type": row.type} if row.type else {}
            spec["accelerator_count"] = self.count
        if self.reservation and self.reservation[0] in RESERVATION_TYPES:
            spec["reservation_affinity"] = {"reservation_affinity_type": RESERVATION_TYPES[self.reservation[0]]}
        elif self.reservation:
            spec["reservation_affinity"] = {
                "reservation_affinity_type": "SPECIFIC_RESERVATION",
                "key": RESERVATION_KEY,
                "values": list(self.reservation),
            }
        pool: JsonObject = {"replica_count": 1, "machine_spec": spec}
        disk = {"boot_disk_type": self.disk_type, "boot_disk_size_gb": self.disk_gb}
        if any(disk.values()):
            pool["disk_spec"] = {key: value for key, value in disk.items() if value}
        return [pool] if self.replicas == 1 else [pool, deepcopy(pool) | {"replica_count": self.replicas - 1}]

    def scheduling(self) -> JsonObject:
        """Return Vertex's Scheduling without defaults; CustomTrainingJobOp has arguments with the same names."""
        fields: JsonObject = {}
        if self.provisioning != "standard":
            fields["strategy"] = STRATEGIES[self.provisioning]
        if self.timeout is not None:
            fields["timeout"] = f"{self.timeout}s"
        if self.wait is not None:
            fields["max_wait_duration"] = f"{self.wait}s"
        if self.restart:
            fields["restart_job_on_worker_restart"] = True
        return fields


@cache
def choices() -> tuple[Hardware, ...]:
    """Return every valid choice without options: CPUs first, and of equal sizes the default machine first.

    That is the one with the fewest machines (a TPU topology may be one large or two small ones), then one that is not
    marked as cramped, then the one with the fewest vCPUs, then with the least memory.
    """
    offered = load()
    cpus = [machine for machine in offered.machines if offered.family(machine)]
    cpus.sort(key=lambda machine: (machine.name != offered.cpu_machine, machine.size))
    valid = [Hardware(machine=machine.name) for machine in cpus]
    for row in offered.accelerators:
        if row.status not in AVAILABLE:
            continue
        sizes: list[tuple[int, str | None, Machine]] = []
        for machine in offered.machines_with(row):
            slices = row.slices.counts if row.slices else ()
            sizes += [(count, None, machine) for count in (*machine.accelerators.get(row.name, ()), *slices)]
            sizes += [(chips_of(topology), topology, machine) for topology in machine.topologies]
        sizes.sort(key=lambda size: (size[0], size[2].topologies.get(size[1] or "", 1), size[2].cramped, size[2].size))
        valid += [
            Hardware(accelerator=row.name, count=count, topology=topology, machine=machine.name)
            for count, topology, machine in sizes
        ]
    return tuple(valid)


@cache
def default_machines() -> dict[str, str]:
    """Return the default machine of each choice without options."""
    return {choice.base: choice.machine for choice in reversed(choices())}
