"""Choose the hardware and the region that replace a job's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from slipway.core.errors import UserError, nearest
from slipway.pipelines.hardware import Hardware, validate_for
from slipway.pipelines.hardware.catalogue import Machine, load
from slipway.pipelines.hardware.grammar import UNITS, Refusal, Request, read_text, write_time
from slipway.pipelines.hardware.placement import alternatives
from slipway.pipelines.hardware.rules import DISK_GB, DISK_TYPES, WEEK, explain, ranked, resolve
from slipway.pipelines.migrate.job import LegacyJob, LegacyReplica
from slipway.pipelines.migrate.legacy_machines import LEGACY_MACHINES, SCALE_TIERS, TPU_CORES, TPU_WORKER, LegacyMachine

STAND_IN_REGION = "us-central1"
# Values of Vertex AI's Scheduling, and the options of hardware; "" for a default.
OPTIONS = {
    "scheduling.strategy": {
        "STRATEGY_UNSPECIFIED": "",
        "ON_DEMAND": "",
        "LOW_COST": "",
        "STANDARD": "",
        "SPOT": "+spot",
        "FLEX_START": "+flex",
    },
    "scheduling.restartJobOnWorkerRestart": {"false": "", "true": "+restart"},
}
ALL_REDUCE = "replicas share gradients by all-reduce"


@dataclass
class Notes:
    """Notes of a migration, in sentences: changes, dropped settings and open decisions."""

    changed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)


def hardware_for(job: LegacyJob, notes: Notes) -> Hardware:
    """Return the hardware that replaces a job's machines, and note the changes.

    Raises:
        UserError: The scale tier, a machine type or an accelerator is unknown.
    """
    tpu = next((r for r in job.replicas.values() if r.machine == TPU_WORKER or _is_tpu(r.accelerator)), None)
    if job.values["scaleTier"] != "CUSTOM":
        hardware = _of_tier(job, notes)
    elif tpu is not None:
        hardware = _of_tpu(job, tpu, notes)
    else:
        hardware = _of_machines(job, notes)
    servers, evaluator = job.replicas["parameterServer"], job.replicas["evaluator"]
    if servers.count:
        notes.dropped.append(f"{servers.count} parameter servers ({servers.machine}): {ALL_REDUCE}")
    if evaluator.count or evaluator.machine:
        notes.dropped.append(
            f"{evaluator.count or 1} evaluator ({evaluator.machine}): evaluation is a separate step after training"
        )
    disk = _disk(job, notes)
    hardware = replace(hardware, disk_type=disk.disk_type, disk_gb=disk.disk_gb)
    return _with_scheduling(_with_timeout(hardware, job.text("scheduling.maxRunningTime"), notes), job, notes)


def _of_tier(job: LegacyJob, notes: Notes) -> Hardware:
    name: str = job.values["scaleTier"]
    tier = SCALE_TIERS.get(name)
    if tier is None:
        raise UserError.unknown(
            "scale tier", name, [*SCALE_TIERS, "CUSTOM"], setting="trainingInput.scaleTier", fix="correct scaleTier"
        )
    for role in ("master", "worker"):
        replica = job.replicas[role]
        machines = " with ".join(filter(None, (replica.machine, replica.accelerator)))
        if machines:
            notes.dropped.append(f"{role}Type {machines}: scaleTier {name} determines the machines")
    if tier.hardware is None:
        notes.decisions.append(
            f"hardware: scaleTier {name} was {tier.description}; its machine types and counts are not known, "
            "so `cpu` is a placeholder. Choose, for example, cpu*5, or one machine with GPUs: slipway hardware."
        )
        notes.dropped.append(f"the parameter servers of scaleTier {name}: {ALL_REDUCE}")
        return resolve(Request())
    hardware = _offered_today(tier.hardware, job.engine, notes)
    unverified = f" ({tier.unverified} is not verified)" if tier.unverified else ""
    notes.changed.append(f"scaleTier {name}, {tier.description}{unverified}, became hardware {hardware}")
    if name == "BASIC_TPU":
        _note_tpu_vm("the master of BASIC_TPU", hardware, notes)
    return hardware


def _is_tpu(accelerator: str | None) -> bool:
    return accelerator is not None and accelerator.startswith("TPU_")


def _of_tpu(job: LegacyJob, tpu: LegacyReplica, notes: Notes) -> Hardware:
    """Return the TPU of the role `tpu`, which is the only role that is kept."""
    name, count, origin = "tpu-v2", TPU_CORES, "8 v2 cores without acceleratorConfig"
    if tpu.accelerator is not None and _is_tpu(tpu.accelerator):
        name, count, origin = _accelerator(tpu), tpu.accelerator_count or TPU_CORES, tpu.accelerator
    hardware = _offered_today(Request(name, count, replicas=max(1, tpu.count)), job.engine, notes)
    notes.changed.append(
        f"{tpu.role}Type {tpu.machine or TPU_WORKER} ({origin}) became hardware {hardware}, "
        f"machine type {hardware.machine}"
    )
    master, worker = job.replicas["master"], job.replicas["worker"]
    _note_tpu_vm("the master" if tpu is master else f"masterType {master.machine}", hardware, notes)
    if worker.count and tpu is not worker:
        notes.dropped.append(f"{worker.count} workers ({worker.machine}): a TPU job now has one replica")
    version = worker.tpu_version or master.tpu_version
    if version:
        instead = "contains TensorFlow and the libtpu.so of that release" if hardware.is_tpu else "determines it"
        notes.dropped.append(f"tpuTfVersion {version}: the image {instead}")
    return hardware


def _note_tpu_vm(master: str, hardware: Hardware, notes: Notes) -> None:
    notes.dropped.append(
        f"{master}: a TPU job now has one worker pool with one replica, and the program runs on the TPU VM; "
        "TPUClusterResolver() becomes TPUClusterResolver(tpu='local')"
        if hardware.is_tpu
        else f"{master}: the program runs on the machine that has the accelerators"
    )


def _of_machines(job: LegacyJob, notes: Notes) -> Hardware:
    master, worker = job.replicas["master"], job.replicas["worker"]
    chief = machine = _machine(master)
    named = master.machine
    if worker.count and (worker.machine or worker.accelerator):
        workers = _machine(worker)
        if chief.accelerator and not workers.accelerator:
            notes.decisions.append(
                f"hardware: the master was {chief}, its {worker.count} workers {workers}, without accelerators. All "
                f"replicas are identical now, so the workers are dropped. For more replicas: {chief.accelerator}"
                f"x{chief.count}*2, or other hardware if the workers did other work than training (slipway hardware)."
            )
            worker = replace(worker, count=0)
        elif workers != chief:
            machine, named = workers, worker.machine
            notes.decisions.append(
                f"hardware: the master was {chief}, its {worker.count} workers {workers}. All replicas are identical "
                "now, because they split every batch evenly; the workers' machine type is used for all."
            )
    request = Request(machine.accelerator, machine.count, machine=machine.machine, replicas=1 + worker.count)
    if machine.machine is not None and load().machine(machine.machine) is None:
        request = replace(request, machine=_next_size(machine.machine))
        notes.changed.append(
            f"{machine.machine} is not offered for training; {request.machine} is the next larger size"
        )
    hardware = _offered_today(request, job.engine, notes)
    count = f"1 master and {worker.count} workers" if worker.count else "1 master"
    legacy = named in LEGACY_MACHINES
    notes.changed.append(f"{count} on {f'{named} ({machine})' if legacy else machine} became hardware {hardware}")
    if machine.machine is None:
        notes.decisions.append(f"hardware: the job names no machine type; {hardware.machine} is a placeholder.")
    if machine.unverified:
        notes.decisions.append(f"hardware: {machine.unverified} of {named} is not verified; {machine.machine} is used.")
    return hardware


def _machine(replica: LegacyReplica) -> LegacyMachine:
    """Return the machine of one role; an acceleratorConfig replaces the accelerators of a legacy machine type."""
    machine = LEGACY_MACHINES.get(replica.machine or "") or LegacyMachine(replica.machine)
    known = machine.machine is None or load().machine(machine.machine) or _next_size(machine.machine)
    if not known:
        legacy = ", ".join(LEGACY_MACHINES)
        raise UserError(
            f"There is no machine type {replica.machine!r}.",
            setting=f"trainingInput.{replica.role}Type",
            value=replica.machine,
            allowed=f"a Compute Engine machine type, or {legacy}",
            nearest=nearest(str(replica.machine), [*load().machine_index, *LEGACY_MACHINES]),
            fix=f"correct {replica.role}Type",
        )
    if replica.accelerator is None:
        return machine
    return replace(machine, accelerator=_accelerator(replica), count=replica.accelerator_count)


def _accelerator(replica: LegacyReplica) -> str:
    row = load().accelerator(replica.accelerator or "")
    if row is not None:
        return row.name
    raise UserError.unknown(
        "accelerator",
        str(replica.accelerator),
        [row.type for row in load().accelerators if row.type],
        setting=f"trainingInput.{replica.role}Config.acceleratorConfig.type",
        fix=f"correct {replica.role}Config.acceleratorConfig.type",
    )


def _next_size(name: str) -> str | None:
    """Return the smallest machine type of the same series with at least as many vCPUs."""
    series, _, vcpus = name.rpartition("-")

    def fits(machine: Machine) -> bool:
        return machine.name.rpartition("-")[0] == series and vcpus.isdecimal() and (machine.vcpus or 0) >= int(vcpus)

    return next((machine.name for machine in sorted(load().machines, key=lambda m: m.size) if fits(machine)), None)


def _offered_today(request: Request, engine: str, notes: Notes) -> Hardware:
    """Return the hardware that is requested, or its replacement: Vertex AI offers it, and the engine runs on it."""
    try:
        requested = resolve(request)
        unsupported = requested.why_not(engine, own_program=True)
        if unsupported is None:
            return requested
        row = requested.accelerator_row
        assert row is not None  # every engine trains on CPUs
        if row.is_tpu:
            placeholder = alternatives(requested, engine)[0]
            notes.decisions.append(
                f"hardware: {unsupported.rstrip('.')}; {placeholder} is a placeholder, and the program has to use CUDA "
                f"instead of torch_xla. To stay on TPUs, set hardware to {requested} and train.image to an image that "
                "contains the program and torch_xla, or port the program to JAX."
            )
            return placeholder
        refusal = Refusal(unsupported, allowed="")
    except Refusal as refused:
        refusal = refused
    usable = (choice for choice in ranked(request) if choice.why_not(engine, own_program=True) is None)
    hardware = next(usable, None)
    if hardware is None:
        raise explain(refusal, request.accelerator or request.machine) from None
    reason = refusal.message.rstrip(".")
    candidates = [str(other) for other in _others(request, hardware)]
    also = f"; {' or '.join(candidates)} would also work" if candidates else ""
    notes.decisions.append(f"hardware: {reason}. {hardware} is the replacement{also}.")
    return hardware


def _others(request: Request, chosen: Hardware) -> Iterator[Hardware]:
    """Yield the same layout with the other replacements of a retired accelerator, on the same machine if possible."""
    retired = load().accelerator(request.accelerator or "")
    for name in retired.replacements if retired else ():
        for machine in (chosen.machine, None) if name != chosen.accelerator else ():
            try:
                yield resolve(replace(request, accelerator=name, machine=machine, replicas=chosen.replicas))
                break
            except Refusal:
                continue


def _with_timeout(hardware: Hardware, max_running_time: str | None, notes: Notes) -> Hardware:
    if max_running_time is None:
        return hardware
    match = re.fullmatch(r"([0-9]{1,9})(\.[0-9]+)?([smhd]?)", max_running_time)
    if match is None:
        raise UserError(
            "maxRunningTime is not a duration.",
            setting="trainingInput.scheduling.maxRunningTime",
            value=max_running_time,
            allowed="seconds, such as 7200s",
            fix="set maxRunningTime to 7200s",
        )
    seconds = int(match[1]) * UNITS[match[3] or "s"] + (match[2] is not None and float(match[2]) > 0)
    if seconds > WEEK:
        notes.decisions.append(
            f"hardware: maxRunningTime was {write_time(seconds)}; training is now limited to {write_time(WEEK)}. "
            "A resumed run continues from its last checkpoint."
        )
    notes.changed.append(f"scheduling.maxRunningTime {max_running_time} became +timeout in hardware")
    return replace(hardware, timeout=max(1, min(seconds, WEEK)))


def _with_scheduling(hardware: Hardware, job: LegacyJob, notes: Notes) -> Hardware:
    """Return the hardware with a custom job's provisioning and its restarts."""
    for key, options in OPTIONS.items():
        value = job.text(key)
        if value is None:
            continue
        if value not in options:
            notes.dropped.append(f"{key} {value}: known are {', '.join(options)}")
        elif option := options[value]:
            try:
                hardware = resolve(read_text(f"{hardware}{option}"))
                notes.changed.append(f"{key} {value} became {option} in hardware")
            except Refusal as refusal:
                notes.decisions.append(f"hardware: {refusal.message.rstrip('.')}; {key} {value} is dropped.")
    return hardware


def _disk(job: LegacyJob, notes: Notes) -> LegacyReplica:
    """Return the disk for all replicas: the largest that the master or workers request."""
    disks = [r for r in job.replicas.values() if (r.disk_type or r.disk_gb) and r.role in ("master", "worker")]
    if not disks:
        return LegacyReplica(role="master")
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


def region_for(job: LegacyJob, hardware: Hardware, notes: Notes) -> str:
    """Return the job's region if it offers the hardware, else the closest one that does."""
    requested, offering = job.text("region"), hardware.regions
    if offering == ():
        notes.decisions.append(f"hardware: No region offers {hardware}; choose another one: slipway hardware.")
        return requested or STAND_IN_REGION
    region = STAND_IN_REGION if offering is None or STAND_IN_REGION in offering else offering[0]
    if requested is None:
        notes.decisions.append(f"vertex.region: the job names no region; {region} offers the hardware.")
        return region
    try:
        validate_for(hardware, region=requested)
    except UserError as error:
        if error.nearest is not None and (offering is None or error.nearest in offering):
            region = error.nearest
        notes.decisions.append(
            f"vertex.region: {error.message.rstrip('.')}; {region} is used instead. Bucket and data must be there too."
        )
        return region
    return requested
