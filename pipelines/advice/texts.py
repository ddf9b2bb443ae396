"""Times and prices of trainings as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.core.durations import between
from slipway.pipelines.advice.comparison import Offer
from slipway.pipelines.hardware.estimate import Range

if TYPE_CHECKING:
    pass


def money(low: float, high: float) -> str:
    """Return a range of amounts: "$1.20 to $2.40", "below $0.01"."""
    if high < 0.01:
        return "below $0.01"
    digits = 2 if low < 100 else 0
    return f"${low:,.{digits}f} to ${high:,.{digits}f}"


def outcome(offer: Offer) -> str:
    """Return how long a training takes and what it costs: "1.5 to 3.1 h, $1.20 to $2.40 in us-central1"."""
    cost: Range | None = offer.cost
    price = "at a price that is not known" if cost is None else money(cost.low, cost.high)
    where = f" in {offer.region}" if offer.region else ""
    return f"{between(offer.seconds.low, offer.seconds.high)}, {price}{where}"
