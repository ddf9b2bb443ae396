"""Choose the hardware that replaces an old job's machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from slipway.core.errors import UserError
from slipway.pipelines.hardware import Hardware, parse, validate_for
from slipway.pipelines.hardware.catalogue import Machine
from slipway.pipelines.hardware.catalogue import load as load_catalogue
from slipway.pipelines.hardware.grammar import UNITS, read_text, write_time
from slipway.pipelines.hardware.terms import DISK_GB, DISK_TYPES, WEEK
from slipway.pipelines.migrate.old_rules import OldMachine, old_machine
from slipway.pipelines.migrate.old_service import TPU_WORKER, load
from slipway.pipelines.migrate.reading import OldJob, OldReplica

STAND_IN_REGION = "us-central1"


@dataclass
class Notes:
    """Notes of a migration, in sentences: changes, dropped settings and open decisions."""

    changed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)


def hardware_for(job: OldJob, notes: Notes) -> Hardware:
    """Return the hardware for a valid old job, and note the changes."""
    if job.scale_tier != "CUSTOM":
        hardware = _of_tier(job.scale_tier, notes)
    elif job.replica("worker").machine == TPU_WORKER:
        hardware = _of_tpu(job, notes)
    else:
        hardware = _of_machines(job, notes)
    _note_evaluators(job, notes)
    return _with_terms(hardware, job, notes)


def _of_tier(tier: str, notes: Notes) -> Hardware:
    row = load().scale_tier(tier)
    assert row is not None  # old_rules.check rejects unknown tiers
    if row.hardware is None:
        notes.decisions.append(
            f"hardware: scaleTier {tier} was {row.meant}; its machine types and counts are not known, so `cpu` "
            "is a placeholder. Choose, for example, cpu*5, or one machine with GPUs: slipway hardware."
        )
        notes.dropped.append(f"the parameter servers of scaleTier {tier}: replicas share gradients by all-reduce")
        return parse("cpu")
    hardware = _offered_today(row.hardware, notes)
    unverified = f" ({row.unverified} is not verified)" if row.unverified else ""
    notes.changed.append(f"scaleTier {tier}, {row.meant}{unverified}, became hardware {hardware}")
    if hardware.is_tpu:
        _note_tpu_vm("the master of BASIC_TPU", notes)
    return hardware


def _of_tpu(job: OldJob, notes: Notes) -> Hardware:
    worker = job.replica("worker")
    generation = "tpu-v3" if worker.accelerator == "TPU_V3" else "tpu-v2"
    hardware = _offered_today(f"{generation}-8", notes)
    said = worker.accelerator or "8 v2 cores without acceleratorConfig"
    notes.changed.append(f"workerType cloud_tpu ({said}) became hardware {hardware}, machine type {hardware.machine}")
    _note_tpu_vm(f"masterType {job.replica('master').machine}", notes)
    version = worker.tpu_version or job.replica("master").tpu_version
    if version:
        notes.dropped.append(f"tpuTfVersion {version}: the image contains TensorFlow and the libtpu.so of that release")
    return hardware


def _note_tpu_vm(master: str, notes: Notes) -> None:
    notes.dropped.append(
        f"{master}: a TPU job now has one worker pool with one replica, and the program runs on the TPU VM; "
        "TPUClusterResolver() becomes TPUClusterResolver(tpu='local')"
    )


def _of_machines(job: OldJob, notes: Notes) -> Hardware:
    master, worker = job.replica("master"), job.replica("worker")
    chief = old_machine(master)
    machine, replicas = chief, 1 + worker.count
    if worker.count:
        others = old_machine(worker)
        if others != chief:
            machine = others
            notes.decisions.append(
                f"hardware: the master was {chief}, its {worker.count} workers {others}. All replicas are identical "
                "now, because they split every batch evenly; the workers' machine type is used for all."
            )
    servers = job.replica("parameterServer")
    if servers.count:
        notes.dropped.append(
            f"{servers.count} parameter servers ({servers.machine}): replicas share gradients by all-reduce"
        )
    hardware = _offered_today(_text(machine, replicas, notes), notes)
    named = f"{machine.named} ({machine})" if machine.named else str(machine)
    count = f"1 master and {worker.count} workers" if worker.count else "1 master"
    notes.changed.append(f"{count} on {named} became hardware {hardware}")
    if machine.unverified:
        notes.decisions.append(
            f"hardware: {machine.unverified} of {machine.named} is not verified; {machine.machine} is used."
        )
    return hardware


def _text(machine: OldMachine, replicas: int, notes: Notes) -> str:
    """Return the `hardware` text of an old machine, with its old accelerator."""
    name = machine.machine
    if load_catalogue().machine(name) is None:
        name = _next_size(name)
        notes.changed.append(f"{machine.machine} is not offered for training; {name} is the next larger size")
    base = f"{machine.accelerator}x{machine.count}" if machine.accelerator else "cpu"
    return f"{base}@{name}*{replicas}"


def _next_size(name: str) -> str:
    """Return the smallest machine type of the same series with at least as many vCPUs."""
    series, _, vcpus = name.rpartition("-")

    def fits(machine: Machine) -> bool:
        return machine.name.rpartition("-")[0] == series and (machine.vcpus or 0) >= int(vcpus)

    return min((machine for machine in load_catalogue().machines if fits(machine)), key=lambda m: m.size).name


def _offered_today(text: str, notes: Notes) -> Hardware:
    """Return the hardware that `text` names, or its replacement."""
    try:
        return parse(text)
    except UserError as error:
        if error.nearest is None:
            raise
        hardware = parse(error.nearest)
        reason = error.message.rstrip(".")
    others = [str(other) for other in _others(text, hardware)]
    also = f"; {' or '.join(others)} would also work" if others else ""
    notes.decisions.append(f"hardware: {reason}. {hardware} is the replacement{also}.")
    return hardware


def _others(text: str, taken: Hardware) -> Iterator[Hardware]:
    """Yield the same layout with the other replacements of a retired accelerator, on the same machine if possible."""
    request = read_text(text)
    gone = load_catalogue().accelerator(request.accelerator or "")
    for name in gone.successors if gone else ():
        choices = (f"{name}x{request.count}{machine}*{taken.replicas}" for machine in (f"@{taken.machine}", ""))
        for choice in choices if name != taken.accelerator else ():
            try:
                yield parse(choice)
                break
            except UserError:
                continue


def _note_evaluators(job: OldJob, notes: Notes) -> None:
    evaluator = job.replica("evaluator")
    if evaluator.count or evaluator.machine:
        notes.dropped.append(
            f"{evaluator.count or 1} evaluator ({evaluator.machine}): evaluation is a separate step after training"
        )


def _with_terms(hardware: Hardware, job: OldJob, notes: Notes) -> Hardware:
    """Add disk and timeout to the hardware."""
    disk = _disk(job, notes)
    hardware = replace(hardware, disk_type=disk.disk_type, disk_gb=disk.disk_gb)
    if job.max_running_time is not None:
        seconds = _seconds(job.max_running_time, "maxRunningTime")
        if seconds > WEEK:
            notes.decisions.append(
                f"hardware: maxRunningTime was {write_time(seconds)}; training is now limited to {write_time(WEEK)}. "
                "A resumed run continues from its last checkpoint."
            )
        hardware = replace(hardware, timeout=max(1, min(seconds, WEEK)))
        notes.changed.append(f"scheduling.maxRunningTime {job.max_running_time} became +timeout in hardware")
    if job.max_wait_time is not None:
        notes.dropped.append(
            f"scheduling.maxWaitTime {job.max_wait_time}: only FLEX_START supports a wait limit now (+flex+wait=…)"
        )
    # Parse the assembled text again to validate it.
    return parse(str(hardware))


def _disk(job: OldJob, notes: Notes) -> OldReplica:
    """Return the disk for all replicas: the largest that the master or workers request."""
    disks = [r for r in job.replicas.values() if (r.disk_type or r.disk_gb) and r.role in ("master", "worker")]
    if not disks:
        return OldReplica(role="master")
    first = max(disks, key=lambda replica: replica.disk_gb or 0)
    if len({(replica.disk_type, replica.disk_gb) for replica in disks}) > 1:
        notes.changed.append(f"all replicas now have the same boot disk: the {first.role}'s is used")
    if first.disk_type not in (None, *DISK_TYPES):
        notes.dropped.append(f"boot disk type {first.disk_type}: Vertex AI supports {', '.join(DISK_TYPES)}")
        first = replace(first, disk_type=None)
    if first.disk_gb is not None and first.disk_gb not in DISK_GB:
        size = min(max(first.disk_gb, DISK_GB[0]), DISK_GB[-1])
        notes.changed.append(f"boot disk size {first.disk_gb} GB became {size} GB, the closest supported size")
        first = replace(first, disk_gb=size)
    return first


def _seconds(text: str, key: str) -> int:
    """Parse "7200s", "2h" or "3.5s" to seconds, rounded up."""
    match = re.fullmatch(r"([0-9]{1,9})(\.[0-9]+)?([smhd]?)", text)
    if match is None:
        raise UserError(
            f"{key} is not a duration.",
            setting=f"trainingInput.scheduling.{key}",
            value=text,
            allowed="seconds, such as 7200s",
            fix=f"set {key} to 7200s",
        )
    return int(match[1]) * UNITS[match[3] or "s"] + (match[2] is not None and float(match[2]) > 0)


def region_for(job: OldJob, hardware: Hardware, notes: Notes) -> str:
    """Return the job's region if it offers the hardware, else the closest one that does."""
    if job.region is None:
        regions = hardware.regions
        region = STAND_IN_REGION if regions is None or STAND_IN_REGION in regions else regions[0]
        notes.decisions.append(f"vertex.region: the job names no region; {region} offers the hardware.")
        return region
    try:
        validate_for(hardware, region=job.region)
    except UserError as error:
        region = error.nearest or STAND_IN_REGION
        notes.decisions.append(
            f"vertex.region: {error.message.rstrip('.')}; {region} is used instead. Bucket and data must be there too."
        )
        return region
    return job.region
