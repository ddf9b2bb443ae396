"""Where a fault can be put into the product: statements and expressions in its functions."""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.packages import package_of

# KFP reads the source of `component.py`, projects copy the templates, and `make test-engines` tests the other engines.
EXCLUDED = (
    "component.py",
    "templates/*",
    "templates/*/*",
    "trees/template/*",
    "trees/template/*/*",
    "engines/jax/*",
    "engines/pytorch/*",
)
NEARLY_NONE = ("None", "False", "0", "''", "b''", "[]", "{}", "()")
# What a site's text becomes: `{mutated}` while the mutant is active, else `{text}`. The last two are statements.
SWITCHED = {
    "condition negated": "_mutant({number}) is (not ({text}))",
    "constant moved by one": "({mutated} if _mutant({number}) else {text})",
    "return None": "{mutated} if _mutant({number}) else ({text})",
    "call removed": "None if _mutant({number}) else {text}",
    "exception swallowed": "if not _mutant({number}): {text}",
}


@dataclass(frozen=True)
class Site:
    """One place for a fault. The fields up to `ordinal` identify it when lines have moved.

    Attributes:
        ordinal: Its index among the sites with the same file, function, operator and text.
        start, end: The offsets of its text in the file, in bytes.
    """

    file: str
    function: str
    operator: str
    text: str
    ordinal: int
    line: int
    start: int
    end: int

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        return self.file, self.function, self.operator, self.text, self.ordinal

    @property
    def mutated(self) -> str:
        """What takes the place of the text; nothing, if it is removed."""
        if self.operator == "condition negated":
            return f"not ({self.text})"
        if self.operator == "constant moved by one":
            return repr(ast.literal_eval(self.text) + 1)
        return "None" if self.operator == "return None" else ""

    def switched(self, number: int) -> str:
        """Return source that behaves as the text, or as the fault while mutant `number` is active."""
        return SWITCHED[self.operator].format(text=self.text, mutated=self.mutated, number=number)


def _faults(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Yield the operators that can be applied to a node of a function's body, and what they change of it."""
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield "condition negated", node.test
        case ast.comprehension():
            for condition in node.ifs:
                yield "condition negated", condition
        case ast.Constant() if type(node.value) in (int, float):
            yield "constant moved by one", node
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in NEARLY_NONE:
            yield "return None", value
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "call removed", node
        case ast.Raise():
            yield "exception swallowed", node
        case ast.ExceptHandler(body=[ast.Assign() | ast.Expr() | ast.Return() as statement]):
            yield "exception swallowed", statement


def _walk(node: ast.AST, function: str, inside: bool) -> Iterator[tuple[str, str, ast.expr | ast.stmt]]:
    """Yield the functions, operators and nodes of sites; `inside` tells whether the node is in a function's body."""
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            # Defaults, decorators and annotations are evaluated when the module is imported.
            function, inside = f"{function}.{node.name}".lstrip("."), not isinstance(node, ast.ClassDef)
            children = node.body if node.name != "__repr__" else []
        case ast.AnnAssign():
            children = [node.value] if node.value else []
        case ast.match_case():  # no switch in a pattern
            children = [node.guard, *node.body] if node.guard else node.body
        case ast.JoinedStr():  # Python 3.11 does not know the offsets inside
            children = []
    if inside:
        for operator, changed in _faults(node):
            yield function, operator, changed
    for child in children:
        yield from _walk(child, function, inside)


def find(file: str, source: bytes) -> Iterator[Site]:
    """Yield the sites of a file."""
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    ordinals = Counter[tuple[str, ...]]()
    for function, operator, node in _walk(ast.parse(source), "", False):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        if operator == "exception swallowed" and source[starts[node.lineno - 1] : start].strip():
            continue  # after another statement on its line, where an `if` cannot be
        text = source[start:end].decode()
        identity = file, function, operator, text
        yield Site(*identity, ordinals[identity], node.lineno, start, end)
        ordinals[identity] += 1


def product(root: Path, files: Sequence[str]) -> tuple[list[Site], dict[str, int]]:
    """Return all sites of the product's files, and the lines of its packages that have sites."""
    sites, lines = [], Counter[str]()
    for file in sorted(files):
        package = package_of(Path(file))
        if package and not any(Path(file).match(pattern) for pattern in EXCLUDED):
            source = (root / file).read_bytes()
            sites += find(file, source)
            lines[package] += source.count(b"\n")
    return sites, lines


def choose(sites: Sequence[Site], lines: dict[str, int], seed: int, count: int) -> list[Site]:
    """Choose sites that do not overlap: packages in proportion to their lines, and operators equally often."""
    draws = random.Random(seed)
    by_package: dict[str, dict[str, list[Site]]] = defaultdict(lambda: defaultdict(list))
    for site in sites:
        by_package[package_of(Path(site.file)) or ""][site.operator].append(site)
    packages = [name for name in sorted(lines) if name in by_package]
    ends = list(itertools.accumulate(lines[name] for name in packages))
    offset, chosen = draws.random(), list[Site]()
    for index in range(count):
        position = (index + offset) * ends[-1] / count
        by_operator = by_package[next(name for name, end in zip(packages, ends, strict=True) if position < end)]
        while True:
            site = draws.choice(by_operator[draws.choice(sorted(by_operator))])
            if not any(
                site.file == other.file and site.start < other.end and other.start < site.end for other in chosen
            ):
                break
        chosen.append(site)
    return sorted(chosen, key=lambda site: (site.file, site.start))
