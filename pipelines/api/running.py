"""Runs that are running now, on any platform, and what they cost per hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slipway.pipelines.api import starting
from slipway.pipelines.platforms.table import platform_of

if TYPE_CHECKING:
    from slipway.core.values import JsonObject
    from slipway.pipelines.runs.record import RunFolder


@dataclass(frozen=True)
class Running:
    """A run that is running.

    Attributes:
        run_id: The run.
        target: Its platform.
        hardware: Of its training.
        region: Where it trains; None if its platform has no regions.
        steps: Those that are running.
        seconds: Since the run was started.
        per_hour: What its training costs per hour in US dollars by list prices, 0 while it does not train, None if the
            price is not known.
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


def running(folders: Iterable[RunFolder], say: Callable[[str], None]) -> Iterator[Running]:
    """Yield the runs that are running, each as its platform says; `say` is told of those that cannot be asked."""
    for folder in folders:
        if folder.read().status == "running" and (found := _running(folder, say)):
            yield found


def _running(folder: RunFolder, say: Callable[[str], None]) -> Running | None:
    from slipway.pipelines.config.config import load
    from slipway.pipelines.hardware.rules import parse

    record = starting.current(folder, lambda line: say(f"{folder.run_id}: {line}"))
    if record.status != "running":
        return None
    platform = platform_of(record.platform)
    steps = [step.name for step in record.steps if step.status == "running"]
    if bill := platform.bill(load(folder.configuration_file)):  # the run may have moved
        bill = replace(bill, hardware=parse(record.hardware), region=record.region or bill.region)
    per_hour = bill.per_hour if bill and not record.searches else None  # several trials of a search may be training
    return Running(
        run_id=record.run_id,
        target=record.platform,
        hardware=record.hardware,
        region=bill.region if bill else None,
        steps=steps,
        seconds=round((datetime.now(UTC) - record.created).total_seconds(), 1),
        per_hour=0.0 if platform.trains_here or "train" not in steps else per_hour,
        worst_case=0.0 if platform.trains_here else record.at_most,
    )
