"""Read a program's source: the files that a module imports, and their syntax trees, Python 2 included."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# A file with more errors than these is not Python.
MOST_ERRORS = 500
PRINT = re.compile(r"^(\s*)print\b\s*(?:>>\s*[\w.]+\s*,?)?\s*(.*?),?\s*$")
EXCEPT = re.compile(r"^(\s*except\s+[^:]+?)\s*,\s*(\w+)\s*:(.*)$")


@dataclass
class SourceFile:
    """A file of a program.

    `errors` are the lines that Python 3 does not parse, with its message; `siblings` those that import a module of the
    file's own package by its bare name, as Python 2 allowed, with that name.
    """

    path: Path
    tree: ast.Module
    errors: dict[int, str] = field(default_factory=dict)
    siblings: dict[int, str] = field(default_factory=dict)


def read_program(root: Path, module: str) -> list[SourceFile]:
    """Return the module's file and the files below `root` that it imports, in the order in which they are found."""
    found: dict[Path, SourceFile] = {}
    wanted = [*_files(root, module), *_files(root, f"{module}.__main__")]
    while wanted:
        path = wanted.pop(0)
        if path in found:
            continue
        found[path] = file = read_file(path)
        package = [*path.relative_to(root).parent.parts]
        for line, name in _imported(file.tree, package):
            files = list(_files(root, name))
            top = name.partition(".")[0]
            if package and not any(_files(root, top)) and not (root / top).is_dir() and any(_files(path.parent, top)):
                file.siblings[line] = top
                files = list(_files(path.parent, name))
            wanted += files
    return list(found.values())


def read_file(path: Path) -> SourceFile:
    """Return a file's syntax tree; lines of Python 2 are translated or skipped, and listed."""
    lines = path.read_text(errors="replace").replace("\0", " ").split("\n")
    errors: dict[int, str] = {}
    skipped: set[int] = set()
    while True:
        try:
            with warnings.catch_warnings(action="ignore"):
                return SourceFile(path, ast.parse("\n".join(lines) + "\n"), errors)
        except (RecursionError, MemoryError):  # of the parser's stack
            return SourceFile(path, ast.Module([], []), {1: "too deeply nested"})
        except TabError as error:
            errors[error.lineno or 1] = error.msg
            if not any("\t" in line for line in lines):
                return SourceFile(path, ast.Module([], []), errors)
            lines = [line.expandtabs() for line in lines]
        except SyntaxError as error:
            number = min(max(error.lineno or 1, 1), len(lines))
            text = lines[number - 1]
            translated = None if number in errors else _translated(text)
            errors.setdefault(number, error.msg)
            if number in skipped or len(errors) > MOST_ERRORS:
                return SourceFile(path, ast.Module([], []), errors)
            if translated is None:
                skipped.add(number)
            lines[number - 1] = translated or _skipped(text)


def _translated(line: str) -> str | None:
    """Return a line of Python 2 in Python 3, so that the names in it are found; None if it is not a known statement."""
    if (printed := PRINT.match(line)) and not printed[2].startswith("="):
        return f"{printed[1]}print({printed[2]})"
    if caught := EXCEPT.match(line):
        return f"{caught[1]} as {caught[2]}:{caught[3]}"
    return line.replace("<>", "!=") if "<>" in line else None


def _skipped(line: str) -> str:
    """Return a statement that does nothing in place of a line; a block that begins there stays one."""
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}if True:" if line.rstrip().endswith(":") else f"{indent}pass"


def _files(root: Path, module: str) -> Iterator[Path]:
    """Yield the files that the import of a dotted name runs: the packages' __init__.py, then the module's."""
    path = root
    for part in module.split("."):
        path = path / part
        if (path / "__init__.py").is_file():
            yield path / "__init__.py"
        elif path.with_name(f"{part}.py").is_file():
            yield path.with_name(f"{part}.py")


def _imported(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines and dotted names of a file's imports; `package` is the file's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [alias.name for alias in node.names if alias.name != "*"]
            yield from ((node.lineno, ".".join(filter(None, (base, name)))) for name in ("", *names))
