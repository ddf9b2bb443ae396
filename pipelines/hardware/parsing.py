"""`parse`: from text or a mapping to a checked choice, or one refusal with the nearest choice that works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from slipway.core.errors import UserError
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.grammar import read_mapping, read_text
from slipway.pipelines.hardware.refusal import Refusal
from slipway.pipelines.hardware.request import Request
from slipway.pipelines.hardware.rules import resolve


def parse(choice: str | Mapping[str, Any]) -> Hardware:
    """The hardware that `choice` names: text such as ``l4x4*2``, or a mapping with Vertex's own names.

    Raises:
        UserError: Vertex AI would not accept it; says why, and which choice near it works.
    """
    try:
        if isinstance(choice, str):
            return resolve(read_text(choice))
        if isinstance(choice, Mapping):
            return resolve(read_mapping(choice))
        raise Refusal("Hardware is text, or a mapping with Vertex's names.", allowed="such as l4x4*2")
    except Refusal as refusal:
        raise explain(refusal, choice) from None


def explain(refusal: Refusal, given: Any) -> UserError:
    """The refusal as the user's mistake, with the first of its candidates that works."""
    near = refusal.nearest or next((str(hardware) for hardware in working(refusal.candidates)), None)
    value = refusal.value if refusal.value is not None else given
    fix = refusal.fix or (f"--hardware '{near}'" if near else "slipway hardware lists what there is")
    return UserError(
        refusal.message, setting=refusal.setting, value=value, allowed=refusal.allowed, nearest=near, fix=fix
    )


def working(candidates: Iterable[Request]) -> Iterator[Hardware]:
    """The hardware of those candidates that work, as they are, then with ordinary provisioning and times."""
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
