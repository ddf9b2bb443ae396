"""Paging of list results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tests.fakes.errors import ServiceError

Thing = TypeVar("Thing")
LARGEST_PAGE = 100


def page_of(things: Sequence[Thing], size: int, token: str, largest: int = LARGEST_PAGE) -> tuple[list[Thing], str]:
    """Return one page and the token of the next ("" after the last)."""
    if token and not token.isdigit():
        raise ServiceError(400, "page_token is invalid.")
    start = int(token or 0)
    end = start + min(size or largest, largest)
    return list(things[start:end]), str(end) if end < len(things) else ""
