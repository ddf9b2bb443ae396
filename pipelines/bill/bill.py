"""The bill of a run's training: its seconds and dollars by activity, and the setting that would have saved most."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from slipway.components.train.restarts import REPLICAS_FILE
from slipway.core import dataclass_json
from slipway.core.atomic import json_lines
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.bill.seconds import LOST, UNNAMED, Attempt, Seconds, by_activity, periods_of
from slipway.pipelines.comparison import diagnosis
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.hardware.prices import Bill as Price
from slipway.pipelines.hardware.prices import dollars
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.selection.selection import Row
from slipway.trainer.metrics import spent
from slipway.trainer.metrics.attempt import FOLDER

# The interval of checkpoints that is proposed, as a fraction of the present one; a loss is half an interval on average.
_MORE_OFTEN = 10
# What saves less, in seconds or of the whole, is not worth a change; as in trainer.metrics.spent.
_WORTH_SECONDS, _WORTH = 2.0, 0.15
# Rows with less are in the JSON only.
_SHOWN_SECONDS = 0.05


@dataclass(frozen=True)
class Saving:
    """A change that would have saved seconds or, at a lower price, dollars."""

    change: str
    seconds: float
    dollars: float | None


@dataclass(frozen=True)
class Bill:
    """The bill of a run's training.

    Attributes:
        run_id: The run.
        seconds: The seconds by activity.
        price: The price of all its machines; None if they cost nothing.
        saving: What would have saved most; None if nothing would.
    """

    run_id: str
    seconds: Seconds
    price: Price | None
    saving: Saving | None

    def cost(self, seconds: float) -> float | None:
        """Return what so many seconds cost in US dollars; None if they cost nothing, or that is not known."""
        per_hour = self.price.per_hour if self.price else None
        return None if per_hour is None else round(per_hour * seconds / 3600, 4)

    def as_dict(self) -> JsonObject:
        """Return it for machines."""
        seconds = self.seconds
        rows = [
            {
                "activity": name,
                "seconds": value,
                "fraction": round(value / seconds.total, 4),
                "dollars": self.cost(value),
            }
            for name, value in seconds.rows.items()
        ]
        return {
            "run": self.run_id,
            "seconds": round(seconds.total, 3),
            "dollars": self.cost(seconds.total),
            "named": round(seconds.named, 4),
            "lost_steps": seconds.lost_steps,
            "unpaid_seconds": round(seconds.unpaid, 3),
            "rows": rows,
            "saving": dataclass_json.plain(self.saving) if self.saving else None,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of output."""
        seconds, is_paid = self.seconds, self.price is not None
        shown = [(name, value) for name, value in seconds.rows.items() if value >= _SHOWN_SECONDS or name == UNNAMED]
        for name, value in [*shown, ("together", seconds.total)]:
            cost = self.cost(value)
            amount = "" if not is_paid else f"  {'not known' if cost is None else dollars(cost):>9}"
            steps = f"  {seconds.lost_steps:,} steps" if name == LOST else ""
            yield f"{name:<28}{value:>10,.1f} s{value / max(seconds.total, 1e-9):>8.1%}{amount}{steps}"
        if seconds.unpaid:
            yield f"{'waiting in a queue, not paid':<28}{seconds.unpaid:>10,.1f} s"
        if self.price is not None:
            without = f", without {self.price.without}" if self.price.without else ""
            yield f"by list prices of {self.price.date}{without}"
        if (saving := self.saving) is not None:
            saved = [f"{saving.seconds:,.1f} s"] if saving.seconds else []
            saved += [] if saving.dollars is None else [dollars(saving.dollars)]
            yield f"would have saved most, about {' or '.join(saved)}: {saving.change}"


def of_run(row: Row) -> Bill:
    """Return the bill of a run that has ended.

    Raises:
        UserError: It has not trained, has not ended, or was a search.
    """
    record, folder = row.record, row.folder
    logs = next(
        (path for path in (folder.path / "train" / "logs", folder.path) if (path / REPLICAS_FILE).is_file()), None
    )
    if record.status == "running" or record.searches or logs is None:
        reason = "it is still running" if record.status == "running" else "no replica has recorded its time"
        raise UserError(
            f"Run {record.run_id} has no bill: {'it was a search' if record.searches else reason}.",
            setting="RUN",
            value=f"{record.run_id} ({record.status})",
            allowed="runs that have trained and ended",
            fix="slipway list --where status=succeeded",
        )
    periods, unpaid = periods_of(json_lines((logs / REPLICAS_FILE).read_bytes()))
    has_finished = record.step("train").status == "succeeded"
    seconds = by_activity(_attempts(logs / FOLDER), periods, has_finished=has_finished, unpaid=unpaid)
    config = load(folder.configuration_file)
    price = platform_of(record.platform).bill(config) if not record.rehearsal else None
    bill = Bill(record.run_id, seconds, price, None)
    savings = [*_savings(row, config, seconds), *_cheaper(bill)]
    best = max(savings, key=lambda saving: saving.dollars or bill.cost(saving.seconds) or saving.seconds, default=None)
    return replace(bill, saving=best and replace(best, dollars=best.dollars or bill.cost(best.seconds)))


def _attempts(folder: Path) -> Iterator[Attempt]:
    for file in folder.glob("*.json"):
        for value in json_lines(file.read_bytes()):
            saved = [(step, seconds) for step, seconds in value.pop("saved")]
            yield Attempt(**value, saved=saved)


def _savings(row: Row, config: RunConfig, seconds: Seconds) -> Iterator[Saving]:
    """Yield the settings that would have saved seconds: for the lost steps, and the one that the trainer named."""
    worth, settings = max(_WORTH_SECONDS, _WORTH * seconds.total), config.train.checkpoint
    less = seconds.rows.get(LOST, 0.0) * (1 - 1 / _MORE_OFTEN)
    less -= seconds.rows.get(spent.CHECKPOINTS, 0.0) * (_MORE_OFTEN - 1)
    if less >= worth and settings.every_seconds is not None:
        yield Saving(
            f"--set train.checkpoint.every_seconds={settings.every_seconds / _MORE_OFTEN:g}", round(less, 1), None
        )
    try:
        diagnosed = diagnosis.of_run(row)
    except UserError:  # killed before its end, or a custom program
        return
    if match := re.search(r"without (.+?), it would take .+? s: (.+)", diagnosed.text):
        yield Saving(match[2], round(diagnosed.seconds[match[1]], 1), None)


def _cheaper(bill: Bill) -> Iterator[Saving]:
    """Yield Spot machines, if those that were used are not."""
    if bill.price is None or bill.price.hardware.provisioning != "standard":
        return
    spot = replace(bill.price, hardware=replace(bill.price.hardware, provisioning="spot"))
    cost, less = bill.cost(bill.seconds.total), replace(bill, price=spot).cost(bill.seconds.total)
    if cost is not None and less is not None and less < cost:
        yield Saving(f"--hardware '{spot.hardware}', which may be interrupted", 0.0, round(cost - less, 4))
