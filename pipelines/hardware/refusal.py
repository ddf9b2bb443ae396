"""A refused choice of hardware, with candidates to suggest instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipway.pipelines.hardware.request import Request


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
        value: Any = None,
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
