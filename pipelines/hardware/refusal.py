"""A refused choice, before it is known which choice near it works."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipway.pipelines.hardware.request import Request


class Refusal(Exception):
    """Why a choice is refused, and which ones to try in its place.

    Args:
        message: One sentence: what is wrong and why.
        allowed: What would be accepted, in words.
        candidates: Requests to try, the nearest first; the first that works is named to the user.
        fix: What fixes it, where no candidate does.
        setting: The setting, where it is not the whole of ``hardware``.
        value: Its value; without it the choice as given.
        nearest: The valid value, where it is not a whole choice.
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
