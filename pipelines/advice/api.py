"""`slipway.hardware`: the comparison of hardware as a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def hardware(
    config: str | Path = "slipway.yaml",
    set: Iterable[str] = (),  # noqa: A002: as the command's option is called
    region: str | None = None,
    accelerator: str | None = None,
    spot: bool = False,
    max_replicas: int = 4,
    deadline: str | None = None,
    budget: float | None = None,
) -> pandas.DataFrame:
    """Compare the hardware that can train a configuration; see `slipway hardware --compare`.

    Args:
        config: The run's configuration.
        set: Settings that override it, such as "train.batch_size=256".
        region: Only what this region has.
        accelerator: Only this kind, such as "l4".
        spot: Whether Spot machines are compared.
        max_replicas: Replicas at most.
        deadline: Only what is faster, such as "6h".
        budget: Only what costs less, in US dollars.

    Returns:
        A row for each choice, the cheapest first: times in seconds, memory in bytes, prices in US dollars.

    Raises:
        UserError: pandas is not installed, the data are not prepared on this machine, or a value is unknown.
    """
    from slipway.pipelines.advice.command import compared
    from slipway.pipelines.api.existing import pandas_module
    from slipway.pipelines.config.config import load

    normalize = pandas_module().json_normalize  # before what takes long
    limits = {
        "region": region, "accelerator": accelerator, "spot": spot, "max_replicas": max_replicas, "deadline": deadline,
        "budget": budget,
    }  # fmt: skip
    comparison = compared(load(Path(config), set), limits)
    wanted = comparison.filters.deadline is not None or comparison.filters.budget is not None
    rows = [offer.as_dict() for offer in (comparison.meeting if wanted else comparison.offers)]
    return normalize(rows, sep="_")
