"""A parsed request for hardware, not yet checked against the catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.pipelines.hardware.catalogue import Provisioning


@dataclass(frozen=True)
class Request:
    """A parsed request for hardware, not yet checked against the catalogue. None means not given.

    `accelerator` is the name as written, None for `cpu`; times are in seconds.
    """

    accelerator: str | None = None
    count: int | None = None
    topology: str | None = None
    machine: str | None = None
    replicas: int | None = None
    provisioning: Provisioning | None = None
    disk_type: str | None = None
    disk_gb: int | None = None
    reservation: tuple[str, ...] = ()
    timeout: int | None = None
    wait: int | None = None
    restart: bool = False
