"""Selectors of labels and fields."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.kubernetes.store import ApiError, Object

FIELDS = re.compile(r"metadata\.(name|namespace)|status\.phase|spec\.nodeName|involvedObject\.\w+|reason|type")


def matches(labels: str, fields: str, one: Object) -> bool:
    """Return whether an object has the selected labels and fields."""
    return all(_has_label(part, one["metadata"].get("labels") or {}) for part in _parts(labels)) and all(
        _has_field(part, one) for part in _parts(fields)
    )


def _parts(selector: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^()]*\))", selector) if part.strip()]


def _has_label(part: str, labels: dict[str, str]) -> bool:
    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", part):
        return (labels.get(match[1]) in [value.strip() for value in match[3].split(",")]) == (match[2] == "in")
    if match := re.fullmatch(r"([^=!]+?)\s*(==|=|!=)\s*(\S*)", part):
        return (labels.get(match[1]) == match[3]) == (match[2] != "!=")
    return part.removeprefix("!") in labels if not part.startswith("!") else part[1:] not in labels


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
