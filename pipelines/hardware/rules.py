"""Rules for hardware: `parse` text or a mapping to a valid choice, or refuse it with the closest valid one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from slipway.core.errors import UserError, nearest
from slipway.pipelines.hardware import this_machine
from slipway.pipelines.hardware.catalogue import Accelerator, Machine, Provisioning, chips_of, load
from slipway.pipelines.hardware.choice import Hardware, smallest_machine
from slipway.pipelines.hardware.grammar import HERE, read_base, read_mapping, read_text, write_time
from slipway.pipelines.hardware.quotas import DEFAULT_DISK_GB, MOST_DISK_GB
from slipway.pipelines.hardware.request import Refusal, Request
from slipway.pipelines.hardware.sizes import (
    check_gpu,
    check_machine_takes,
    check_tpu,
    describe_accelerators,
    near_counts,
    near_topologies,
    sizes,
)

DISK_TYPES = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
DISK_GB = range(DEFAULT_DISK_GB, MOST_DISK_GB + 1)
LARGEST_REPLICAS = 1_000
WEEK = 7 * 86_400
LONGEST_WAIT = 365 * 86_400
RESERVATION = re.compile(r"projects/[a-z0-9.:-]+/zones/[a-z0-9-]+/reservations/[a-z0-9-]+")


def parse(choice: str | Mapping[str, object]) -> Hardware:
    """Return the hardware for `choice`: text such as ``l4x4*2``, or a mapping with Vertex's names.

    Raises:
        UserError: Vertex AI would not accept it; contains the reason and the closest valid choice.
    """
    try:
        if isinstance(choice, str):
            return resolve(read_text(choice))
        if isinstance(choice, Mapping):
            return resolve(read_mapping(choice))
        raise Refusal("Hardware must be text or a mapping with Vertex's names.", allowed="such as l4x4*2")
    except Refusal as refusal:
        raise explain(refusal, choice) from None


def explain(refusal: Refusal, given: object) -> UserError:
    """Convert a refusal to a user error that suggests the first valid candidate."""
    near = refusal.nearest or next((str(hardware) for hardware in working(refusal.candidates)), None)
    value = refusal.value if refusal.value is not None else given
    fix = refusal.fix or (f"--hardware '{near}'" if near else "slipway hardware")
    return UserError(
        refusal.message, setting=refusal.setting, value=value, allowed=refusal.allowed, nearest=near, fix=fix
    )


def working(candidates: Iterable[Request]) -> Iterator[Hardware]:
    """Yield the hardware of valid candidates: unchanged, then with standard provisioning, then without options."""
    candidates = list(candidates)
    plain = [replace(request, provisioning=None, wait=None, timeout=None) for request in candidates]
    bare = [
        replace(request, disk_type=None, disk_gb=None, reservation=(), replicas=None, machine=None) for request in plain
    ]
    for request in (*candidates, *plain, *bare):
        try:
            yield resolve(request)
        except Refusal:
            continue


def resolve(request: Request) -> Hardware:
    """Return the hardware for `request`, with defaults for everything not given.

    Raises:
        Refusal: Vertex AI would not accept it.
    """
    accelerator = known_accelerator(request)
    check_offered(request, accelerator)
    machine = known_machine(request)
    if accelerator is None:
        check_no_accelerator(request, machine)
        count, topology = 0, None
    elif accelerator.is_tpu:
        count, topology = check_tpu(request, accelerator)
    else:
        count, topology = check_gpu(request, accelerator, machine), None
    machine = machine or smallest_machine(accelerator, count, topology)
    check_machine_takes(request, machine, accelerator, count, topology)
    hardware = Hardware(
        accelerator=accelerator.name if accelerator else None,
        count=count,
        topology=topology,
        machine=machine.name,
        replicas=check_replicas(request),
        disk_type=request.disk_type,
        disk_gb=request.disk_gb,
        reservation=request.reservation,
        restart=request.restart,
    )
    check_disk(request)
    check_reservation(request)
    check_times(request)
    mode = check_provisioning(request, hardware)
    return replace(hardware, provisioning=mode, timeout=request.timeout, wait=request.wait)


def known_accelerator(request: Request) -> Accelerator | None:
    """Return the accelerator's catalogue row; None for CPUs."""
    offered = load()
    name = request.accelerator
    if name is None:
        return None
    if found := offered.accelerator(name):
        return found
    if machine := offered.machine(name):
        raise Refusal(
            f"{name} is a machine type, not an accelerator.",
            allowed=f"cpu or an accelerator, then @{name}",
            candidates=on_machine(replace(request, accelerator=None), machine),
        )
    if name == this_machine.kind():
        return offered.accelerator_index[HERE]
    written = name if request.count is None else f"{name}x{request.count}"
    raise Refusal(
        f"There is no hardware {written[:60]}.",
        allowed=f"cpu, {HERE}, " + ", ".join(row.name for row in offered.accelerators if row.status == "offered"),
        candidates=alike(request, name, written),
    )


def alike(request: Request, name: str, written: str) -> Iterator[Request]:
    """Yield likely corrections of an unknown accelerator's name; `written` is the name with its count."""
    if turned := re.fullmatch(r"([0-9]{1,4})x(.+)", written):
        yield replace(request, accelerator=turned[2], count=int(turned[1]))
    if name == "cpu":
        yield replace(request, accelerator=None, count=None, replicas=request.count)
    inner = read_base(name)
    if inner.count and load().accelerator(str(inner.accelerator)):  # l4x4x2
        yield replace(request, accelerator=inner.accelerator, count=inner.count, replicas=request.count)
    names = [name for accelerator in load().accelerators for name in (accelerator.name, *accelerator.aliases)]
    if near := nearest(name, names):
        yield replace(request, accelerator=near)
    if near := nearest(written, spellings()):
        named = read_base(near)
        yield replace(request, accelerator=named.accelerator, count=named.count, topology=named.topology)


@lru_cache(maxsize=1)
def spellings() -> list[str]:
    """Return every offered choice without options, except TPU slices by cores."""
    rows = [row for row in load().accelerators if row.status == "offered"]
    return ["cpu", *(text for row in rows for text in sizes(row))]


def known_machine(request: Request) -> Machine | None:
    """Return the machine's catalogue row; None if no machine is named."""
    if request.machine is None:
        return None
    if found := load().machine(request.machine):
        return found
    near = nearest(request.machine, load().machine_index)
    raise Refusal(
        f"Vertex AI training has no machine type {request.machine}.",
        allowed="a machine type listed by slipway hardware",
        candidates=[replace(request, machine=near), replace(request, machine=None)],
    )


def check_offered(request: Request, accelerator: Accelerator | None) -> None:
    """Check that the accelerator is offered for training."""
    if accelerator is None or accelerator.status in ("offered", "tpu-vm", "here"):
        return
    reasons = {
        "retired": f"{accelerator.title} is retired",
        "not-for-training": f"{accelerator.title} is not offered for training",
        "enum-only": f"{accelerator.title} is not supported: training jobs use a topology instead",
    }
    raise Refusal(
        f"{reasons[accelerator.status]} ({load().certainties[accelerator.certainty]}).",
        allowed=f"its replacement: {' or '.join(accelerator.replacements)}",
        candidates=replacements(request, accelerator),
    )


def replacements(request: Request, accelerator: Accelerator) -> Iterator[Request]:
    """Yield the same choice with replacement accelerators, on the named machine first, then on any other."""
    chips = chips_of(request.topology) if request.topology else (request.count or 1) // accelerator.cores_per_chip
    for name in accelerator.replacements:
        replacement = load().accelerator_index[name]
        for machine in dict.fromkeys((request.machine, None)):
            if replacement.is_tpu:
                for topology in near_topologies(replacement, chips):
                    yield replace(request, accelerator=name, topology=topology, count=None, machine=machine)
            else:
                count = 1 if request.count is None else request.count
                yield replace(request, accelerator=name, count=count, machine=machine)
    for name in accelerator.replacements:
        replacement = load().accelerator_index[name]
        if not replacement.is_tpu:
            yield from near_counts(replace(request, accelerator=name, machine=None), load().counts(replacement))


def check_no_accelerator(request: Request, machine: Machine | None) -> None:
    """Check that a request without accelerator has no count or topology and names a CPU machine."""
    if request.count is not None or request.topology is not None:
        raise Refusal(
            "The number of accelerators is given without their type.",
            allowed="the accelerator's type and its count, or neither",
            candidates=on_machine(request, machine) if machine else [replace(request, count=None, topology=None)],
        )
    if machine is not None and machine.tpu:
        check_offered(request, load().accelerator_index[machine.tpu])
    if machine is not None and load().family(machine) is None:
        raise Refusal(
            f"{machine.name} is available only with accelerators: {describe_accelerators(machine)}.",
            allowed=f"{describe_accelerators(machine)} on it",
            candidates=on_machine(request, machine),
        )


def on_machine(request: Request, machine: Machine) -> Iterator[Request]:
    """Yield choices for `machine`, those with the closest number of accelerators first."""
    for name, counts in machine.accelerators.items():
        if load().accelerator_index[name].status == "offered" and (request.count or not load().family(machine)):
            by_distance = sorted(counts, key=lambda count: abs(count - (request.count or 0)))
            yield from (replace(request, accelerator=name, count=n, machine=machine.name) for n in by_distance)
    for topology in machine.topologies:
        yield replace(request, accelerator=machine.tpu, count=None, topology=topology, machine=machine.name)
    if load().family(machine):
        yield replace(request, accelerator=None, count=None, topology=None, machine=machine.name)


def check_replicas(request: Request) -> int:
    """Return the number of replicas, after checking its range."""
    replicas = 1 if request.replicas is None else request.replicas
    if not 1 <= replicas <= LARGEST_REPLICAS:
        raise Refusal(
            f"Replicas must be between 1 and {LARGEST_REPLICAS:,}; got {replicas}.",
            allowed=f"1 to {LARGEST_REPLICAS:,}",
            candidates=[replace(request, replicas=1 if replicas < 1 else LARGEST_REPLICAS)],
        )
    return replicas


def check_provisioning(request: Request, hardware: Hardware) -> Provisioning:
    """Return the provisioning mode, after checking that it is offered for the hardware."""
    mode = request.provisioning or "standard"
    if mode in hardware.provisioning_modes:
        return mode
    name = {"spot": "Spot", "flex": "FLEX_START"}.get(mode, mode)
    others = [row.name for row in load().accelerators if mode in row.provisioning and row.status == "offered"]
    reason = f"{name} is not offered for {hardware.accelerator or hardware.machine}, only for {', '.join(others)}."
    keep = [m for m in hardware.provisioning_modes if m != "standard"] if request.wait is None else []
    raise Refusal(
        reason,
        allowed=" or ".join(hardware.provisioning_modes),
        candidates=[replace(request, provisioning=m, wait=None) for m in [*keep, None]],
    )


def check_disk(request: Request) -> None:
    """Check the boot disk's type and size."""
    if request.disk_type is not None and request.disk_type not in DISK_TYPES:
        near = None if request.disk_type == "pd-balanced" else nearest(request.disk_type, DISK_TYPES)
        raise Refusal(
            f"Vertex AI has no boot disk {request.disk_type}.",
            allowed=", ".join(DISK_TYPES),
            candidates=[replace(request, disk_type=near or "pd-ssd")],
        )
    if request.disk_gb is not None and request.disk_gb not in DISK_GB:
        size = DISK_GB[0] if request.disk_gb < DISK_GB[0] else DISK_GB[-1]
        raise Refusal(
            f"A boot disk must have {DISK_GB[0]} to {DISK_GB[-1]:,} GB; got {request.disk_gb:,} GB.",
            allowed=f"{DISK_GB[0]} to {DISK_GB[-1]:,} GB",
            candidates=[replace(request, disk_gb=size)],
        )


def check_reservation(request: Request) -> None:
    """Check that the reservation is any, none, or full resource names, and that FLEX_START has none."""
    names = request.reservation
    if not names or names in (("any",), ("none",)) or all(RESERVATION.fullmatch(name) for name in names):
        if names and request.provisioning == "flex":
            raise Refusal(
                "FLEX_START does not use reservations.",
                allowed="+flex or +reservation, not both",
                candidates=[replace(request, reservation=()), replace(request, provisioning=None, wait=None)],
            )
        return
    raise Refusal(
        f"{', '.join(names)} does not name a reservation.",
        allowed="any, none, or full names: projects/PROJECT/zones/ZONE/reservations/NAME",
        candidates=[replace(request, reservation=("any",))],
    )


def check_times(request: Request) -> None:
    """Check the range of the timeout, and that a wait is given only with FLEX_START."""
    if request.timeout is not None and not 1 <= request.timeout <= WEEK:
        raise Refusal(
            f"A training job cannot run for {write_time(request.timeout)}; the limit of pipeline tasks and FLEX_START "
            "is 7 days.",
            allowed="1s to 7d",
            candidates=[replace(request, timeout=WEEK if request.timeout else None)],
        )
    if request.wait is not None and request.provisioning != "flex":
        raise Refusal(
            "+wait requires FLEX_START provisioning.",
            allowed="+flex with +wait, or neither",
            candidates=[replace(request, provisioning="flex"), replace(request, wait=None)],
        )
    if request.wait is not None and request.wait > LONGEST_WAIT:
        raise Refusal(
            f"A job cannot wait for {write_time(request.wait)}.",
            allowed=f"0s (no limit) to {write_time(LONGEST_WAIT)}",
            candidates=[replace(request, wait=LONGEST_WAIT)],
        )
