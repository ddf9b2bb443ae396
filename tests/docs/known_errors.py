"""The tables of known errors in docs/when-a-run-fails.md: `python -m tests.docs.known_errors` writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slipway.components.cloud.known_errors.error import KnownError
from slipway.components.cloud.known_errors.program import PROGRAM
from slipway.components.cloud.known_errors.table import SERVICES

PAGE = Path(__file__).parents[2] / "docs/when-a-run-fails.md"
HEADING = "| error | meaning | fix |\n|---|---|---|\n"


class _Named(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key.upper()


def table(rows: Iterable[KnownError]) -> str:
    """Return the table of some known errors, with the names of values that the words or the run provide."""
    lines = (
        f"| {row.cause} | {row.sentence.format_map(_Named())} | {row.fix.format_map(_Named())} |\n" for row in rows
    )
    return HEADING + "".join(lines)


def text_of(page: str) -> str:
    """Return the page with its two tables written again: what services say, and what programs say."""
    before, between, after = page.split(HEADING)
    return (
        before
        + table(SERVICES)
        + "\n"
        + between.partition("\n\n")[2]
        + table(PROGRAM)
        + ("\n" + after.partition("\n\n")[2] if "\n\n" in after else "")
    )


if __name__ == "__main__":
    PAGE.write_text(text_of(PAGE.read_text()))
