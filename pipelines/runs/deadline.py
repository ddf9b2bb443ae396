"""How long one of several similar runs may take until it is taken for hanging, by how long the others took."""

from __future__ import annotations

import math
from collections.abc import Iterable

FACTOR = 5
LEAST_SECONDS = 600.0


def deadline(seconds: Iterable[float]) -> float:
    """Return the seconds that a run may take: a multiple of the median of others like it; infinite without others."""
    import statistics  # light commands do not need it

    known = list(seconds)
    return max(LEAST_SECONDS, FACTOR * statistics.median(known)) if known else math.inf


def sentence(seconds: float) -> str:
    """Return why a run was stopped that has taken longer than this."""
    return f"The run was stopped: it did not end within {seconds / 60:,.3g} minutes."
