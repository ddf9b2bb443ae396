"""Selectors of labels and fields."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.kubernetes.store import ApiError, Object

FIELDS = re.compile(r"metadata\.(name|namespace)|status\.phase|spec\.nodeName|involvedObject\.\w+|reason|type")
KEY = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]*")


def matches(labels: str, fields: str, one: Object) -> bool:
    """Return whether an object has the selected labels and fields; 400 if a selector is malformed."""
    found = [_has_label(part, one["metadata"].get("labels") or {}) for part in _parts(labels)]
    return all([*found, *(_has_field(part, one) for part in _parts(fields))])


def _parts(selector: str) -> list[str]:
    return [part.strip() for part in selector.split(",") if part.strip()]


def _has_label(part: str, labels: dict[str, str]) -> bool:
    key, equals, value = part.partition("=")
    if not equals or not KEY.fullmatch(key):
        raise ApiError(501, f"the fake has only selectors of the form label=value, not {part}")
    return labels.get(key) == value


def _has_field(part: str, one: Object) -> bool:
    path, negated, wanted = part.partition("!=")
    if not negated:
        path, _, wanted = part.replace("==", "=").partition("=")
    if not FIELDS.fullmatch(path):
        raise ApiError(400, f"field label not supported: {path}", "BadRequest")
    value: Any = one
    for name in path.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    return (str(value) == wanted) != bool(negated)
