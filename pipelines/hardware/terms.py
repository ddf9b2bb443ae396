"""Rules for replicas, provisioning, disk, reservation and times."""

from __future__ import annotations

import re
from dataclasses import replace

from slipway.core.errors import nearest
from slipway.pipelines.hardware.catalogue import Provisioning, load
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.grammar import write_time
from slipway.pipelines.hardware.refusal import Refusal
from slipway.pipelines.hardware.request import Request

DISK_TYPES = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
DISK_GB = range(100, 64_001)
LARGEST_REPLICAS = 1_000
WEEK = 7 * 86_400
LONGEST_WAIT = 365 * 86_400
RESERVATION = re.compile(r"projects/[a-z0-9.:-]+/zones/[a-z0-9-]+/reservations/[a-z0-9-]+")


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
    if mode in (hardware.accelerator_row.provisioning if hardware.accelerator_row else ()):
        reason = f"{name} is not offered for multi-host TPUs; {hardware} has {hardware.machines_per_replica} machines."
    else:
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
    """Check that the reservation is any, none, or full resource names."""
    names = request.reservation
    if not names or names in (("any",), ("none",)) or all(RESERVATION.fullmatch(name) for name in names):
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
