"""Every rule says how it is known and where from."""

from __future__ import annotations

from tests.fidelity.rules import rules


def test_every_rule_has_its_source():
    found = [rule for rule in rules() if not rule.test.startswith("test_sources::")]
    assert found
    assert [rule.test for rule in found if not rule.source] == []
