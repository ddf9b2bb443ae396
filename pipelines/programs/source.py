"""Read a program's source, Python 2 included: the files that a module imports, and what each of their lines uses."""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# A file with more errors than these is not Python.
MAX_ERRORS = 500
PRINT = re.compile(r"^(\s*)print\b\s*(?:>>\s*[\w.]+\s*,?)?\s*(.*?),?\s*$")
EXCEPT = re.compile(r"^(\s*except\s+[^:]+?)\s*,\s*(\w+)\s*:(.*)$")


@dataclass(frozen=True)
class Use:
    """What a line uses: a name, an imported module, a string, or a call with its function's name."""

    line: int
    name: str
    kind: Literal["name", "method", "text", "variable", "module", "builtin"]
    call: ast.Call | None = None


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

    @functools.cached_property
    def uses(self) -> list[Use]:
        """Its names, calls, imports and strings; imported names are in full, with tf for tensorflow."""
        return list(_uses(list(ast.walk(self.tree))))


def read_program(root: Path, module: str) -> list[SourceFile]:
    """Return the module's file and the files below `root` that it imports, in the order in which they are found."""
    by_path: dict[Path, SourceFile] = {}
    pending = [*_files(root, module), *_files(root, f"{module}.__main__")]
    while pending:
        path = pending.pop(0)
        if path in by_path:
            continue
        by_path[path] = file = read_file(path)
        package = [*path.relative_to(root).parent.parts]
        for line, name in _imported(file.tree, package):
            files = list(_files(root, name))
            top = name.partition(".")[0]
            if package and not any(_files(root, top)) and not (root / top).is_dir() and any(_files(path.parent, top)):
                file.siblings[line] = top
                files = list(_files(path.parent, name))
            pending += files
    return list(by_path.values())


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
            if number in skipped or len(errors) > MAX_ERRORS:
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


def _uses(nodes: list[ast.AST]) -> Iterator[Use]:
    imports: dict[str, str] = {}
    defined: set[str] = set()
    inner: set[int] = set()
    called: dict[int, ast.Call] = {}
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                imports.update(_bound(node))
            case (
                ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.arg(arg=name)
            ):
                defined.add(name)
            case ast.Attribute(value=value):
                inner.add(id(value))
            case ast.Call(func=function):
                called[id(function)] = node
    imports = {**_made(nodes, imports), **imports}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)):
                yield Use(node.lineno, text, "text")
            case ast.Import() | ast.ImportFrom():
                yield from (Use(node.lineno, name, "module") for name, _ in _names(node))
            case ast.Subscript(value=value, slice=ast.Constant(value=key), ctx=ast.Load()):
                if _dotted(value)[-1] == "environ":
                    yield Use(node.lineno, str(key), "variable")
            case ast.BinOp(left=left, op=ast.RShift()) if _dotted(left) == ["print"]:
                yield Use(node.lineno, "print >>", "builtin")
            case ast.Attribute() | ast.Name() if id(node) not in inner:
                root, *parts = _dotted(node)
                name = ".".join([imports.get(root, root), *parts])
                if root in imports:
                    yield Use(node.lineno, name, "name", called.get(id(node)))
                elif parts or root not in defined:
                    yield Use(node.lineno, name, "method" if parts else "builtin", called.get(id(node)))


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield each name that a statement binds with what it is in full."""
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


def _made(nodes: Iterable[ast.AST], imports: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold an object of tf.train, whose methods are not those of a Keras model."""
    made: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            root, *parts = _dotted(node.value.func)
            name = ".".join([imports.get(root, root), *parts])
            if name.startswith("tf.train."):
                made |= {target.id: name for target in node.targets if isinstance(target, ast.Name)}
    return made


def _in_full(name: str) -> str:
    """Return a module's name with tf for tensorflow, except for TensorFlow's private packages."""
    if is_below(name, "tensorflow") and not is_below(name, "tensorflow.python"):
        return "tf" + name.removeprefix("tensorflow")
    return name


def is_below(name: str, parent: str) -> bool:
    """Return whether a dotted name is another one or is below it."""
    return name == parent or name.startswith(f"{parent}.")


def _dotted(node: ast.expr) -> list[str]:
    """Return the parts of a dotted name; an expression that is not a name, such as a call, is an empty part."""
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]
