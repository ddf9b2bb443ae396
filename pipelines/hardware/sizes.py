"""Rules for sizes: counts of GPUs, cores and topologies of TPUs, and the machines that support them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from slipway.pipelines.hardware.catalogue import Accelerator, Machine, chips_of, load
from slipway.pipelines.hardware.choice import base_text, takes
from slipway.pipelines.hardware.request import Refusal, Request


def check_gpu(request: Request, accelerator: Accelerator, machine: Machine | None) -> int:
    """Return the number of GPUs per replica, after checking that a machine supports it."""
    counts = load().counts(accelerator)
    if request.topology is not None:
        raise Refusal(
            f"{accelerator.title} is a GPU, which is chosen by count, not by topology.",
            allowed=spoken_sizes(accelerator),
            candidates=[
                replace(request, topology=None, count=count, machine=None)
                for count in sorted(counts, key=lambda count: abs(count - chips_of(request.topology or "1")))
            ],
        )
    if request.count is None:
        raise Refusal(
            f"{request.accelerator} is without a count; an accelerator needs both type and count.",
            allowed=spoken_sizes(accelerator),
            candidates=[
                replace(request, accelerator=accelerator.name, count=count, machine=name)
                for name in dict.fromkeys((machine.name if machine else None, None))
                for count in counts
            ],
        )
    if request.count not in counts:
        raise Refusal(
            f"No machine supports {request.count} {accelerator.name}.",
            allowed=f"{spoken(counts)} per replica",
            candidates=near_counts(request, counts),
        )
    return request.count


def near_counts(request: Request, counts: list[int]) -> Iterator[Request]:
    """Yield the request with valid counts: first more replicas with the same total, then the closest counts."""
    asked = request.count or 0
    for count in sorted(counts, reverse=True):
        if asked > max(counts) and asked % count == 0:
            yield replace(request, count=count, replicas=(request.replicas or 1) * (asked // count))
    yield from (replace(request, count=n) for n in sorted(counts, key=lambda n: (abs(n - asked), -n)))
    yield from (replace(request, count=n, machine=None) for n in sorted(counts, key=lambda n: (abs(n - asked), -n)))


def check_tpu(request: Request, accelerator: Accelerator) -> tuple[int, str | None]:
    """Return the cores or chips of a TPU job's single replica, and the topology if it is chosen by topology."""
    if request.replicas is not None and request.replicas != 1:
        raise Refusal(
            f"A TPU job has exactly one worker pool of one replica; got {request.replicas} replicas. "
            "For more chips, choose a larger slice.",
            allowed=f"one replica of {spoken_sizes(accelerator)}",
            candidates=larger_slices(request, accelerator),
        )
    if accelerator.slices:
        return check_cores(request, accelerator), None
    return check_topology(request, accelerator)


def check_cores(request: Request, accelerator: Accelerator) -> int:
    """Return the number of cores, for generations chosen by cores (v2, v3)."""
    slices = accelerator.slices
    assert slices is not None
    counts = [*load().counts(accelerator), *range(slices.multiple_of, slices.largest + 1, slices.multiple_of)]
    if request.topology is None and request.count is not None and request.count in counts:
        return request.count
    asked = chips_of(request.topology) * accelerator.cores_per_chip if request.topology else request.count
    by_distance = sorted(counts, key=lambda count: abs(count - (asked or 0)))
    if request.topology:
        reason = f"{accelerator.title} is chosen by its number of cores, not by topology."
    elif request.count is None:
        reason = f"{request.accelerator} is without a count; an accelerator needs both type and count."
    else:
        reason = f"There is no {accelerator.title} with {request.count} cores."
    raise Refusal(
        reason,
        allowed=spoken_sizes(accelerator),
        candidates=[replace(request, topology=None, count=count) for count in by_distance[:2]],
    )


def check_topology(request: Request, accelerator: Accelerator) -> tuple[int, str]:
    """Return the number of chips and the topology, for generations chosen by topology (v5e and later)."""
    topologies = load().topologies(accelerator)
    if request.topology in topologies and request.count in (None, chips_of(request.topology)):
        return chips_of(request.topology), request.topology
    if request.topology in topologies:
        reason = f"The topology {request.topology} has {chips_of(request.topology)} chips, not {request.count}."
    elif request.topology:
        reason = f"{accelerator.title} has no topology {request.topology[:40]}."
    elif request.count is None:
        reason = f"{request.accelerator} is without a topology."
    else:
        reason = f"{accelerator.title} is chosen by topology, not by its number of chips."
    edges = sorted(int(edge) for edge in request.topology.split("x")) if request.topology else []
    same = [t for t in topologies if sorted(int(edge) for edge in t.split("x")) == edges]
    chips = chips_of(request.topology) if request.topology else request.count or 1
    raise Refusal(
        reason,
        allowed=spoken_sizes(accelerator),
        candidates=[
            replace(request, topology=topology, count=None, machine=machine)
            for topology in [*same, *near_topologies(accelerator, chips)]
            for machine in dict.fromkeys((request.machine, None))
        ],
    )


def near_topologies(accelerator: Accelerator, chips: int) -> list[str]:
    """Return up to three topologies with a number of chips close to `chips`."""
    return sorted(load().topologies(accelerator), key=lambda topology: abs(chips_of(topology) - chips))[:3]


def larger_slices(request: Request, accelerator: Accelerator) -> Iterator[Request]:
    """Yield requests for one replica with about as many chips as all requested replicas together."""
    replicas = request.replicas or 1
    one = replace(request, replicas=None)
    if accelerator.slices and request.count:
        wanted = min(request.count * replicas, accelerator.slices.largest)
        yield replace(one, count=wanted)
        yield replace(one, count=max(1, round(wanted / 32)) * 32)
    elif request.topology:
        for topology in near_topologies(accelerator, chips_of(request.topology) * replicas):
            yield replace(one, topology=topology, machine=None)
    yield one


def check_machine_takes(
    request: Request, machine: Machine, accelerator: Accelerator | None, count: int, topology: str | None
) -> None:
    """Check that the machine supports the accelerator in that count or topology."""
    if accelerator is None or takes(machine, accelerator, count, topology):
        return
    counts = machine.accelerators.get(accelerator.name, ())
    asked = topology or str(count)
    if not counts and machine.tpu != accelerator.name:
        supported = describe_accelerators(machine) or "none"
        reason = f"{machine.name} does not support {accelerator.name}; it supports {supported}."
    elif topology:
        reason = f"{machine.name} is not the machine type of {accelerator.title} {topology}."
    elif count > max(counts):
        reason = f"{machine.name} is too small for {count} {accelerator.name}; it supports {spoken(counts)}."
    elif count < min(counts):
        # The service ties vCPUs and memory to the number of GPUs: a large machine needs several.
        reason = (
            f"{machine.name} is too large for {count} {accelerator.name}; with {machine.vcpus} vCPUs and "
            f"{machine.memory_gb:g} GB it requires {spoken(counts)}."
        )
    else:
        reason = f"{machine.name} does not support {asked} {accelerator.name}; it supports {spoken(counts)}."
    fitting = [m for m in load().machines_with(accelerator) if takes(m, accelerator, count, topology)]
    raise Refusal(
        reason,
        allowed=f"{base_text(accelerator, count, topology)} on {spoken(m.name for m in fitting)}",
        candidates=near_machines(request, machine, fitting, counts),
    )


def near_machines(
    request: Request, machine: Machine, fitting: list[Machine], counts: Iterable[int]
) -> Iterator[Request]:
    """Yield the largest fitting machine of the same series, then any machine, then other counts on this machine."""
    series = machine.name.rpartition("-")[0]
    alike = sorted((m for m in fitting if m.name.rpartition("-")[0] == series), key=lambda m: m.size, reverse=True)
    yield from (replace(request, machine=m.name) for m in alike if m.size <= machine.size)
    yield replace(request, machine=None)
    yield from near_counts(request, sorted(counts) or [1])


def sizes(accelerator: Accelerator) -> list[str]:
    """Return an accelerator's choices without options, as text, except TPU slices by cores."""
    if accelerator.is_tpu and not accelerator.slices:
        return [f"{accelerator.name}-{topology}" for topology in load().topologies(accelerator)]
    return [f"{accelerator.name}{'-' if accelerator.is_tpu else 'x'}{n}" for n in load().counts(accelerator)]


def spoken_sizes(accelerator: Accelerator) -> str:
    """Return an accelerator's choices in words."""
    if slices := accelerator.slices:
        many = f"a multiple of {slices.multiple_of} from {slices.multiple_of} to {slices.largest:,} cores"
        return f"{spoken(sizes(accelerator))}, or {accelerator.name}- and {many}"
    return spoken(sizes(accelerator))


def describe_accelerators(machine: Machine) -> str:
    """Return the offered accelerators that a machine supports: "t4 (1, 2 or 4), v100 (8)"."""
    index = load().accelerator_index
    taken = [f"{name} ({spoken(n)})" for name, n in machine.accelerators.items() if index[name].status == "offered"]
    if machine.tpu:
        taken.append(f"{machine.tpu} ({', '.join(machine.topologies)})")
    return ", ".join(taken)


def spoken(values: Iterable[object]) -> str:
    """Return the values in words: "1, 2 or 4"."""
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} or {last}" if first else last
