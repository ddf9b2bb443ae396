"""The tables of roles in docs/permissions.md and docs/tpu.md: `python -m tests.docs.permissions` writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slipway.components.setup_access.requirements import (
    ACCOUNT,
    BUILDER,
    MACHINES,
    REQUIREMENTS,
    SUBMITTER,
    VERTEX,
    Requirement,
)

DOCS = Path(__file__).parents[2] / "docs"
HEADING = "| who | role | on | why | when |"


def pages() -> dict[Path, str]:
    """Return the table of each page."""
    on_tpu_vms = [
        row
        for row in REQUIREMENTS
        if row.principal in (SUBMITTER, MACHINES, BUILDER) and row.place != ACCOUNT and row.when != VERTEX
    ]
    return {DOCS / "permissions.md": table(REQUIREMENTS), DOCS / "tpu.md": table(on_tpu_vms)}


def table(rows: Iterable[Requirement]) -> str:
    """Return the table of some requirements."""
    lines = ("| " + " | ".join((r.principal, f"`{r.role}`", r.place, r.reason, r.when)).strip() + " |" for r in rows)
    return "\n".join((HEADING, "|---" * 5 + "|", *lines))


if __name__ == "__main__":
    for page, text in pages().items():
        before, _, rest = page.read_text().partition(HEADING)
        page.write_text(before + text + "\n\n" + rest.partition("\n\n")[2])
