"""Resolve a request for hardware to a valid choice, or refuse it with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from slipway.core.errors import nearest
from slipway.pipelines.hardware import terms
from slipway.pipelines.hardware.catalogue import Accelerator, Machine, chips_of, load
from slipway.pipelines.hardware.choice import Hardware, smallest_machine
from slipway.pipelines.hardware.grammar import read_base
from slipway.pipelines.hardware.refusal import Refusal
from slipway.pipelines.hardware.request import Request
from slipway.pipelines.hardware.sizes import (
    check_gpu,
    check_machine_takes,
    check_tpu,
    describe_accelerators,
    near_counts,
    near_topologies,
    sizes,
)


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
        replicas=terms.check_replicas(request),
        disk_type=request.disk_type,
        disk_gb=request.disk_gb,
        reservation=request.reservation,
        restart=request.restart,
    )
    terms.check_disk(request)
    terms.check_reservation(request)
    terms.check_times(request)
    mode = terms.check_provisioning(request, hardware)
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
    written = name if request.count is None else f"{name}x{request.count}"
    raise Refusal(
        f"There is no hardware {written[:60]}.",
        allowed="cpu, " + ", ".join(row.name for row in offered.accelerators if row.status == "offered"),
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
    if accelerator is None or accelerator.status == "offered":
        return
    reasons = {
        "retired": f"{accelerator.title} is retired",
        "not-for-training": f"{accelerator.title} is not offered for training",
        "enum-only": f"{accelerator.title} is not supported: training jobs use a topology instead",
    }
    raise Refusal(
        f"{reasons[accelerator.status]} ({load().certainties[accelerator.certainty]}).",
        allowed=f"its replacement: {' or '.join(accelerator.successors)}",
        candidates=successors(request, accelerator),
    )


def successors(request: Request, accelerator: Accelerator) -> Iterator[Request]:
    """Yield the same choice with replacement accelerators, on the named machine first, then on any other."""
    chips = chips_of(request.topology) if request.topology else (request.count or 1) // accelerator.cores_per_chip
    for name in accelerator.successors:
        successor = load().accelerator_index[name]
        for machine in dict.fromkeys((request.machine, None)):
            if successor.is_tpu:
                for topology in near_topologies(successor, chips):
                    yield replace(request, accelerator=name, topology=topology, count=None, machine=machine)
            else:
                count = 1 if request.count is None else request.count
                yield replace(request, accelerator=name, count=count, machine=machine)
    for name in accelerator.successors:
        successor = load().accelerator_index[name]
        if not successor.is_tpu:
            yield from near_counts(replace(request, accelerator=name, machine=None), load().counts(successor))


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
