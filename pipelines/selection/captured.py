"""Functions that were captured from a notebook, as runs are compared by them: their constants and changed lines."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slipway.core.values import JsonObject

# Settings that name a module which `slipway.run` wrote, and such a name: NAME_HASH, and the function.
SETTINGS = ("model.builder", "train.module")
MODULE = re.compile(r"((\w+)_[0-9a-f]{8})(?::\w+)?")
# Changed lines of a function that are shown.
MAX_LINES = 2


class Captured(NamedTuple):
    """A captured module: its function's name, its constants, and the lines of its definitions."""

    name: str
    constants: Mapping[str, object]
    lines: Sequence[str]


def described(settings: Sequence[JsonObject], projects: Sequence[Path]) -> list[JsonObject]:
    """Return settings of runs, newest first, in which captured functions have names, constants and changed lines.

    NAME_HASH:NAME becomes NAME, with the lines that differ from the oldest function of that name, and each constant
    becomes a setting, such as net.WIDTH. A module that no longer exists stays as it is.
    """
    oldest: dict[str, Captured] = {}
    copies = [dict(original) for original in settings]
    for run_settings, project in zip(reversed(copies), reversed(projects), strict=True):
        for setting in SETTINGS:
            captured = _read(project, run_settings.get(setting))
            if captured is None:
                continue
            first = oldest.setdefault(captured.name, captured)
            run_settings[setting] = captured.name + _changes(first.lines, captured.lines)
            run_settings |= {f"{captured.name}.{name}": value for name, value in captured.constants.items()}
    return copies


def _read(project: Path, reference: object) -> Captured | None:
    module = MODULE.fullmatch(reference) if isinstance(reference, str) else None
    if module is None:
        return None
    try:
        text = (project / f"{module[1]}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return None
    constants, lines = dict[str, object](), list[str]()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = ast.unparse(node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            lines += (ast.get_source_segment(text, node) or "").splitlines()
    return Captured(module[2], constants, lines)


def _changes(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the lines that were added, or else removed, as words; "" if there are none."""
    differences = list(difflib.ndiff(before, after))
    for sign, word in (("+ ", "with"), ("- ", "without")):
        if changed := [line[2:].strip() for line in differences if line.startswith(sign)]:
            more = f" and {len(changed) - MAX_LINES} more lines" if len(changed) > MAX_LINES else ""
            return f" {word} {'; '.join(changed[:MAX_LINES])}{more}"
    return ""
