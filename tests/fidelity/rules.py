"""The rules of real services that the fakes enforce, read from the docstrings of this folder's tests.

`python -m tests.fidelity.rules` prints them as a table: rule, how it is known, source, test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# recorded: real traffic; reported: a public issue or post; read: documentation or source code; suspected: none of these
SOURCE = re.compile(r"Source \((recorded|reported|read|suspected)\):\s+(.+)", re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """A test, the rule (its docstring or name), how the rule is known, and where from; both "" if it does not say."""

    test: str
    text: str
    known: str
    source: str


def rules() -> Iterator[Rule]:
    """Yield the rules of all files in order."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                found = SOURCE.search(text)
                known, source = (found[1], " ".join(found[2].split())) if found else ("", "")
                rule = " ".join(text.partition("\n\n")[0].split())
                if SOURCE.match(text):
                    rule = node.name.removeprefix("test_").replace("_", " ")
                yield Rule(f"{path.stem}::{node.name}", rule, known, source)


if __name__ == "__main__":
    print("| rule | known | source | test |\n|---|---|---|---|")
    for rule in rules():
        cells = (rule.text, rule.known, rule.source, f"`{rule.test}`")
        print(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
