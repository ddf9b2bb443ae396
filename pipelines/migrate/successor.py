"""The hardware that takes the place of an old job's machines."""

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
    """What a migration did, in sentences: what is other now, what is gone, what a person has to decide."""

    changed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)


def hardware_for(job: OldJob, notes: Notes) -> Hardware:
    """The hardware of an old job that the old service would have accepted; what it took to get there is noted."""
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
    assert row is not None  # the old rules let known tiers pass only
    if row.hardware is None:
        notes.decisions.append(
            f"hardware: scaleTier {tier} was {row.meant}; which machines and how many cannot be told for sure, so "
            "`cpu` stands in for it. Choose, for instance cpu*5, or one machine with GPUs: slipway hardware."
        )
        notes.dropped.append(f"the parameter servers of scaleTier {tier}: replicas share gradients by all-reduce")
        return parse("cpu")
    hardware = _offered_today(row.hardware, notes)
    unverified = f" ({row.unverified} is not known for sure)" if row.unverified else ""
    notes.changed.append(f"scaleTier {tier}, {row.meant}{unverified}, is hardware {hardware}")
    if hardware.is_tpu:
        _note_tpu_vm("the master of BASIC_TPU", notes)
    return hardware


def _of_tpu(job: OldJob, notes: Notes) -> Hardware:
    worker = job.replica("worker")
    generation = "tpu-v3" if worker.accelerator == "TPU_V3" else "tpu-v2"
    hardware = _offered_today(f"{generation}-8", notes)
    said = worker.accelerator or "8 v2 cores without acceleratorConfig"
    notes.changed.append(f"workerType cloud_tpu ({said}) is hardware {hardware}, machine type {hardware.machine}")
    _note_tpu_vm(f"masterType {job.replica('master').machine}", notes)
    version = worker.tpu_version or job.replica("master").tpu_version
    if version:
        notes.dropped.append(
            f"tpuTfVersion {version}: the image brings its TensorFlow and the libtpu.so of that release"
        )
    return hardware


def _note_tpu_vm(master: str, notes: Notes) -> None:
    notes.dropped.append(
        f"{master}: a TPU job is one worker pool of one replica now, and the program runs on the TPU's own machine; "
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
                f"hardware: the master was {chief}, its {worker.count} workers {others}. Replicas are all alike now, "
                "because they share every batch evenly; the workers' machine was taken for all."
            )
    servers = job.replica("parameterServer")
    if servers.count:
        notes.dropped.append(
            f"{servers.count} parameter servers ({servers.machine}): replicas share gradients by all-reduce"
        )
    hardware = _offered_today(_text(machine, replicas, notes), notes)
    named = f"{machine.named} ({machine})" if machine.named else str(machine)
    count = f"1 master and {worker.count} workers" if worker.count else "1 master"
    notes.changed.append(f"{count} on {named} {'are' if worker.count else 'is'} hardware {hardware}")
    if machine.unverified:
        notes.decisions.append(
            f"hardware: {machine.unverified} behind {machine.named} is not known for sure; {machine.machine} was taken."
        )
    return hardware


def _text(machine: OldMachine, replicas: int, notes: Notes) -> str:
    """An old machine as today's text, the accelerator as it was."""
    name = machine.machine
    if load_catalogue().machine(name) is None:
        name = _next_size(name)
        notes.changed.append(f"{machine.machine} is not offered for training: {name} is the next size")
    base = f"{machine.accelerator}x{machine.count}" if machine.accelerator else "cpu"
    return f"{base}@{name}*{replicas}"


def _next_size(name: str) -> str:
    """The smallest machine of the same series that has at least as many vCPUs."""
    series, _, vcpus = name.rpartition("-")

    def fits(machine: Machine) -> bool:
        return machine.name.rpartition("-")[0] == series and (machine.vcpus or 0) >= int(vcpus)

    return min((machine for machine in load_catalogue().machines if fits(machine)), key=lambda m: m.size).name


def _offered_today(text: str, notes: Notes) -> Hardware:
    """The hardware that `text` names, or what takes its place."""
    try:
        return parse(text)
    except UserError as error:
        if error.nearest is None:
            raise
        hardware = parse(error.nearest)
        reason = error.message.rstrip(".")
    others = [str(other) for other in _others(text, hardware)]
    also = f"; {' or '.join(others)} would do as well" if others else ""
    notes.decisions.append(f"hardware: {reason}. {hardware} was taken in its place{also}.")
    return hardware


def _others(text: str, taken: Hardware) -> Iterator[Hardware]:
    """The same layout with the other successors of an accelerator that is gone, on the same machine if that can be."""
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
            f"{evaluator.count or 1} evaluator ({evaluator.machine}): evaluation is a step of its own, after training"
        )


def _with_terms(hardware: Hardware, job: OldJob, notes: Notes) -> Hardware:
    """Disk and times put on the hardware."""
    disk = _disk(job, notes)
    hardware = replace(hardware, disk_type=disk.disk_type, disk_gb=disk.disk_gb)
    if job.max_running_time is not None:
        seconds = _seconds(job.max_running_time, "maxRunningTime")
        if seconds > WEEK:
            notes.decisions.append(
                f"hardware: maxRunningTime was {write_time(seconds)}; a training task ends after {write_time(WEEK)} "
                "now. A run that is resumed goes on where it stopped."
            )
        hardware = replace(hardware, timeout=max(1, min(seconds, WEEK)))
        notes.changed.append(f"scheduling.maxRunningTime {job.max_running_time} is +timeout in hardware")
    if job.max_wait_time is not None:
        notes.dropped.append(
            f"scheduling.maxWaitTime {job.max_wait_time}: only FLEX_START waits for a limited time now (+flex+wait=…)"
        )
    # One reading of the whole: what was put together by hand keeps every rule too.
    return parse(str(hardware))


def _disk(job: OldJob, notes: Notes) -> OldReplica:
    """The disk of all replicas: the master's, or the first that any role asked for."""
    disks = [r for r in job.replicas.values() if (r.disk_type or r.disk_gb) and r.role in ("master", "worker")]
    if not disks:
        return OldReplica(role="master")
    first = max(disks, key=lambda replica: replica.disk_gb or 0)
    if len({(replica.disk_type, replica.disk_gb) for replica in disks}) > 1:
        notes.changed.append(f"the replicas' disks are all alike now: those of the {first.role} were taken")
    if first.disk_type not in (None, *DISK_TYPES):
        notes.dropped.append(f"boot disk type {first.disk_type}: Vertex AI has {', '.join(DISK_TYPES)}")
        first = replace(first, disk_type=None)
    if first.disk_gb is not None and first.disk_gb not in DISK_GB:
        size = min(max(first.disk_gb, DISK_GB[0]), DISK_GB[-1])
        notes.changed.append(f"a boot disk of {first.disk_gb} GB is one of {size} GB, the nearest size there is")
        first = replace(first, disk_gb=size)
    return first


def _seconds(text: str, key: str) -> int:
    """The seconds of "7200s", "2h" or "3.5s"; parts of a second count as one."""
    match = re.fullmatch(r"([0-9]{1,9})(\.[0-9]+)?([smhd]?)", text)
    if match is None:
        raise UserError(
            f"{key} is no length of time.",
            setting=f"trainingInput.scheduling.{key}",
            value=text,
            allowed="seconds, such as 7200s",
            fix=f"set {key} to 7200s",
        )
    return int(match[1]) * UNITS[match[3] or "s"] + (match[2] is not None and float(match[2]) > 0)


def region_for(job: OldJob, hardware: Hardware, notes: Notes) -> str:
    """The job's region if it has the hardware today, else the nearest that has."""
    if job.region is None:
        regions = hardware.regions
        region = STAND_IN_REGION if regions is None or STAND_IN_REGION in regions else regions[0]
        notes.decisions.append(f"vertex.region: no region was given; {region} has the hardware and stands in.")
        return region
    try:
        validate_for(hardware, region=job.region)
    except UserError as error:
        region = error.nearest or STAND_IN_REGION
        notes.decisions.append(
            f"vertex.region: {error.message.rstrip('.')}; {region} was taken. Bucket and data have to be there too."
        )
        return region
    return job.region
