"""The rules of how many: counts of GPUs, cores and topologies of TPUs, and the machines that take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from slipway.pipelines.hardware.catalogue import Accelerator, Machine, chips_of, load
from slipway.pipelines.hardware.choice import base_text, takes
from slipway.pipelines.hardware.refusal import Refusal
from slipway.pipelines.hardware.request import Request


def check_gpu(request: Request, accelerator: Accelerator, machine: Machine | None) -> int:
    """The number of GPUs a replica, which some machine takes."""
    counts = load().counts(accelerator)
    if request.topology is not None:
        raise Refusal(
            f"{accelerator.title} is a GPU: it is chosen by count, not by topology.",
            allowed=spoken_sizes(accelerator),
            candidates=[
                replace(request, topology=None, count=count, machine=None)
                for count in sorted(counts, key=lambda count: abs(count - chips_of(request.topology or "1")))
            ],
        )
    if request.count is None:
        raise Refusal(
            f"{request.accelerator} is without a count: an accelerator's type and count are given together, or none.",
            allowed=spoken_sizes(accelerator),
            candidates=[
                replace(request, accelerator=accelerator.name, count=count, machine=name)
                for name in dict.fromkeys((machine.name if machine else None, None))
                for count in counts
            ],
        )
    if request.count not in counts:
        raise Refusal(
            f"No machine takes {request.count} {accelerator.name}.",
            allowed=f"{spoken(counts)} a replica",
            candidates=near_counts(request, counts),
        )
    return request.count


def near_counts(request: Request, counts: list[int]) -> Iterator[Request]:
    """The same with a count that exists: more replicas where that makes the same total, then the nearest counts."""
    asked = request.count or 0
    for count in sorted(counts, reverse=True):
        if asked > max(counts) and asked % count == 0:
            yield replace(request, count=count, replicas=(request.replicas or 1) * (asked // count))
    yield from (replace(request, count=n) for n in sorted(counts, key=lambda n: (abs(n - asked), -n)))
    yield from (replace(request, count=n, machine=None) for n in sorted(counts, key=lambda n: (abs(n - asked), -n)))


def check_tpu(request: Request, accelerator: Accelerator) -> tuple[int, str | None]:
    """The cores or chips of the one replica that a TPU job has, and the topology where it is chosen by that."""
    if request.replicas is not None and request.replicas != 1:
        raise Refusal(
            f"A TPU job has exactly one worker pool of one replica; {request.replicas} were asked for. "
            "More chips make a larger slice, not more replicas.",
            allowed=f"one replica of {spoken_sizes(accelerator)}",
            candidates=larger_slices(request, accelerator),
        )
    if accelerator.slices:
        return check_cores(request, accelerator), None
    return check_topology(request, accelerator)


def check_cores(request: Request, accelerator: Accelerator) -> int:
    """The number of cores of a generation that is chosen by them (v2, v3)."""
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
        reason = f"{request.accelerator} is without a count: an accelerator's type and count are given together."
    else:
        reason = f"There is no {accelerator.title} of {request.count} cores."
    raise Refusal(
        reason,
        allowed=spoken_sizes(accelerator),
        candidates=[replace(request, topology=None, count=count) for count in by_distance[:2]],
    )


def check_topology(request: Request, accelerator: Accelerator) -> tuple[int, str]:
    """The chips of a generation that is chosen by topology (v5e and later), and the topology."""
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
    """The topologies with the number of chips nearest to `chips`, at most three."""
    return sorted(load().topologies(accelerator), key=lambda topology: abs(chips_of(topology) - chips))[:3]


def larger_slices(request: Request, accelerator: Accelerator) -> Iterator[Request]:
    """One replica with about as many chips as the replicas asked for have together."""
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
    """The machine takes the accelerator in that count or topology."""
    if accelerator is None or takes(machine, accelerator, count, topology):
        return
    counts = machine.accelerators.get(accelerator.name, ())
    asked = topology or str(count)
    if not counts and machine.tpu != accelerator.name:
        reason = (
            f"{machine.name} does not take {accelerator.name}: it takes {describe_accelerators(machine) or 'none'}."
        )
    elif topology:
        reason = f"{machine.name} is not what {accelerator.title} {topology} is made of."
    elif count > max(counts):
        reason = f"{machine.name} is too small for {count} {accelerator.name}: it takes {spoken(counts)}."
    elif count < min(counts):
        # The service ties vCPUs and memory to the number of GPUs: a large machine needs several.
        reason = (
            f"{machine.name} is too large for {count} {accelerator.name}: its {machine.vcpus} vCPUs and "
            f"{machine.memory_gb:g} GB need {spoken(counts)} of them."
        )
    else:
        reason = f"{machine.name} does not take {asked} {accelerator.name}: it takes {spoken(counts)}."
    fitting = [m for m in load().machines_with(accelerator) if takes(m, accelerator, count, topology)]
    raise Refusal(
        reason,
        allowed=f"{base_text(accelerator, count, topology)} on {spoken(m.name for m in fitting)}",
        candidates=near_machines(request, machine, fitting, counts),
    )


def near_machines(
    request: Request, machine: Machine, fitting: list[Machine], counts: Iterable[int]
) -> Iterator[Request]:
    """The largest machine of the same series that takes it, any that does, then another count on the same machine."""
    series = machine.name.rpartition("-")[0]
    alike = sorted((m for m in fitting if m.name.rpartition("-")[0] == series), key=lambda m: m.size, reverse=True)
    yield from (replace(request, machine=m.name) for m in alike if m.size <= machine.size)
    yield replace(request, machine=None)
    yield from near_counts(request, sorted(counts) or [1])


def sizes(accelerator: Accelerator) -> list[str]:
    """An accelerator's choices, without options, as text; TPU slices by cores left out."""
    if accelerator.is_tpu and not accelerator.slices:
        return [f"{accelerator.name}-{topology}" for topology in load().topologies(accelerator)]
    return [f"{accelerator.name}{'-' if accelerator.is_tpu else 'x'}{n}" for n in load().counts(accelerator)]


def spoken_sizes(accelerator: Accelerator) -> str:
    """An accelerator's choices in words."""
    if slices := accelerator.slices:
        many = f"a multiple of {slices.multiple_of} from {slices.multiple_of} to {slices.largest:,} cores"
        return f"{spoken(sizes(accelerator))}, or {accelerator.name}- and {many}"
    return spoken(sizes(accelerator))


def describe_accelerators(machine: Machine) -> str:
    """What a machine takes of what is offered: "t4 (1, 2 or 4), v100 (8)"."""
    index = load().accelerator_index
    taken = [f"{name} ({spoken(n)})" for name, n in machine.accelerators.items() if index[name].status == "offered"]
    if machine.tpu:
        taken.append(f"{machine.tpu} ({', '.join(machine.topologies)})")
    return ", ".join(taken)


def spoken(values: Iterable[object]) -> str:
    """The values as words: "1, 2 or 4"."""
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} or {last}" if first else last
