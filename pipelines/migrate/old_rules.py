"""AI Platform Training's own rules: what it would have refused is refused here, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipway.core.errors import UserError, nearest
from slipway.pipelines.hardware.catalogue import load as load_catalogue
from slipway.pipelines.hardware.sizes import spoken
from slipway.pipelines.migrate.old_service import TPU_CORES, TPU_WORKER, load
from slipway.pipelines.migrate.reading import OldJob, OldReplica

GPUS = ("NVIDIA_TESLA_A100", "NVIDIA_TESLA_K80", "NVIDIA_TESLA_P4", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_T4",
        "NVIDIA_TESLA_V100")  # fmt: skip
TPUS = ("TPU_V2", "TPU_V3")
# What one V100 served at most, and four P100.
V100_VCPUS, V100_MEMORY_GB = 12, 76
P100_VCPUS, P100_MEMORY_GB = 64, 208


@dataclass(frozen=True, kw_only=True)
class OldMachine:
    """What one role ran on, in today's names: a Compute Engine machine type and our accelerator's name.

    `named` is the service's own name for it, if it had one; `unverified` what of it is not known for sure.
    """

    machine: str
    accelerator: str | None = None
    count: int = 0
    named: str | None = None
    unverified: str | None = None

    def __str__(self) -> str:
        return f"{self.machine} with {self.count} {self.accelerator}" if self.accelerator else self.machine


def check(job: OldJob) -> None:
    """Hold a job against the service's rules.

    Raises:
        UserError: The service would have refused it.
    """
    check_scale_tier(job)
    check_counts(job)
    check_image(job)
    check_tpu(job)
    check_categories(job)
    for role in job.replicas:
        check_accelerator(job.replica(role))
    check_region(job)


def check_scale_tier(job: OldJob) -> None:
    """The tier exists; CUSTOM says its machines, all others say none."""
    tiers = [*(row.name for row in load().scale_tiers), "CUSTOM"]
    if job.scale_tier not in tiers:
        near = nearest(job.scale_tier, tiers)
        raise _refused(f"there was no scale tier {job.scale_tier}", "scaleTier", job.scale_tier, spoken(tiers), near)
    master = job.replica("master")
    if job.scale_tier == "CUSTOM" and master.machine is None:
        raise _refused("a CUSTOM job named its masterType", "masterType", None, "a machine type")
    if job.scale_tier == "CUSTOM":
        return
    for role, replica in job.replicas.items():
        for key, value in (("Type", replica.machine), ("Config.acceleratorConfig", replica.accelerator)):
            if value is not None:
                raise _refused(
                    f"machines were named with scaleTier CUSTOM only, and this is {job.scale_tier}",
                    f"{role}{key}",
                    value,
                    "scaleTier: CUSTOM",
                    "CUSTOM",
                    "set scaleTier to CUSTOM",
                )


def check_counts(job: OldJob) -> None:
    """Replicas that are counted have a type."""
    for role, replica in job.replicas.items():
        if replica.count and replica.machine is None and role != "master":
            raise _refused(f"{replica.count} of them had to have a type", f"{role}Type", None, "a machine type")


def check_image(job: OldJob) -> None:
    """A job ran an image or a runtime version, and an image its own arguments or the job's."""
    image = job.replica("master").image
    if image and job.runtime_version:
        raise _refused(
            "a job ran its own image or a runtime version, not both",
            "runtimeVersion",
            job.runtime_version,
            "masterConfig.imageUri or runtimeVersion",
            fix="remove runtimeVersion",
        )
    for role, replica in job.replicas.items():
        if replica.arguments and job.arguments:
            raise _refused(
                "arguments stood in args or in containerArgs, not in both",
                f"{role}Config.containerArgs",
                " ".join(replica.arguments),
                "args or containerArgs",
                fix="remove one of them",
            )


def check_tpu(job: OldJob) -> None:
    """A TPU was one worker of 8 cores, with no parameter server; TPUs stood nowhere else."""
    worker = job.replica("worker")
    for role, replica in job.replicas.items():
        misplaced = replica.machine == TPU_WORKER and role != "worker"
        if misplaced or (replica.accelerator in TPUS and replica.machine != TPU_WORKER):
            raise _refused(
                "a TPU was a worker of the type cloud_tpu, and nothing else",
                f"{role}Type",
                replica.machine,
                "workerType: cloud_tpu",
                fix=f"set workerType to cloud_tpu, and {role}Type to an ordinary machine",
            )
    if worker.machine != TPU_WORKER:
        return
    if worker.count != 1:
        raise _refused("a TPU job had exactly one worker", "workerCount", worker.count, "1", "1")
    if job.replica("parameterServer").count:
        count = job.replica("parameterServer").count
        raise _refused("a TPU job had no parameter servers", "parameterServerCount", count, "0", "0")
    if worker.accelerator is not None and worker.accelerator not in TPUS:
        key = "workerConfig.acceleratorConfig.type"
        raise _refused("a cloud_tpu worker had a TPU", key, worker.accelerator, spoken(TPUS), "TPU_V2")
    if worker.accelerator is not None and worker.accelerator_count != TPU_CORES:
        key = "workerConfig.acceleratorConfig.count"
        count = worker.accelerator_count
        raise _refused(f"a TPU had exactly {TPU_CORES} cores", key, count, str(TPU_CORES), str(TPU_CORES))
    if worker.image and not worker.tpu_version:
        key = "workerConfig.tpuTfVersion"
        raise _refused("a TPU worker with its own image named its TensorFlow", key, None, "such as 2.4 or pytorch-1.7")


def check_categories(job: OldJob) -> None:
    """Compute Engine's names for machines and the service's own were not mixed."""
    machines = {
        role: replica.machine for role, replica in job.replicas.items() if replica.machine not in (None, TPU_WORKER)
    }
    own = {role: load().machine_name(machine or "") is not None for role, machine in machines.items()}
    if len(set(own.values())) < 2:
        return
    role = next(role for role, is_own in own.items() if is_own != own["master"])
    kind = "Compute Engine's" if not own["master"] else "AI Platform's"
    raise _refused(
        f"all machines of a job had names of one kind, and the master has one of {kind}",
        f"{role}Type",
        machines[role],
        f"one of {kind} names",
    )


def check_accelerator(replica: OldReplica) -> None:
    """The machine exists and took that many of that GPU."""
    if replica.machine in (None, TPU_WORKER):
        return
    old = old_machine(replica)
    where = f"{replica.role}Config.acceleratorConfig"
    if replica.accelerator is None:
        if replica.accelerator_count:
            raise _refused("accelerators had a type and a count", f"{where}.type", None, spoken(GPUS))
        return
    if replica.accelerator not in GPUS:
        near = nearest(replica.accelerator, GPUS)
        raise _refused(
            f"there was no GPU {replica.accelerator}", f"{where}.type", replica.accelerator, spoken(GPUS), near
        )
    if old.named:
        raise _refused(
            f"{old.named} had its own accelerators, or none: others were attached to Compute Engine's machines",
            f"{replica.role}Type",
            old.named,
            "a Compute Engine machine type",
            old.machine if old.machine in load().gpus else None,
        )
    name, counts = old.accelerator or "", load().gpus.get(old.machine, {}).get(old.accelerator or "", ())
    if replica.accelerator_count in counts:
        return
    closest = min(counts, key=lambda count: (abs(count - replica.accelerator_count), -count), default=None)
    raise _refused(
        _why_not(old, name, replica.accelerator_count, counts),
        f"{where}.count" if counts else f"{where}.type",
        replica.accelerator_count if counts else replica.accelerator,
        spoken(counts) if counts else _takes(old.machine),
        None if closest is None else str(closest),
    )


def _why_not(old: OldMachine, name: str, count: int, counts: tuple[int, ...]) -> str:
    """Why a machine did not take that many."""
    taken = f"{old.machine} took {spoken(counts)} {name}, not {count}" if counts else f"{old.machine} took no {name}"
    machine = load_catalogue().machine(old.machine)
    if machine is None or not machine.vcpus or not machine.memory_gb:
        return taken
    size = f"it has {machine.vcpus} vCPUs and {machine.memory_gb:g} GB"
    too_many = machine.vcpus > V100_VCPUS * count or machine.memory_gb > V100_MEMORY_GB * count
    if name == "v100" and count in (1, 2, 4, 8) and too_many:
        return f"{taken}: {size}, and a V100 served at most {V100_VCPUS} vCPUs and {V100_MEMORY_GB} GB"
    if name == "p100" and count == 4 and (machine.vcpus > P100_VCPUS or machine.memory_gb > P100_MEMORY_GB):
        return f"{taken}: {size}, and four P100 served at most {P100_VCPUS} vCPUs and {P100_MEMORY_GB} GB"
    return taken


def _takes(machine: str) -> str:
    gpus = load().gpus.get(machine, {})
    return "; ".join(f"{name}: {spoken(counts)}" for name, counts in gpus.items()) or "no accelerator on it"


def check_region(job: OldJob) -> None:
    """The region had the GPUs or the TPU."""
    if job.region is None:
        return
    worker, tier = job.replica("worker"), job.scale_tier
    if worker.machine == TPU_WORKER or tier == "BASIC_TPU":
        kind = "tpu-v3" if worker.accelerator == "TPU_V3" else "tpu-v2"
        regions, what = load().tpu_regions[kind], f"{kind[4:]} TPUs"
    elif tier == "BASIC_GPU" or any(old_machine(r).accelerator for r in job.replicas.values() if r.machine):
        regions, what = load().gpu_regions, "GPUs"
    else:
        return
    if job.region not in regions:
        near = nearest(job.region, regions)
        raise _refused(f"it had no {what} in {job.region}", "region", job.region, ", ".join(regions), near)


def old_machine(replica: OldReplica) -> OldMachine:
    """What a role with a machine type ran on.

    Raises:
        UserError: There was no such machine type.
    """
    name = replica.machine or ""
    if row := load().machine_name(name):
        return OldMachine(
            machine=row.machine, accelerator=row.accelerator, count=row.count, named=name, unverified=row.unverified
        )
    catalogue = load_catalogue()
    known = [machine.name for machine in catalogue.machines if catalogue.family(machine)] + list(load().gpus)
    if name not in known:
        names = [*known, *(row.name for row in load().machine_names)]
        near = nearest(name, names)
        allowed = "a Compute Engine machine type, or " + ", ".join(row.name for row in load().machine_names)
        raise _refused(f"there was no machine type {name}", f"{replica.role}Type", name, allowed, near)
    found = catalogue.accelerator(replica.accelerator or "")
    return OldMachine(machine=name, accelerator=found.name if found else None, count=replica.accelerator_count)


def _refused(
    reason: str, key: str, value: Any, allowed: str, near: str | None = None, fix: str | None = None
) -> UserError:
    return UserError(
        f"AI Platform Training would have refused this job: {reason}.",
        setting=f"trainingInput.{key}",
        value=value,
        allowed=allowed,
        nearest=near,
        fix=fix or (f"set {key} to {near}" if near else f"set {key}" if value is None else f"correct {key}"),
    )
