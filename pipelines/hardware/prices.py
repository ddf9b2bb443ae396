"""Prices of hardware from a dated table, and what a training costs at most by them.

The table is the project's `slipway-prices.json`, which `slipway config prices` writes, or the one beside this module.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.core.values import JsonObject
from slipway.pipelines.hardware.catalogue import Provisioning, load
from slipway.pipelines.hardware.choice import Hardware, choices
from slipway.pipelines.hardware.grammar import write_time

PRICES_FILE = Path(__file__).with_name("prices.json")
OWN_FILE = Path("slipway-prices.json")
# The columns of the table; it does not have the prices of FLEX_START.
PROVISIONING: tuple[Provisioning, ...] = ("standard", "spot")
# Of a custom job on Vertex AI: the default of Scheduling.timeout, and the tries after errors of its machines. Nothing
# says that all tries together end after the timeout.
DEFAULT_TIMEOUT = 7 * 86400
TRIES = {"standard": 1 + 3, "flex": 1 + 3, "spot": 1 + 6}
# A shorter time limit is no alternative to smaller hardware.
MIN_SECONDS = 600


def table() -> JsonObject:
    """Return the table; its key `about` describes the others.

    Raises:
        UserError: The project's own cannot be read.
    """
    project_file = in_project(OWN_FILE)
    return _read(project_file.absolute() if project_file.is_file() else PRICES_FILE)


@lru_cache(maxsize=2)
def _read(path: Path) -> JsonObject:
    try:
        prices: JsonObject = json.loads(path.read_text())
        return {"date": prices["date"], **{kind: dict(prices[kind]) for kind in ("machines", "accelerators")}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a table of prices: {error}.",
            fix=f"correct it, or mv {shlex.quote(str(path))} {path.name}.old",
        ) from None


def per_hour(hardware: Hardware, region: str) -> float | None:
    """Return the list price of all replicas per hour in US dollars; None if a part of it is not known."""
    price = _sum(_parts(hardware), region, hardware.provisioning)
    return None if price is None else hardware.replicas * price


def of_machine(
    machine: str, vcpus: int, accelerator: str | None, count: int, region: str, provisioning: Provisioning
) -> float | None:
    """Return the list price of a machine per hour in US dollars; None if a part of it is not known.

    Args:
        machine: Its type, such as g2-standard-8.
        vcpus: Its vCPUs.
        accelerator: The type of its accelerators in Vertex AI's API, such as NVIDIA_L4; None if it has none.
        count: Their number.
        region: Where it is.
        provisioning: How it is paid for.
    """
    names = [row.name for row in load().accelerators if accelerator is not None and row.type == accelerator]
    parts = [(table()["machines"].get(machine.rpartition("-")[0], {}), vcpus)]
    parts += [(table()["accelerators"].get(name, {}), count) for name in names]
    return None if accelerator is not None and not names else _sum(parts, region, provisioning)


def _sum(parts: Iterable[tuple[JsonObject, int]], region: str, provisioning: Provisioning) -> float | None:
    """Return the price of so many of each part, whose prices are given by region; None if one is not known."""
    total = 0.0
    for row, number in parts:
        known = region in row and provisioning in PROVISIONING
        price = row[region][PROVISIONING.index(provisioning)] if known else None
        if price is None:
            return None
        total += price * number
    return total


def _parts(hardware: Hardware) -> Iterator[tuple[JsonObject, int]]:
    """Yield the table's prices by region, and the number, of a replica's vCPUs and of its accelerators."""
    row, machine = hardware.accelerator_row, hardware.machine_row
    if not hardware.is_tpu:
        yield table()["machines"].get(machine.series, {}), machine.vcpus or 0
    if row is not None:
        is_slice = row.slices is not None and hardware.machines_per_replica > 1
        yield table()["accelerators"].get(f"{row.name}-slice" if is_slice else row.name, {}), hardware.chips


def regions_of(hardware: Hardware) -> list[str]:
    """Return the regions that have the hardware; if the catalogue does not list them, those with a price."""
    return sorted(hardware.regions or set.intersection(*(set(row) for row, _ in _parts(hardware))))


def dollars(amount: float) -> str:
    """Return an amount as text: "$1,234.50"."""
    return f"${amount:,.2f}"


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a training costs at most: each of up to `tries` may take `seconds`.

    `setting` is the setting of that time limit in hours; "" if it is an option of the hardware. `without` is what the
    platform adds to list prices at rates that are not known, "" if nothing; with it, all costs are lower bounds.
    `trials` is the number of trainings of a search.
    """

    hardware: Hardware
    region: str
    seconds: float
    tries: int
    setting: str = ""
    without: str = ""
    trials: int = 1

    def times(self, trials: int) -> Bill:
        """Return what a search of this many such trainings costs at most."""
        return replace(self, trials=trials)

    @property
    def date(self) -> str:
        """The date of the prices."""
        return str(table()["date"])

    @property
    def per_hour(self) -> float | None:
        """The price of all replicas in US dollars; None if it is not known."""
        return per_hour(self.hardware, self.region)

    @property
    def worst_case(self) -> float | None:
        """The price of all tries in US dollars; None if it is not known."""
        price = self.per_hour
        return None if price is None else price * self.seconds / 3600 * self.tries * self.trials

    def __str__(self) -> str:
        price, worst = self.per_hour, self.worst_case
        of = f"list prices of {self.date}"
        if price is None or worst is None:
            return f"the price of {self.hardware} in {self.region} is not known ({of})"
        least, without = ("at least ", f" without {self.without}") if self.without else ("", "")
        tries = f"{self.tries} {'tries' if self.tries > 1 else 'try'} of {write_time(round(self.seconds))}"
        tries = f"{self.trials} trials, {tries} each" if self.trials > 1 else tries
        text = f"{least}{dollars(price)} per hour in {self.region}, {dollars(worst)} in the worst case ({tries})"
        return f"{text}; {of}{without}"

    def as_dict(self) -> JsonObject:
        """Return it as plain values, for JSON; prices are None if they are not known."""
        return {
            "hardware": str(self.hardware), "region": self.region, "per_hour": self.per_hour,
            "worst_case": self.worst_case, "text": str(self),
        }  # fmt: skip

    def check(
        self, budget: float | None, spent: float = 0.0, setting: Literal["budget", "budget_per_month"] = "budget"
    ) -> None:
        """Refuse a training whose worst case exceeds what is left of a budget in US dollars, after `spent` of it.

        Raises:
            UserError: It does, or the price is not known.
        """
        worst = self.worst_case
        if budget is None or (worst is not None and worst + spent <= budget):
            return
        if worst is None:
            raise UserError(
                f"The budget cannot be checked: {self}.",
                setting=setting,
                value=budget,
                fix=f"--set {setting}=null, or other hardware: slipway hardware --region {self.region}",
            )
        is_month = setting == "budget_per_month"
        of = " per month" if is_month else ""
        before = "that this month's runs have cost or may still cost" if is_month else "in earlier tries of this run"
        before = f", after {dollars(spent)} {before}" if spent else ""
        near, fix = self._within(budget - spent, resumed=spent > 0 and not is_month)
        raise UserError(
            f"The training may exceed the budget of {dollars(budget)}{of}{before}: {self}.",
            setting=setting,
            value=budget,
            nearest=near,
            fix=" or ".join([*([fix] if fix else []), f"--set {setting}={int(worst + spent) + 1}"]),
        )

    def _within(self, budget: float, *, resumed: bool) -> tuple[str | None, str | None]:
        """Return the longest time limit, else the largest hardware of the same kind, within a budget.

        And the option that sets it; both None if there is none. A resumed run keeps its hardware and its options.
        """
        price = self.per_hour
        seconds = int(3600 * budget / price / self.tries / self.trials) if price else 0
        if resumed and not (self.setting and seconds >= MIN_SECONDS):
            return None, None
        if seconds >= MIN_SECONDS:
            seconds -= seconds % (3600 if seconds >= 3600 else 60)
            if self.setting:
                hours = f"{self.setting}={seconds / 3600:g}"
                return hours, f"--set {hours}"
            limited = str(replace(self.hardware, timeout=seconds))
            return limited, f"--hardware '{limited}'"
        fitting: dict[float, Hardware] = {}
        for choice in choices():
            if choice.accelerator == self.hardware.accelerator:
                size = {name: getattr(choice, name) for name in ("count", "topology", "machine")}
                per_replica = replace(self, hardware=replace(self.hardware, **size, replicas=1)).worst_case
                replicas = min(self.hardware.replicas, int(budget / per_replica)) if per_replica else 0
                if per_replica and replicas > 0:
                    fitting.setdefault(per_replica * replicas, replace(self.hardware, **size, replicas=replicas))
        if not fitting:
            return None, None
        largest = str(fitting[max(fitting)])
        return largest, f"--hardware '{largest}'"


def vertex_bill(hardware: Hardware, region: str) -> Bill:
    """Return what a training on Vertex AI costs at most, by the prices of Compute Engine and Cloud TPU."""
    return Bill(
        hardware=hardware,
        region=region,
        seconds=hardware.timeout or DEFAULT_TIMEOUT,
        tries=TRIES[hardware.provisioning],
        without="Vertex AI's fee",
    )


def facts_of(hardware: Hardware, region: str | None = None) -> JsonObject:
    """Return the prices by region, or of `region`, their date, and the tries of the worst case.

    In US dollars per hour of all replicas, None if not known; `tries` are Vertex AI's, 0 for TPUs that it lacks.
    """
    row, seconds = hardware.accelerator_row, hardware.timeout or DEFAULT_TIMEOUT
    tries = 0 if row and row.status == "tpu-vm" else TRIES[hardware.provisioning]  # not on Vertex AI
    regions: JsonObject = {}
    for name in [region] if region else regions_of(hardware):
        bill = vertex_bill(hardware, name)
        regions[name] = {mode: per_hour(replace(hardware, provisioning=mode), name) for mode in PROVISIONING}
        regions[name]["worst_case"] = bill.worst_case if tries else None
    return {"date": table()["date"], "seconds": seconds, "tries": tries, "regions": regions}


def lines_of(facts: JsonObject) -> list[str]:
    """Return the result of `facts_of` as text: a line for each region, and what the prices are."""
    if not facts["regions"]:
        return ["not known"]
    width, lines = max(map(len, facts["regions"])), []
    for name, prices in facts["regions"].items():
        standard, spot, worst = ("not known" if price is None else dollars(price) for price in prices.values())
        lines.append(f"{name:<{width}}  {standard}, Spot {spot}" + f", worst case {worst}" * (facts["tries"] > 0))
    of = f"list prices of {facts['date']}"
    if facts["tries"]:
        tries = f"{facts['tries']} tries of {write_time(facts['seconds'])}"
        of = f"lower bounds: {of} without Vertex AI's fee; worst case: {tries}"
    return [*lines, of]
