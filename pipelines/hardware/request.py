"""`Request`: a parsed choice of hardware, not yet checked; `Refusal`: why it is refused, with other requests to try."""

from __future__ import annotations

from collections.abc import Iterable
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


class Refusal(Exception):
    """Why a choice is refused, and which choices to try instead.

    Args:
        message: One sentence with the problem and its reason.
        allowed: Accepted values, in words.
        candidates: Requests to try, closest first; the first valid one is suggested to the user.
        fix: The fix, if no candidate is one.
        setting: The setting, if it is not ``hardware`` as a whole.
        value: The setting's value; default: the choice as given.
        nearest: The closest valid value, if it is not a complete choice.
    """

    def __init__(
        self,
        message: str,
        *,
        allowed: str,
        candidates: Iterable[Request] = (),
        fix: str | None = None,
        setting: str = "hardware",
        value: object = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.allowed = allowed
        self.candidates = list(candidates)
        self.fix = fix
        self.setting = setting
        self.value = value
        self.nearest = nearest
