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
        UserError: The data are not prepared on this machine, or a value is unknown.
    """
    from slipway.pipelines.advice.command import filters_of
    from slipway.pipelines.advice.comparison import compare
    from slipway.pipelines.advice.jobs import job_of
    from slipway.pipelines.api.existing import pandas_module
    from slipway.pipelines.config.config import load
    from slipway.pipelines.hardware import command
    from slipway.pipelines.terminal import say

    configuration = load(Path(config), set)
    command.listing(region, accelerator, configuration.train.engine)
    limits = {
        "region": region, "accelerator": accelerator, "spot": spot, "max_replicas": max_replicas, "deadline": deadline,
        "budget": budget,
    }  # fmt: skip
    filters = filters_of(configuration, limits)
    comparison = compare(configuration, job_of(configuration, "hardware()"), filters, say)
    wanted = filters.deadline is not None or filters.budget is not None
    rows = [offer.as_dict() for offer in (comparison.meeting if wanted else comparison.offers)]
    return pandas_module().json_normalize(rows, sep="_")
