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
    return [part.strip() for part in re.split(r",(?![^()]*\))", selector) if part.strip()]


def _has_label(part: str, labels: dict[str, str]) -> bool:
    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", part):
        return (labels.get(match[1]) in [value.strip() for value in match[3].split(",")]) == (match[2] == "in")
    if match := re.fullmatch(r"([^=!]+?)\s*(==|=|!=)\s*(\S*)", part):
        return (labels.get(match[1]) == match[3]) == (match[2] != "!=")
    key, _, rest = part.removeprefix("!").partition(" ")
    if rest in ("in", "notin"):
        raise ApiError(400, "unable to parse requirement: found '' expected: '('")
    if rest or not KEY.fullmatch(key):
        raise ApiError(400, f"unable to parse requirement: found '{rest or key}'")
    return (key in labels) != part.startswith("!")


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
