"""The budget of a month: what the trainings that were started from this folder cost, and may still cost."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.hardware.prices import Bill
from slipway.pipelines.runs.record import RunFolder, folders


def labels_of(config: RunConfig, platform: str) -> dict[str, str]:
    """Return the labels of a platform's runs; none if it has no labels."""
    return dict(getattr(getattr(config, platform, None), "labels", {}))


def check_month(config: RunConfig, platform: str, bill: Bill, running: str = "") -> None:
    """Refuse a training whose worst case exceeds what is left of the month's budget.

    Args:
        config: The run's configuration.
        platform: Its platform.
        bill: What the training costs at most.
        running: The run, if it is one that exists: then only what it has cost counts of it.

    Raises:
        UserError: It does, its price is not known, or it has no such label.
    """
    if config.budget_per_month is None:
        return
    labels, name = labels_of(config, platform), config.budget_label
    if name is not None and name not in labels:
        raise UserError(
            f"The runs have no label {name}, by which their budget is divided.",
            setting="budget_label",
            value=name,
            allowed=f"a name in {platform}.labels: {', '.join(labels) or 'there is none'}",
            fix=f"--set {platform}.labels.{name}=VALUE",
        )
    label = None if name is None else (name, labels[name])
    spent = committed(folders(), datetime.now(UTC), running, label)
    bill.check(config.budget_per_month, spent, "budget_per_month")


def committed(
    run_folders: Iterable[RunFolder], now: datetime, running: str = "", label: tuple[str, str] | None = None
) -> float:
    """Return what the runs of the month of `now` have cost or may still cost in US dollars.

    Of the run `running`, only what it has cost; with `label`, only runs with this name and value.
    """
    total, month = 0.0, now.astimezone(UTC).strftime("%Y-%m")
    for folder in run_folders:
        record = folder.read()
        is_counted = label is None or label in record.labels.items()
        if is_counted and record.created.astimezone(UTC).strftime("%Y-%m") == month:
            total += record.cost.dollars if record.cost else 0.0
            if record.status == "running" and record.run_id != running:
                total += record.at_most or 0.0
    return round(total, 4)
