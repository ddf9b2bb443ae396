"""`parse`: text or a mapping to a validated `Hardware`, or an error with the closest valid choice."""

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
    """Return the hardware for `choice`: text such as ``l4x4*2``, or a mapping with Vertex's names.

    Raises:
        UserError: Vertex AI would not accept it; contains the reason and the closest valid choice.
    """
    try:
        if isinstance(choice, str):
            return resolve(read_text(choice))
        if isinstance(choice, Mapping):
            return resolve(read_mapping(choice))
        raise Refusal("Hardware must be text or a mapping with Vertex's names.", allowed="such as l4x4*2")
    except Refusal as refusal:
        raise explain(refusal, choice) from None


def explain(refusal: Refusal, given: Any) -> UserError:
    """Convert a refusal to a user error that suggests the first valid candidate."""
    near = refusal.nearest or next((str(hardware) for hardware in working(refusal.candidates)), None)
    value = refusal.value if refusal.value is not None else given
    fix = refusal.fix or (f"--hardware '{near}'" if near else "slipway hardware")
    return UserError(
        refusal.message, setting=refusal.setting, value=value, allowed=refusal.allowed, nearest=near, fix=fix
    )


def working(candidates: Iterable[Request]) -> Iterator[Hardware]:
    """Yield the hardware of valid candidates: unchanged, then with standard provisioning, then without options."""
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
