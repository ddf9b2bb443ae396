"""Every rule says where it is from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FILES = sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_docstring_of_every_rule_has_its_source(path: Path):
    tests = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    rules = {test.name: ast.get_docstring(test) or "" for test in tests if test.name.startswith("test_")}
    assert rules
    assert [name for name, text in rules.items() if "source" not in text.lower()] == []
