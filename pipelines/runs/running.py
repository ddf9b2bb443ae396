"""What is running now, and what it costs per hour."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.core.values import JsonObject


@dataclass(frozen=True)
class Running:
    """A run that is running, or a model that is deployed.

    Attributes:
        run_id: The run; of a deployed model, its endpoint and version.
        target: Its platform.
        hardware: Of its training.
        region: Where it trains; None if its platform has no regions.
        steps: Those that are running; none of a deployed model.
        seconds: Since the run was started, or the model was deployed.
        per_hour: What its training, or its replicas, cost per hour in US dollars by list prices, 0 while a run does not
            train, None if the price is not known.
        worst_case: What its training costs at most in US dollars, in all tries; None if the price is not known.
    """

    run_id: str
    target: str
    hardware: str
    region: str | None
    steps: list[str]
    seconds: float
    per_hour: float | None
    worst_case: float | None

    def as_dict(self) -> JsonObject:
        """Return it for machines."""
        return asdict(self)
