"""Names that a reader can search for."""

from __future__ import annotations

from tests.docs.names import counts


def test_hardly_any_assigned_name_is_a_pronoun_or_a_riddle() -> None:
    """`python -m tests.docs.names` lists them. In the codebases that we learn from, they are 0.05 to 0.7 %."""
    total, words = counts()
    assert total > 20_000
    assert sum(few.total() for few in words.values()) <= 0.002 * total, words
