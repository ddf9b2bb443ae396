"""Which requests for hardware are valid: the nearest valid choice, and a sentence for what differs from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from slipway.core.errors import UserError, nearest
from slipway.core.values import spoken
from slipway.pipelines.hardware import this_machine
from slipway.pipelines.hardware.catalogue import Accelerator, Machine, Provisioning, chips_of, load
from slipway.pipelines.hardware.choice import AVAILABLE, Hardware, choices, default_machines
from slipway.pipelines.hardware.grammar import (
    HERE,
    Refusal,
    Request,
    read_base,
    read_mapping,
    read_misplaced,
    read_text,
    write_time,
)
from slipway.pipelines.hardware.quotas import DEFAULT_DISK_GB, MAX_DISK_GB

DISK_TYPES = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
DISK_GB = range(DEFAULT_DISK_GB, MAX_DISK_GB + 1)
UNAVAILABLE = {
    "retired": "is retired",
    "not-for-training": "is not offered for training",
    "enum-only": "is not supported: training jobs use a topology instead",
}
LARGEST_REPLICAS = 1_000
WEEK = 7 * 86_400
LONGEST_WAIT = 365 * 86_400
RESERVATION = re.compile(r"projects/[a-z0-9.:-]+/zones/[a-z0-9-]+/reservations/[a-z0-9-]+")


def parse(choice: object) -> Hardware:
    """Return the hardware for `choice`: text such as ``l4x4*2``, a mapping with Vertex's names, or itself.

    Raises:
        UserError: Vertex AI would not accept it; contains the reason and the closest valid choice.
    """
    if isinstance(choice, Hardware):
        return choice
    try:
        if isinstance(choice, str):
            return resolve(read_text(choice))
        if isinstance(choice, Mapping):
            return resolve(read_mapping(choice))
        raise Refusal("Hardware must be text or a mapping with Vertex's names.", allowed="such as l4x4*2")
    except Refusal as refusal:
        raise explain(refusal, choice) from None


def explain(refusal: Refusal, choice: object) -> UserError:
    """Convert a refusal to a user error that suggests the nearest valid choice."""
    closest = next(iter(ranked(*refusal.requests)), None)
    near = refusal.nearest or (str(closest) if closest else None)
    value = refusal.value if refusal.value is not None else choice
    fix = refusal.fix or (f"--hardware '{near}'" if near else "slipway hardware")
    message, known = refusal.message, filter(None, map(_corrected, refusal.requests))
    chips = max(((_chips(request) or 0) * _replicas(request) for request in known), default=0)
    if closest and 0 < chips < closest.chips * closest.replicas:
        units = "chips" if closest.is_tpu else "GPUs"
        message += f" The closest choice is larger: {closest.chips * closest.replicas} {units}, not {chips}."
    return UserError(message, setting=refusal.setting, value=value, allowed=refusal.allowed, nearest=near, fix=fix)


def resolve(request: Request) -> Hardware:
    """Return the hardware for `request`, with defaults for everything not given.

    Raises:
        Refusal: Vertex AI would not accept it.
    """
    near = next(iter(ranked(request)), None)
    for message, allowed in _problems(request, near):
        raise Refusal(message, allowed=allowed, requests=(request,))
    assert near is not None  # what is similar to no choice is not known
    return near


def ranked(*requests: Request) -> list[Hardware]:
    """Return the valid choices for the requested accelerator, its replacements, or the machine, nearest first.

    Their options are the requested ones, as far as they are valid.
    """
    candidates = []
    for request in map(_corrected, requests):
        if request is None:
            continue
        kinds, rows = _alike(request)
        largest = {row.accelerator: row.count for row in rows}  # the last is the largest
        near = [_with_options(row, request, largest[row.accelerator]) for row in rows]
        candidates += [(_distance(request, hardware, kinds), hardware) for hardware in near]
    return [hardware for _, hardware in sorted(candidates, key=lambda pair: pair[0])]


def known_accelerator(name: str | None) -> Accelerator | None:
    """Return the accelerator with this name; names of this machine's GPUs mean any GPU of this machine."""
    accelerator = load().accelerator(name or "")
    if accelerator is None and name is not None and load().machine(name) is None and name == this_machine.kind():
        return load().accelerator(HERE)
    return accelerator


def _corrected(request: Request) -> Request | None:
    """Return the request with names that are known, as similar as possible; None if no accelerator is similar."""
    index = load().machine_index
    name, machine = request.accelerator, request.machine
    if machine is not None and machine not in index:
        request = replace(request, machine=nearest(machine, index))
    if name is None or known_accelerator(name):
        return request
    if name in index:
        return replace(request, accelerator=None, machine=name)
    size = f"-{request.topology}" if request.topology else f"x{request.count}" if request.count is not None else ""
    for meant in read_misplaced(name + size):
        if meant.accelerator is None or load().accelerator(meant.accelerator):
            replicas = meant.replicas or request.replicas
            return replace(request, accelerator=meant.accelerator, count=meant.count, replicas=replicas)
    requests = {text: read_base(text) for text in default_machines()}
    requests |= {other + size: replace(request, accelerator=other) for other in load().accelerator_index}
    near = nearest(name + size, requests)
    if near is None:
        return None
    base = requests[near]
    return replace(request, accelerator=base.accelerator, count=base.count, topology=base.topology)


def _alike(request: Request) -> tuple[list[str | None], list[Hardware]]:
    """Return the kinds of accelerators that are nearest to the request, best first, and their choices."""
    machine = load().machine(request.machine or "")
    if request.accelerator is not None:
        row = known_accelerator(request.accelerator)
        assert row is not None
        kinds: list[str | None] = [row.name, *row.replacements]
        return kinds, [choice for choice in choices() if choice.accelerator in kinds]
    if machine is None:
        return [None], [choice for choice in choices() if choice.accelerator is None]
    rows = [choice for choice in choices() if choice.machine == machine.name]
    return list(dict.fromkeys(choice.accelerator for choice in rows)), rows


def _distance(request: Request, near: Hardware, kinds: list[str | None]) -> tuple[float, ...]:
    """Return the distance of a choice from a request, with the most important difference first."""
    chips, replicas = _chips(request), _replicas(request)
    machine, named = near.machine_row, load().machine(request.machine or "")
    smaller = named is not None and machine.series == named.series and machine.size <= named.size
    return (
        request.accelerator is not None and near.accelerator != kinds[0],
        near.provisioning != (request.provisioning or "standard"),
        near.is_tpu and replicas > 1 and near.chips <= (chips or 0),  # several replicas mean a larger slice
        abs(near.chips * near.replicas - chips * replicas) if chips is not None else 0,
        near.replicas - replicas,
        near.chips * near.replicas < (chips or 0) * replicas,  # rather too many chips than too few
        kinds.index(near.accelerator),
        0 if named in (None, machine) else 1 if smaller else 2,
        -(machine.vcpus or 0) if smaller else 0,
        near.chips if chips is None else 0,
    )


def _chips(request: Request) -> int | None:
    """Return the requested chips per replica; None if no count or topology is given."""
    if request.topology:
        return chips_of(request.topology)
    row = known_accelerator(request.accelerator)
    return request.count // row.cores_per_chip if request.count and row and row.slices else request.count


def _replicas(request: Request) -> int:
    return min(max(1 if request.replicas is None else request.replicas, 1), LARGEST_REPLICAS)


def _with_options(choice: Hardware, request: Request, largest: int) -> Hardware:
    """Return a choice with the requested options, or the closest that are valid for it.

    If a replica cannot have as many GPUs, because `largest` is less, they are split among several.
    """
    replicas, chips = _replicas(request), _chips(request)
    if choice.is_tpu:
        replicas = 1
    elif choice.count and chips and chips > largest and chips % choice.count == 0:
        split = replicas * (chips // choice.count)
        replicas = split if split <= LARGEST_REPLICAS else replicas
    modes: list[Provisioning] = [request.provisioning or "standard", "spot", "standard"]
    if request.wait is not None:
        modes = ["flex", *modes]
    mode = next(mode for mode in modes if mode in choice.provisioning_modes)
    disk_type = request.disk_type
    if disk_type not in (None, *DISK_TYPES):
        disk_type = (nearest(disk_type, DISK_TYPES) if disk_type != "pd-balanced" else None) or DISK_TYPES[0]
    reservation = request.reservation
    if not _names_reservations(reservation):
        reservation = ("any",)
    return replace(
        choice,
        replicas=replicas,
        provisioning=mode,
        disk_type=disk_type,
        disk_gb=None if request.disk_gb is None else min(max(request.disk_gb, DISK_GB[0]), DISK_GB[-1]),
        reservation=reservation if mode != "flex" else (),
        timeout=min(request.timeout, WEEK) if request.timeout else None,
        wait=min(request.wait, LONGEST_WAIT) if request.wait is not None and mode == "flex" else None,
        restart=request.restart,
    )


def _names_reservations(names: tuple[str, ...]) -> bool:
    return names in ((), ("any",), ("none",)) or all(RESERVATION.fullmatch(name) for name in names)


def _problems(request: Request, near: Hardware | None) -> Iterator[tuple[str, str]]:
    """Yield why a request is not valid, as sentences, with what is allowed; `near` is the nearest valid choice."""
    yield from _unknown_names(request)
    assert near is not None  # only names that are not known have none
    row, machine = near.accelerator_row, load().machine(request.machine or "")
    if request.accelerator is None:
        yield from _missing_accelerator(request, machine)
    elif row is not None:
        yield from _wrong_tpu(request, near, row) if row.is_tpu else _wrong_gpu(request, near, row)
        if machine is not None and machine.name != near.machine:
            yield _wrong_machine(near, row, machine)
    yield from _wrong_options(request, near)


def _unknown_names(request: Request) -> Iterator[tuple[str, str]]:
    name = request.accelerator
    row = known_accelerator(name)
    if row is not None and row.status not in AVAILABLE:
        reason = f"{row.title} {UNAVAILABLE[row.status]} ({load().certainties[row.certainty]})."
        yield reason, f"its replacement: {' or '.join(row.replacements)}"
    elif load().machine(name or ""):
        yield f"{name} is a machine type, not an accelerator.", f"cpu or an accelerator, then @{name}"
    elif name is not None and row is None:
        written = name if request.count is None else f"{name}x{request.count}"
        offered = [row.name for row in load().accelerators if row.status == "offered"]
        yield f"There is no hardware {written[:60]}.", ", ".join(["cpu", HERE, *offered])
    if request.machine is not None and load().machine(request.machine) is None:
        message = f"Vertex AI training has no machine type {request.machine}."
        yield message, "a machine type listed by slipway hardware"


def _missing_accelerator(request: Request, machine: Machine | None) -> Iterator[tuple[str, str]]:
    if request.count is not None or request.topology is not None:
        message = "The number of accelerators is given without their type."
        yield message, "the accelerator's type and its count, or neither"
    if machine is not None and load().family(machine) is None:
        supported = _supported(machine)
        yield f"{machine.name} is available only with accelerators: {supported}.", f"{supported} on it"


def _wrong_gpu(request: Request, near: Hardware, row: Accelerator) -> Iterator[tuple[str, str]]:
    if request.topology is not None:
        yield f"{row.title} is a GPU, which is chosen by count, not by topology.", _spoken_sizes(row)
    if request.count is None:
        yield _without_count(request), _spoken_sizes(row)
    if request.count != near.count:
        yield f"No machine supports {request.count} {row.name}.", f"{spoken(load().sizes(row))} per replica"


def _wrong_tpu(request: Request, near: Hardware, row: Accelerator) -> Iterator[tuple[str, str]]:
    allowed, count, topology = _spoken_sizes(row), request.count, request.topology
    if request.replicas not in (None, 1):
        message = f"A TPU job has exactly one worker pool of one replica; got {request.replicas} replicas. "
        yield f"{message}For more chips, choose a larger slice.", f"one replica of {allowed}"
    if row.slices and topology:
        yield f"{row.title} is chosen by its number of cores, not by topology.", allowed
    elif row.slices and count is None:
        yield _without_count(request), allowed
    elif row.slices and count != near.count:
        yield f"There is no {row.title} with {count} cores.", allowed
    elif row.slices:
        return
    elif topology is None and count is None:
        yield f"{request.accelerator} is without a topology.", allowed
    elif topology is None and count != near.count:
        yield f"There is no {row.title} with {count} chips.", allowed
    elif topology is None:
        yield f"{row.title} is chosen by topology, not by its number of chips.", allowed
    elif topology != near.topology:
        yield f"{row.title} has no topology {topology[:40]}.", allowed
    elif count not in (None, near.count):
        yield f"The topology {topology} has {near.count} chips, not {count}.", allowed


def _without_count(request: Request) -> str:
    return f"{request.accelerator} is without a count; an accelerator needs both type and count."


def _wrong_machine(near: Hardware, row: Accelerator, machine: Machine) -> tuple[str, str]:
    counts, count = machine.accelerators.get(row.name, ()), near.count
    if not counts and machine.tpu != row.name:
        supported = _supported(machine) or "none"
        reason = f"{machine.name} does not support {row.name}; it supports {supported}."
    elif near.topology:
        reason = f"{machine.name} is not the machine type of {row.title} {near.topology}."
    elif count > max(counts):
        reason = f"{machine.name} is too small for {count} {row.name}; it supports {spoken(counts)}."
    elif count < min(counts):
        # The service ties vCPUs and memory to the number of GPUs: a large machine needs several.
        reason = (
            f"{machine.name} is too large for {count} {row.name}; with {machine.vcpus} vCPUs and "
            f"{machine.memory_gb:g} GB it requires {spoken(counts)}."
        )
    else:
        reason = f"{machine.name} does not support {count} {row.name}; it supports {spoken(counts)}."
    fitting = [choice.machine_row for choice in choices() if choice.base == near.base]
    return reason, f"{near.base} on {spoken(m.name for m in sorted(fitting, key=lambda m: m.size))}"


def _wrong_options(request: Request, near: Hardware) -> Iterator[tuple[str, str]]:
    replicas, mode = 1 if request.replicas is None else request.replicas, request.provisioning or "standard"
    if not 1 <= replicas <= LARGEST_REPLICAS:
        yield f"Replicas must be between 1 and {LARGEST_REPLICAS:,}; got {replicas}.", f"1 to {LARGEST_REPLICAS:,}"
    if request.disk_type != near.disk_type:
        yield f"Vertex AI has no boot disk {request.disk_type}.", ", ".join(DISK_TYPES)
    if request.disk_gb != near.disk_gb:
        sizes = f"{DISK_GB[0]} to {DISK_GB[-1]:,} GB"
        yield f"A boot disk must have {sizes}; got {request.disk_gb:,} GB.", sizes
    if not _names_reservations(request.reservation):
        message = f"{', '.join(request.reservation)} does not name a reservation."
        yield message, "any, none, or full names: projects/PROJECT/zones/ZONE/reservations/NAME"
    if request.reservation and mode == "flex":
        yield "FLEX_START does not use reservations.", "+flex or +reservation, not both"
    if request.timeout is not None and request.timeout != near.timeout:
        message = f"A training job cannot run for {write_time(request.timeout)}; the limit of pipeline tasks and "
        yield f"{message}FLEX_START is 7 days.", "1s to 7d"
    if request.wait is not None and mode != "flex":
        yield "+wait requires FLEX_START provisioning.", "+flex with +wait, or neither"
    if request.wait is not None and request.wait > LONGEST_WAIT:
        message = f"A job cannot wait for {write_time(request.wait)}."
        yield message, f"0s (no limit) to {write_time(LONGEST_WAIT)}"
    if mode != near.provisioning:
        name = {"spot": "Spot", "flex": "FLEX_START"}.get(mode, mode)
        kind = near.accelerator or near.machine
        offering = [row.name for row in load().accelerators if mode in row.provisioning and row.status == "offered"]
        reason = f"{name} is not offered for {kind}, only for {', '.join(offering)}."
        yield reason, " or ".join(near.provisioning_modes)


def _spoken_sizes(row: Accelerator) -> str:
    sizes = spoken(row.spelled(size) for size in load().sizes(row))
    if slices := row.slices:
        many = f"a multiple of {slices.multiple_of} from {slices.multiple_of} to {slices.largest:,} cores"
        return f"{sizes}, or {row.name}- and {many}"
    return sizes


def _supported(machine: Machine) -> str:
    """Return the offered accelerators that a machine supports: "t4 (1, 2 or 4), v100 (8)"."""
    index = load().accelerator_index
    taken = [f"{name} ({spoken(n)})" for name, n in machine.accelerators.items() if index[name].status == "offered"]
    if machine.tpu:
        taken.append(f"{machine.tpu} ({', '.join(machine.topologies)})")
    return ", ".join(taken)
