"""The typed choice of hardware: what it is, how it is written, and what Vertex AI is told about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipway.pipelines.hardware import catalogue
from slipway.pipelines.hardware.catalogue import Accelerator, Family, Machine, Provisioning, load
from slipway.pipelines.hardware.grammar import write_time

STRATEGIES = {"standard": "STANDARD", "spot": "SPOT", "flex": "FLEX_START"}
RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What trains: how many replicas of which machine, each with which accelerators. Made by `parse`, which checks it.

    `accelerator` is the catalogue's name, None for CPUs alone; `count` is what one replica has of it: GPUs, the cores
    of TPU v2 and v3, the chips of later TPUs. Times are in seconds, the disk in gigabytes. `reservation` is empty, or
    "any", "none" or full resource names.
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
    def accelerators_per_replica(self) -> int:
        """How many devices one replica trains on; 0 on CPUs. Of a TPU slice, those of all its machines."""
        row = self.accelerator_row
        return self.count * row.cores_per_chip if row and self.topology else self.count

    @property
    def chips(self) -> int:
        """How many chips one replica has; a chip of TPU v2, v3 and 7x shows two devices to the program."""
        row = self.accelerator_row
        return self.count // row.cores_per_chip if row and not self.topology else self.count

    @property
    def machines_per_replica(self) -> int:
        """How many machines one replica is: 1, but for TPU slices."""
        if self.topology:
            return self.machine_row.topologies[self.topology]
        return self.count // catalogue.CORES_PER_HOST if self.is_tpu else 1

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU."""
        row = self.accelerator_row
        return row is not None and row.is_tpu

    @property
    def accelerator_row(self) -> Accelerator | None:
        """The accelerator's row in the catalogue."""
        return load().accelerator_index[self.accelerator] if self.accelerator else None

    @property
    def machine_row(self) -> Machine:
        """The machine's row in the catalogue."""
        return load().machine_index[self.machine]

    @property
    def _offer(self) -> Accelerator | Family:
        """The row that says what can be had: the accelerator's, or the CPU machine's family."""
        return self.accelerator_row or next(f for f in load().families if f.name == self.machine_row.family)

    @property
    def regions(self) -> tuple[str, ...] | None:
        """The regions that have it; None where every training region is said to."""
        row = self.accelerator_row
        if row is None:
            return None
        return row.slices.regions if row.slices and self.machines_per_replica > 1 else row.regions

    @property
    def provisioning_modes(self) -> tuple[Provisioning, ...]:
        """How it can be had. TPUs of several machines are not offered as Spot."""
        modes = self._offer.provisioning
        return modes if self.machines_per_replica == 1 else tuple(mode for mode in modes if mode != "spot")

    @property
    def quota_metric(self) -> str | None:
        """The quota that it counts against, in a region; None where it is not tabled."""
        if self._offer.quota is None:
            return None
        preemptible = "preemptible_" if self.provisioning != "standard" else ""
        return f"{catalogue.QUOTA_PREFIX}{preemptible}{self._offer.quota}"

    @property
    def quota_needed(self) -> int | None:
        """How much of its quota it takes: vCPUs of CPU machines, accelerators of all others."""
        each = self.machine_row.vcpus if self.accelerator is None else self.count
        return each * self.replicas if each else None

    def default_quota(self, region: str) -> int | None:
        """What a new project may have of it in `region`; None where it is not tabled."""
        quotas = self._offer.default_quota
        return quotas.get(region, quotas.get("*"))

    @property
    def certainty(self) -> str:
        """How sure the catalogue is of it, in words."""
        row = self.accelerator_row
        slices = row.slices if row and self.machines_per_replica > 1 else None
        code = slices.certainty if slices else self.machine_row.certainty or self._offer.certainty
        return load().certainties[code]

    def __str__(self) -> str:
        """The canonical text: `parse` reads it back as the same choice."""
        parts = [base_text(self.accelerator_row, self.count, self.topology)]
        if self.machine != smallest_machine(self.accelerator_row, self.count, self.topology).name:
            parts.append(f"@{self.machine}")
        if self.replicas > 1:
            parts.append(f"*{self.replicas}")
        if self.provisioning != "standard":
            parts.append(f"+{self.provisioning}")
        return "".join(parts) + self._options()

    def _options(self) -> str:
        """The options behind the provisioning, as text."""
        disk = ":".join(str(part) for part in (self.disk_type, self.disk_gb) if part)
        options = {
            "disk": disk,
            "reservation": ",".join(self.reservation),
            "timeout": write_time(self.timeout) if self.timeout is not None else "",
            "wait": write_time(self.wait) if self.wait is not None else "",
        }
        return "".join(f"+{key}={value}" for key, value in options.items() if value) + ("+restart" * self.restart)

    def worker_pools(self) -> list[dict[str, Any]]:
        """Vertex worker pools without a container: the chief in pool 0, the other replicas in pool 1.

        A TPU is one pool of one replica, whatever its size.
        """
        pool: dict[str, Any] = {"replica_count": 1, "machine_spec": self._machine_spec()}
        if self.disk_type or self.disk_gb:
            disk = {"boot_disk_type": self.disk_type, "boot_disk_size_gb": self.disk_gb}
            pool["disk_spec"] = {key: value for key, value in disk.items() if value}
        if self.replicas == 1:
            return [pool]
        return [pool, {**pool, "machine_spec": self._machine_spec(), "replica_count": self.replicas - 1}]

    def _machine_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"machine_type": self.machine}
        row = self.accelerator_row
        if self.topology:
            spec["tpu_topology"] = self.topology
        elif row is not None:
            spec |= {"accelerator_type": row.type, "accelerator_count": self.count}
        if self.reservation in (("any",), ("none",)):
            spec["reservation_affinity"] = {"reservation_affinity_type": f"{self.reservation[0].upper()}_RESERVATION"}
        elif self.reservation:
            spec["reservation_affinity"] = {
                "reservation_affinity_type": "SPECIFIC_RESERVATION",
                "key": RESERVATION_KEY,
                "values": list(self.reservation),
            }
        return spec

    def scheduling(self) -> dict[str, Any]:
        """Vertex's Scheduling, without what is left at its default; CustomTrainingJobOp takes the same as arguments."""
        told: dict[str, Any] = {}
        if self.provisioning != "standard":
            told["strategy"] = STRATEGIES[self.provisioning]
        if self.timeout is not None:
            told["timeout"] = f"{self.timeout}s"
        if self.wait is not None:
            told["max_wait_duration"] = f"{self.wait}s"
        if self.restart:
            told["restart_job_on_worker_restart"] = True
        return told


def base_text(accelerator: Accelerator | None, count: int, topology: str | None) -> str:
    """A choice without its options: "cpu", "t4x2", "tpu-v5e-2x4"."""
    if accelerator is None:
        return "cpu"
    return f"{accelerator.name}{'-' if accelerator.is_tpu else 'x'}{topology or count}"


def smallest_machine(accelerator: Accelerator | None, count: int, topology: str | None) -> Machine:
    """The machine that is chosen where none is named.

    The fewest machines come first (a TPU topology may be one large or two small), then the fewest vCPUs, then the
    least memory; machines marked as cramped are left out. Without an accelerator it is the catalogue's `cpu_machine`.

    Raises:
        LookupError: No machine takes that.
    """
    offered = load()
    if accelerator is None:
        return offered.machine_index[offered.cpu_machine]
    fitting = [
        machine for machine in offered.machines_with(accelerator) if takes(machine, accelerator, count, topology)
    ]
    if not fitting:
        raise LookupError(f"no machine takes {count} {accelerator.name} {topology or ''}")
    return min(fitting, key=lambda machine: (machine.topologies.get(topology or "", 1), machine.cramped, *machine.size))


def takes(machine: Machine, accelerator: Accelerator, count: int, topology: str | None) -> bool:
    """Whether `machine` takes that many of `accelerator`, or is what that topology is made of."""
    if topology:
        return machine.tpu == accelerator.name and topology in machine.topologies
    slices = accelerator.slices
    if slices and accelerator.name in machine.accelerators and 0 < count <= slices.largest:
        return count in machine.accelerators[accelerator.name] or count % slices.multiple_of == 0
    return count in machine.accelerators.get(accelerator.name, ())
