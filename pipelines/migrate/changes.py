"""List what has to change in a program: match its source with the table of legacy APIs and the installed TensorFlow."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

from slipway.core.noise import without_stderr
from slipway.pipelines.migrate.legacy_apis import KERAS3, LEGACY_APIS, PYTHON3, TF2, LegacyAPI
from slipway.pipelines.programs.outputs import Output, missing_outputs, occurring
from slipway.pipelines.programs.source import Use, is_below, read_program

SIBLING = "is in this file's package, where only Python 2 finds it by this name"


@dataclass(frozen=True)
class Change:
    """A place in the program that has to change."""

    path: str
    lines: tuple[int, ...]
    found: str
    why: str
    replacement: str
    source: str

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.lines))
        return f"{self.path}:{lines}: {self.found} {self.why}; {self.replacement}"


def changes_in(root: Path, module: str) -> list[Change]:
    """Return what has to change in a module and in the files below `root` that it imports, by file and line."""
    files = read_program(root, module)
    names = occurring(files)
    rows = [row for row in LEGACY_APIS if _applies(row, names)]
    changes: list[Change] = []
    for file in files:
        path = file.path.relative_to(root)
        lines: dict[tuple[str, LegacyAPI], set[int]] = {}
        for use in file.uses:
            for row in _matching(use, rows):
                lines.setdefault((_shown(use, row), row), set()).add(use.line)
        changes += [_change(path, numbers, usage, row) for (usage, row), numbers in lines.items()]
        for number, message in file.errors.items():
            why = f"is not Python 3 ({message})"
            changes.append(Change(str(path), (number,), "this line", why, "write it in Python 3", PYTHON3))
        for number, sibling in file.siblings.items():
            use_package = f"use from {'.'.join(path.parent.parts)} import {sibling}"
            changes.append(Change(str(path), (number,), f"import {sibling}", SIBLING, use_package, PYTHON3))
    if files:
        path = Path(*module.split("."))
        main = path.with_suffix(".py") if (root / path.with_suffix(".py")).is_file() else path / "__main__.py"
        written = {change.replacement for change in changes}
        absent = [row for row in missing_outputs(names) if row.replacement not in written]
        changes += [_change(main, {1}, "the program", row) for row in absent]
    return sorted(changes, key=lambda change: (change.path, change.lines, change.found))


def _change(path: Path, lines: Set[int], usage: str, row: LegacyAPI | Output) -> Change:
    return Change(str(path), tuple(sorted(lines)), usage, row.why, row.replacement, row.source)


def _applies(row: LegacyAPI, names: Set[str]) -> bool:
    return (not row.beside or row.beside in names) and names.isdisjoint(row.unless)


def _matching(use: Use, rows: Iterable[LegacyAPI]) -> list[LegacyAPI]:
    """Return the rows that a use matches: of names, the longest, or else what the installed package does not have."""
    matches = [row for row in rows if _matches(use, row)]
    named = [row for row in matches if row.kind == "name"]
    if named:
        longest = max(len(row.pattern) for row in named)
        matches = [row for row in matches if row.kind != "name" or len(row.pattern) == longest]
    elif use.kind in ("name", "module") and (row := _absent(use.name)):
        matches.append(row)
    return matches


def _matches(use: Use, row: LegacyAPI) -> bool:
    last = use.name.rpartition(".")[2]
    match row.kind:
        case "text" | "variable" | "builtin":
            return use.kind == row.kind and use.name == row.pattern
        case "module":
            return use.kind == "module" and is_below(use.name, row.pattern)
        case "keyword":
            name, keyword = _keyword(row)
            called = last == name or is_below(_keras(use.name), name)
            return called and use.call is not None and any(argument.arg == keyword for argument in use.call.keywords)
        case "method":  # a function of a module is not a method; a class is found by its last name
            if use.call is None or last != row.pattern or (use.kind != "method" and not last[0].isupper()):
                return False
        case "name":
            if use.kind not in ("name", "module") or not is_below(_keras(use.name), row.pattern):
                return False
    return not row.valid or (use.call is not None and not _is_valid(use.call, row))


def _keyword(row: LegacyAPI) -> tuple[str, str]:
    """Return the function and the keyword of a row for a keyword argument."""
    name, _, keyword = row.pattern.rstrip(")").partition("(")
    return name, keyword


def _keras(name: str) -> str:
    """Return tf.keras.… as keras.…, and every other name unchanged."""
    return name.removeprefix("tf.") if name.startswith("tf.keras.") else name


def _is_valid(call: ast.Call, row: LegacyAPI) -> bool:
    """Return whether the first argument, or the one with the row's keyword, ends in one of the valid endings."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == row.keyword]
    argument = next(iter([*named, *call.args]), None)
    return argument is not None and _text_at_end(argument).endswith(row.valid)


def _text_at_end(node: ast.expr) -> str:
    """Return the constant text with which an expression ends; "" if it is not constant."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr) and node.values:
        return _text_at_end(node.values[-1])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
        return _text_at_end(node.right)
    if isinstance(node, ast.Call):  # "…".format(…), os.path.join(…), str(…)
        formatted = isinstance(node.func, ast.Attribute) and node.func.attr == "format"
        inner = node.func.value if formatted else node.args[-1] if node.args else None  # type: ignore[attr-defined]
        return _text_at_end(inner) if inner else ""
    return ""


def _shown(use: Use, row: LegacyAPI) -> str:
    last = use.name.rpartition(".")[2]
    shown = {
        "text": repr(use.name),
        "variable": f"os.environ[{use.name!r}]",
        "keyword": f"{_keyword(row)[1]}= of {last}",
        "method": f"{last}()" if use.kind == "name" else f".{last}()",
        "module": f"import {use.name}",
    }
    return shown.get(row.kind, use.name)


@functools.cache
def _absent(name: str) -> LegacyAPI | None:
    """Return a row for a name that the installed TensorFlow or Keras does not have, or None.

    The replacement is the one of TensorFlow's own converter, tf_upgrade_v2.
    """
    if not name.startswith(("tf.", "keras.")):
        return None
    from slipway.trainer.engines.quick_import import import_tensorflow

    with without_stderr():
        import_tensorflow()
    import keras
    import tensorflow as tf
    from tensorflow.tools.compatibility.all_renames_v2 import symbol_renames

    if _has(keras if name.startswith("keras.") else tf, name):
        return None
    renamed = symbol_renames.get(name) or name.replace("tf.", "tf.compat.v1.", 1)
    package, guide = (tf, TF2) if name.startswith("tf.") and not name.startswith("tf.keras.") else (keras, KERAS3)
    use = f"use {renamed}" if package is tf and _has(tf, renamed) else f"see {guide}"
    title = "TensorFlow" if package is tf else "Keras"
    why = f"does not exist in {title} {package.__version__}"
    return LegacyAPI("name", why, guide, pattern=name, replacement=use)


def _has(package: object, name: str) -> bool:
    """Return whether a dotted name exists below its first part; what follows a class is its instances' affair."""
    value = package
    for part in name.split(".")[1:]:
        if isinstance(value, type):
            return True
        try:
            value = getattr(value, part)
        except (AttributeError, ImportError):
            return False
    return True
