"""Pages of the steps: what is known only later."""

from __future__ import annotations

import pytest

from slipway.components.page import completed


@pytest.mark.parametrize(
    ("version", "cost", "said"),
    [
        ("", "", ", today"),
        ("a/3", "", ", registered as <strong>a/3</strong>, today"),
        ("a/3", "$2 & more", ", registered as <strong>a/3</strong>, today. The training cost $2 &amp; more"),
    ],
)
def test_a_report_is_completed(version: str, cost: str, said: str) -> None:
    report = b"<p>run a<!-- registered -->, today<!-- cost --></p>"
    assert completed(report, version, cost).decode() == f"<p>run a{said}</p>"
