"""AI Platform Training's validation rules; jobs that it would have rejected are rejected with the reason."""

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
# Limits for one V100, and for four P100s.
V100_VCPUS, V100_MEMORY_GB = 12, 76
P100_VCPUS, P100_MEMORY_GB = 64, 208


@dataclass(frozen=True, kw_only=True)
class OldMachine:
    """The machine of one role: a Compute Engine machine type and Slipway's accelerator name.

    `named` is the legacy machine type, if it was one; `unverified` names what could not be verified.
    """

    machine: str
    accelerator: str | None = None
    count: int = 0
    named: str | None = None
    unverified: str | None = None

    def __str__(self) -> str:
        return f"{self.machine} with {self.count} {self.accelerator}" if self.accelerator else self.machine


def check(job: OldJob) -> None:
    """Validate a job against the old service's rules.

    Raises:
        UserError: The service would have rejected it.
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
    """The tier exists; only CUSTOM sets machine types, and must."""
    tiers = [*(row.name for row in load().scale_tiers), "CUSTOM"]
    if job.scale_tier not in tiers:
        near = nearest(job.scale_tier, tiers)
        raise _refused(f"scale tier {job.scale_tier} did not exist", "scaleTier", job.scale_tier, spoken(tiers), near)
    master = job.replica("master")
    if job.scale_tier == "CUSTOM" and master.machine is None:
        raise _refused("scaleTier CUSTOM required masterType", "masterType", None, "a machine type")
    if job.scale_tier == "CUSTOM":
        return
    for role, replica in job.replicas.items():
        for key, value in (("Type", replica.machine), ("Config.acceleratorConfig", replica.accelerator)):
            if value is not None:
                raise _refused(
                    f"machine types required scaleTier CUSTOM; this job has {job.scale_tier}",
                    f"{role}{key}",
                    value,
                    "scaleTier: CUSTOM",
                    "CUSTOM",
                    "set scaleTier to CUSTOM",
                )


def check_counts(job: OldJob) -> None:
    """Every role with replicas has a machine type."""
    for role, replica in job.replicas.items():
        if replica.count and replica.machine is None and role != "master":
            raise _refused(f"{replica.count} replicas required a machine type", f"{role}Type", None, "a machine type")


def check_image(job: OldJob) -> None:
    """A job sets an image or a runtime version, and args or containerArgs."""
    image = job.replica("master").image
    if image and job.runtime_version:
        raise _refused(
            "a custom container and runtimeVersion could not be combined",
            "runtimeVersion",
            job.runtime_version,
            "masterConfig.imageUri or runtimeVersion",
            fix="remove runtimeVersion",
        )
    for role, replica in job.replicas.items():
        if replica.arguments and job.arguments:
            raise _refused(
                "args and containerArgs could not be combined",
                f"{role}Config.containerArgs",
                " ".join(replica.arguments),
                "args or containerArgs",
                fix="remove one of them",
            )


def check_tpu(job: OldJob) -> None:
    """A TPU job has one worker with 8 cores and no parameter servers; other roles have no TPU."""
    worker = job.replica("worker")
    for role, replica in job.replicas.items():
        misplaced = replica.machine == TPU_WORKER and role != "worker"
        if misplaced or (replica.accelerator in TPUS and replica.machine != TPU_WORKER):
            raise _refused(
                "TPUs required a worker of type cloud_tpu",
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
        raise _refused("a cloud_tpu worker required a TPU accelerator", key, worker.accelerator, spoken(TPUS), "TPU_V2")
    if worker.accelerator is not None and worker.accelerator_count != TPU_CORES:
        key = "workerConfig.acceleratorConfig.count"
        count = worker.accelerator_count
        raise _refused(f"a TPU had exactly {TPU_CORES} cores", key, count, str(TPU_CORES), str(TPU_CORES))
    if worker.image and not worker.tpu_version:
        key = "workerConfig.tpuTfVersion"
        raise _refused("a custom TPU worker image required tpuTfVersion", key, None, "such as 2.4 or pytorch-1.7")


def check_categories(job: OldJob) -> None:
    """Compute Engine machine types and legacy machine types are not mixed."""
    machines = {
        role: replica.machine for role, replica in job.replicas.items() if replica.machine not in (None, TPU_WORKER)
    }
    own = {role: load().machine_name(machine or "") is not None for role, machine in machines.items()}
    if len(set(own.values())) < 2:
        return
    role = next(role for role, is_own in own.items() if is_own != own["master"])
    kind = "Compute Engine" if not own["master"] else "legacy"
    raise _refused(
        f"Compute Engine and legacy machine types could not be mixed, and masterType is a {kind} machine type",
        f"{role}Type",
        machines[role],
        f"a {kind} machine type",
    )


def check_accelerator(replica: OldReplica) -> None:
    """The machine type exists and supported that GPU and count."""
    if replica.machine in (None, TPU_WORKER):
        return
    old = old_machine(replica)
    where = f"{replica.role}Config.acceleratorConfig"
    if replica.accelerator is None:
        if replica.accelerator_count:
            raise _refused("acceleratorConfig required a type and a count", f"{where}.type", None, spoken(GPUS))
        return
    if replica.accelerator not in GPUS:
        near = nearest(replica.accelerator, GPUS)
        raise _refused(
            f"GPU {replica.accelerator} did not exist", f"{where}.type", replica.accelerator, spoken(GPUS), near
        )
    if old.named:
        raise _refused(
            f"legacy machine type {old.named} did not support acceleratorConfig",
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
    """Return why a machine type did not support that GPU count."""
    taken = f"{old.machine} supported {f'{spoken(counts)} {name}, not {count}' if counts else f'no {name}'}"
    machine = load_catalogue().machine(old.machine)
    if machine is None or not machine.vcpus or not machine.memory_gb:
        return taken
    size = f"it has {machine.vcpus} vCPUs and {machine.memory_gb:g} GB"
    too_many = machine.vcpus > V100_VCPUS * count or machine.memory_gb > V100_MEMORY_GB * count
    if name == "v100" and count in (1, 2, 4, 8) and too_many:
        return f"{taken}: {size}, and one V100 supported at most {V100_VCPUS} vCPUs and {V100_MEMORY_GB} GB"
    if name == "p100" and count == 4 and (machine.vcpus > P100_VCPUS or machine.memory_gb > P100_MEMORY_GB):
        return f"{taken}: {size}, and four P100s supported at most {P100_VCPUS} vCPUs and {P100_MEMORY_GB} GB"
    return taken


def _takes(machine: str) -> str:
    gpus = load().gpus.get(machine, {})
    return "; ".join(f"{name}: {spoken(counts)}" for name, counts in gpus.items()) or "no accelerator"


def check_region(job: OldJob) -> None:
    """The region offered the GPUs or TPUs."""
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
        raise _refused(f"{what} were not available in {job.region}", "region", job.region, ", ".join(regions), near)


def old_machine(replica: OldReplica) -> OldMachine:
    """Return the machine of a role that has a machine type.

    Raises:
        UserError: The machine type did not exist.
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
        raise _refused(f"machine type {name} did not exist", f"{replica.role}Type", name, allowed, near)
    found = catalogue.accelerator(replica.accelerator or "")
    return OldMachine(machine=name, accelerator=found.name if found else None, count=replica.accelerator_count)


def _refused(
    reason: str, key: str, value: Any, allowed: str, near: str | None = None, fix: str | None = None
) -> UserError:
    return UserError(
        f"AI Platform Training would have rejected this job: {reason}.",
        setting=f"trainingInput.{key}",
        value=value,
        allowed=allowed,
        nearest=near,
        fix=fix or (f"set {key} to {near}" if near else f"set {key}" if value is None else f"correct {key}"),
    )
