"""Runs that are running now, and models that are deployed, on any platform, and what they cost per hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slipway.core.errors import UserError, lowered
from slipway.pipelines.api import starting
from slipway.pipelines.platforms.table import PLATFORMS, platform_of
from slipway.pipelines.runs.running import Running

if TYPE_CHECKING:
    from slipway.pipelines.runs.record import RunFolder


def running(folders: Iterable[RunFolder], say: Callable[[str], None]) -> Iterator[Running]:
    """Yield the runs that are running, each as its platform says, and what is deployed by the folder's files.

    `say` is told of those that cannot be asked.
    """
    for folder in folders:
        if folder.read().status == "running" and (run := _running(folder, say)):
            yield run
    for platform in PLATFORMS.values():
        try:
            yield from platform.serving()
        except UserError as error:
            say(f"{platform.title}: {lowered(error.message)}")


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
