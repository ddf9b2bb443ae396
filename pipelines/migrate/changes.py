"""List what has to change in a program: match its source with the table of legacy APIs and the installed TensorFlow."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipway.core.noise import without_stderr
from slipway.pipelines.migrate.legacy_apis import KERAS3, LEGACY_APIS, PYTHON3, TF2, LegacyAPI
from slipway.pipelines.migrate.source import SourceFile, read_program


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


@dataclass(frozen=True)
class _Use:
    """What a line uses: a name, an imported module, a string, or a call with its function's name."""

    line: int
    name: str
    kind: Literal["name", "method", "text", "variable", "module", "builtin"]
    call: ast.Call | None = None


def changes_in(root: Path, module: str) -> list[Change]:
    """Return what has to change in a module and in the files below `root` that it imports, by file and line."""
    files = read_program(root, module)
    uses = {file.path: list(_uses(file.tree)) for file in files}
    occurring = {part for found in uses.values() for use in found for part in (use.name, *use.name.split("."))}
    rows = [row for row in LEGACY_APIS if _applies(row, occurring)]
    changes: dict[tuple[Path, str, LegacyAPI], set[int]] = {}
    for file in files:
        for use in uses[file.path]:
            for row in _matching(use, rows):
                changes.setdefault((file.path, _shown(use, row), row), set()).add(use.line)
    listed = [
        Change(str(path.relative_to(root)), tuple(sorted(lines)), found, row.why, row.replacement, row.source)
        for (path, found, row), lines in changes.items()
    ]
    listed += [change for file in files for change in _python2(file, root)]
    if files:
        name = Path(*module.split("."))
        main = name.with_suffix(".py")
        main = main if (root / main).is_file() else name / "__main__.py"
        written = {each.replacement for each in listed}
        listed += [
            Change(str(main), (1,), "the program", row.why, row.replacement, row.source)
            for row in _absent_texts(occurring)
            if row.replacement not in written
        ]
    return sorted(listed, key=lambda change: (change.path, change.lines, change.found))


def missing_outputs(files: Sequence[SourceFile]) -> list[LegacyAPI]:
    """Return the rows of what a program should write and does not name."""
    names = {use.name for file in files for use in _uses(file.tree)}
    return _absent_texts(names | {part for name in names for part in name.split(".")})


def imported_packages(files: Sequence[SourceFile]) -> set[str]:
    """Return the packages that files import anywhere, with tf for tensorflow."""
    return {use.name.partition(".")[0] for file in files for use in _uses(file.tree) if use.kind == "module"}


def literal_metrics(files: Sequence[SourceFile]) -> set[str] | None:
    """Return the metrics that all calls of slipway.training.finish name; None if one does not as a literal dict."""
    calls = [use.call for file in files for use in _uses(file.tree) if use.name == "slipway.training.finish"]
    found: set[str] = set()
    for call in calls:
        given = next(iter([*call.args, *(each.value for each in call.keywords)]), None) if call else None
        if not isinstance(given, ast.Dict) or not all(isinstance(key, ast.Constant) for key in given.keys):
            return None
        found |= {str(key.value) for key in given.keys if isinstance(key, ast.Constant)}
    return found or None


def _absent_texts(occurring: Set[str]) -> list[LegacyAPI]:
    """Return the rows for texts that a program should have, of those that do not occur in it."""
    return [
        row
        for row in LEGACY_APIS
        if row.kind == "absent" and _applies(row, occurring)
        if not any(each.endswith(row.pattern) for each in occurring)
    ]


def _python2(file: SourceFile, root: Path) -> Iterator[Change]:
    path = file.path.relative_to(root)
    for line, message in sorted(file.errors.items()):
        why = f"is not Python 3 ({message})"
        yield Change(str(path), (line,), "this line", why, "write it in Python 3", PYTHON3)
    for line, name in file.siblings.items():
        why = "is in this file's package, where only Python 2 finds it by this name"
        use = f"use from {'.'.join(path.parent.parts)} import {name}"
        yield Change(str(path), (line,), f"import {name}", why, use, PYTHON3)


def _applies(row: LegacyAPI, occurring: Set[str]) -> bool:
    return (not row.beside or row.beside in occurring) and occurring.isdisjoint(row.unless)


def _matching(use: _Use, rows: Iterable[LegacyAPI]) -> list[LegacyAPI]:
    """Return the rows that a use matches: of names, the longest, or else what the installed package does not have."""
    found = [row for row in rows if _matches(use, row)]
    named = [row for row in found if row.kind == "name"]
    if named:
        longest = max(len(row.pattern) for row in named)
        found = [row for row in found if row.kind != "name" or len(row.pattern) == longest]
    elif use.kind in ("name", "module") and (row := _absent(use.name)):
        found.append(row)
    return found


def _matches(use: _Use, row: LegacyAPI) -> bool:
    last = use.name.rpartition(".")[2]
    match row.kind:
        case "text" | "variable" | "builtin":
            return use.kind == row.kind and use.name == row.pattern
        case "module":
            return use.kind == "module" and _is_below(use.name, row.pattern)
        case "keyword":
            name, keyword = _keyword(row)
            called = last == name or _is_below(_keras(use.name), name)
            return called and use.call is not None and any(each.arg == keyword for each in use.call.keywords)
        case "method":  # a function of a module is not a method; a class is found by its last name
            if use.call is None or last != row.pattern or (use.kind != "method" and not last[0].isupper()):
                return False
        case "name":
            if use.kind not in ("name", "module") or not _is_below(_keras(use.name), row.pattern):
                return False
        case "absent":
            return False
    return not row.valid or (use.call is not None and not _is_valid(use.call, row))


def _keyword(row: LegacyAPI) -> tuple[str, str]:
    """Return the function and the keyword of a row for a keyword argument."""
    name, _, keyword = row.pattern.rstrip(")").partition("(")
    return name, keyword


def _is_below(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


def _keras(name: str) -> str:
    """Return tf.keras.… as keras.…, and every other name unchanged."""
    return name.removeprefix("tf.") if name.startswith("tf.keras.") else name


def _is_valid(call: ast.Call, row: LegacyAPI) -> bool:
    """Return whether the first argument, or the one with the row's keyword, ends in one of the valid endings."""
    named = [each.value for each in call.keywords if each.arg == row.keyword]
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


def _shown(use: _Use, row: LegacyAPI) -> str:
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
    return LegacyAPI("name", name, f"does not exist in {title} {package.__version__}", use, guide)


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


def _uses(tree: ast.Module) -> Iterator[_Use]:
    """Yield the names, calls, imports and strings of a file; imported names are in full, with tf for tensorflow."""
    nodes = list(ast.walk(tree))
    imports = dict(_imports(nodes))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    made = dict(_made(nodes, imports))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _Use(node.lineno, node.value, "text")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (_Use(node.lineno, name, "module") for name, _ in _names(node))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if _dotted(node.value)[-1] == "environ" and isinstance(node.ctx, ast.Load):
                yield _Use(node.lineno, str(node.slice.value), "variable")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift) and _dotted(node.left) == ["print"]:
            yield _Use(node.lineno, "print >>", "builtin")
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            root, *parts = _dotted(node)
            known = imports.get(root) or made.get(root)
            name = ".".join([known or root, *parts])
            if known is not None:
                yield _Use(node.lineno, name, "name", called.get(id(node)))
            elif parts:
                yield _Use(node.lineno, name, "method", called.get(id(node)))
            elif root not in defined:
                yield _Use(node.lineno, name, "builtin", called.get(id(node)))


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield each imported name with what it is in full."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for full, alias in _names(node):
                if isinstance(node, ast.ImportFrom) or alias.asname:
                    yield alias.asname or alias.name, full
                else:  # import a.b binds a
                    yield alias.name.partition(".")[0], full.partition(".")[0]


def _names(node: ast.Import | ast.ImportFrom) -> list[tuple[str, ast.alias]]:
    """Return the names that a statement imports, in full; none if they are relative."""
    if isinstance(node, ast.Import):
        return [(_in_full(alias.name), alias) for alias in node.names]
    if node.level:
        return []
    return [(_in_full(f"{node.module}.{alias.name}"), alias) for alias in node.names if alias.name != "*"]


def _made(nodes: Iterable[ast.AST], imports: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that hold an object of tf.train, whose methods are not those of a Keras model."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            root, *parts = _dotted(node.value.func)
            name = ".".join([imports.get(root, root), *parts])
            if name.startswith("tf.train."):
                yield from ((target.id, name) for target in node.targets if isinstance(target, ast.Name))


def _in_full(name: str) -> str:
    """Return a module's name with tf for tensorflow, except for TensorFlow's private packages."""
    if _is_below(name, "tensorflow") and not _is_below(name, "tensorflow.python"):
        return "tf" + name.removeprefix("tensorflow")
    return name


def _dotted(node: ast.expr) -> list[str]:
    """Return the parts of a dotted name; an expression that is not a name, such as a call, is an empty part."""
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]
