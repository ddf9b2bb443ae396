"""Unsafe or ambiguous YAML is rejected quickly."""

from __future__ import annotations

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.core.yaml_loader import NotYaml, load_yaml

ONES = ", ".join(["1"] * 10)
BOMB = f"a0: &a0 [{ONES}]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 8)
)  # 10^8 values
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60))
STAIRS = "".join(f"a{i}: &a{i} {'[' * 50}{f'*a{i - 1}' if i else 1}{']' * 50}\n" for i in range(80))


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: 30\nother: 1\nepochs: 1\n", ("epochs twice", "lines 1 and 3")),
        ("train:\n  steps:\n  - a: 1\n    a: 2\n", ("train.steps.0.a twice", "lines 3 and 4")),
        ("x: {a: &a 1, 'a': *a}", ("x.a twice", "line 1")),
        (BOMB, ("100,000 values", "line 5")),
        (MERGES, ("100,000 values",)),
        (STAIRS, ("100 levels",)),
        ("[" * 3_000 + "]" * 3_000, ("100 levels", "line 1")),
        ("\n".join(" " * level + "a:" for level in range(3_000)), ("100 levels", "line 101")),
        ("a: &a [1, *a]", ("*a", "contains itself")),
    ],
    ids=["twice", "twice inside", "twice quoted", "bomb", "merges", "stairs", "nested", "indented", "cycle"],
)
def test_what_would_mislead_or_never_end_is_refused_with_its_line(text: str, words: tuple[str, ...], typed: bool):
    with pytest.raises(UserError) as caught:
        load_yaml(text, "my.yaml", typed=typed)
    assert not isinstance(caught.value, NotYaml)
    assert caught.value.message.startswith("my.yaml")
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    "text", ["a: [1", "\x00", "a: *b", "a: 2026-13-45", f"a: {'9' * 5_000}", "a: !!int ''", "{[1]: 2}"]
)
def test_what_is_not_yaml_is_named(text: str):
    with pytest.raises(NotYaml, match=r"^my\.yaml"):
        load_yaml(text, "my.yaml")


def test_sound_documents_load_as_with_pyyaml():
    text = "x: &x {k: 1, l: [1, 2.5, ~]}\ny: {<<: *x, k: 2}\nz: [*x, *x]\n1: a\n'1': b\n"
    assert load_yaml(text, "my.yaml") == yaml.safe_load(text)
    assert load_yaml("a: 2.10", "my.yaml", typed=False) == {"a": "2.10"}
