"""The tables of roles in docs/vertex-reference.md and docs/tpu.md: `python -m tests.docs.permissions` writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slipway.components.setup_access.requirements import (
    ACCOUNT,
    BUILDER,
    MACHINES,
    REQUIREMENTS,
    SUBMITTER,
    TPU,
    VERTEX,
    Requirement,
)

DOCS = Path(__file__).parents[2] / "docs"
HEADING = "| who | role | on | why |"


def pages() -> dict[Path, str]:
    """Return the table of each page; rows of Cloud TPU VMs alone are on their page only."""
    on_vertex = [
        row._replace(when="" if row.when == VERTEX else row.when)
        for row in REQUIREMENTS
        if MACHINES not in (row.principal, row.place) and row.when != TPU
    ]
    on_tpu_vms = [
        row
        for row in REQUIREMENTS
        if row.principal in (SUBMITTER, MACHINES, BUILDER) and row.place != ACCOUNT and row.when != VERTEX
    ]
    return {DOCS / "vertex-reference.md": table(on_vertex), DOCS / "tpu.md": table(on_tpu_vms)}


def table(rows: Iterable[Requirement]) -> str:
    """Return the table of some requirements: each principal once, resources of one role and reason in one row."""
    places: dict[Requirement, list[str]] = {}
    for row in rows:
        places.setdefault(row._replace(place=""), []).append(row.place)
    principals = dict.fromkeys(row.principal for row in places)
    by_principal = [[row for row in places if row.principal == principal] for principal in principals]
    lines = (
        "| " + " | ".join((name, f"`{row.role}`", ", ".join(places[row]), _why(row))).lstrip() + " |"
        for roles in by_principal
        for name, row in zip((roles[0].principal, *[""] * len(roles)), roles, strict=False)
    )
    return "\n".join((HEADING, "|---" * 4 + "|", *lines))


def _why(row: Requirement) -> str:
    """Return the reason and the condition, unless the reason names it."""
    return f"{row.reason}, {row.when}" if row.when and "Dataflow" not in row.reason else row.reason


if __name__ == "__main__":
    for page, text in pages().items():
        before, _, rest = page.read_text().partition(HEADING)
        page.write_text(before + text + "\n\n" + rest.partition("\n\n")[2])
