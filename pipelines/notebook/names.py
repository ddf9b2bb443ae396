"""The global names that a definition's source uses, and when."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slipway.pipelines.notebook.sources import Source

_LAZY_ANNOTATIONS = "from __future__ import annotations\n"
_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")
# Names that every module has.
OF_MODULES = {"__name__", "__doc__", "__file__"}


@dataclass
class Names:
    """Global names that a definition uses.

    Attributes:
        defining: Names that are evaluated when it is defined: decorators, default values, bases, class bodies.
        running: Names that are evaluated when it runs.
        annotations: Names in annotations that are never evaluated.
        declared_global: Names that it declares as `global`.
    """

    defining: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    annotations: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)

    @property
    def all(self) -> set[str]:
        """All names whose values are needed."""
        return self.defining | self.running


def names_of(source: Source) -> Names:
    """Return the global names that a definition uses, its own among them if it is recursive."""
    names = Names()
    text = _LAZY_ANNOTATIONS + source.text if source.lazy_annotations else source.text
    _collect(symtable.symtable(text, "<captured>", "exec"), names, defining=True)
    if source.lazy_annotations:
        names.annotations = set(_annotation_names(source.node)) - names.all
    if isinstance(source.node, ast.ClassDef):
        names.defining |= _read_before_assigned(source.node)
    return names


def in_order(definitions: Mapping[str, Names], aliases: Mapping[str, str]) -> list[str]:
    """Return the names of definitions in an order in which a module can define them.

    A definition comes after those that are evaluated with it and, where that is possible, after those that these run.

    Args:
        definitions: What each of them uses.
        aliases: Other names of the definitions.
    """
    needed = {name: {aliases.get(alias, alias) for alias in names.defining} for name, names in definitions.items()}
    used = {name: {aliases.get(alias, alias) for alias in names.all} for name, names in definitions.items()}
    left, ordered = list(definitions)[::-1], list[str]()
    while left:
        ready = [name for name in left if not needed[name] & (set(left) - {name})]
        ready = ready or left  # only in a notebook that defined a name twice
        waits = {name: len(reachable(needed[name], used) & (set(left) - {name})) for name in ready}
        ordered.append(min(ready, key=lambda name: waits[name]))
        left.remove(ordered[-1])
    return ordered


def reachable(names: set[str], used: Mapping[str, set[str]]) -> set[str]:
    """Return the definitions among `names`, and those that these use, directly or not."""
    reached, left = set[str](), list(names)
    while left:
        definition = left.pop()
        if definition in used and definition not in reached:
            reached.add(definition)
            left += used[definition]
    return reached


def undefined_names(text: str) -> list[str]:
    """Return the global names that a module uses and neither it nor Python defines."""
    table, names = symtable.symtable(text, "<captured>", "exec"), Names()
    _collect(table, names, defining=True)
    defined = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return sorted(names.all - defined - set(vars(builtins)) - OF_MODULES)


def _collect(table: symtable.SymbolTable, names: Names, *, defining: bool) -> None:
    """Add the names of a scope and of those inside."""
    is_function = table.get_type() == "function"
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if is_function and symbol.is_declared_global():
            names.declared_global.add(name)
        elif symbol.is_referenced() and symbol.is_global():
            (names.defining if defining else names.running).add(name)
    for inner in table.get_children():
        now = inner.get_type() != "function" or inner.get_name() in _COMPREHENSIONS
        _collect(inner, names, defining=defining and now)


def _annotation_names(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        for annotation in (getattr(child, "annotation", None), getattr(child, "returns", None)):
            if isinstance(annotation, ast.expr):
                yield from (name.id for name in ast.walk(annotation) if isinstance(name, ast.Name))


def _read_before_assigned(node: ast.ClassDef) -> set[str]:
    """Return the names that a class body reads from outside before it assigns them itself, as in `units = units`."""
    read, assigned = set[str](), set[str]()
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            stored = {target.id for target in targets if isinstance(target, ast.Name)}
            loaded = {
                name.id for name in ast.walk(statement) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
            }
            read |= loaded & (stored - assigned)
            assigned |= stored
    return read
