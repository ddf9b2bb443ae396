"""`slipway config prices`: a table of list prices from the Cloud Billing Catalog API.

The API has no machines, only SKUs with descriptions in English: of a vCPU and of a GB of a family of machines, of a
GPU, and of a TPU chip (v2, v3 and v4: of eight cores). Descriptions of vCPUs, memory and GPUs are those that several
public tools match; those of TPUs are known from one, SkyPilot's sky/catalog/data_fetchers/fetch_gcp.py. Where SKUs that
they do not tell apart differ in price, it is not known. https://docs.cloud.google.com/billing/docs/reference/rest/v1
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import refusing
from slipway.components.cloud.retries import pages
from slipway.core.values import JsonObject
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.prices import PROVISIONING

COMPUTE, TPU = "6F81-5844-456A", "E000-3F24-B8AA"
SOURCE = "https://cloudbilling.googleapis.com/v1/services/{}/skus"
ABOUT = (
    "List prices in US dollars per hour, without taxes, discounts, disks and networks: [on demand, Spot], null if not "
    "known.",
    "machines: per vCPU of a machine series, without GPUs; 0 if the price of the accelerators includes the machine.",
    "accelerators: per GPU or TPU chip; a TPU chip's price includes its machine. NAME-slice is for slices of several "
    "machines.",
)
# The families of machines by the beginning of their SKUs' descriptions; "" if the price of the GPUs includes them.
FAMILIES = {
    "n1": "N1 Predefined Instance",
    "e2": "E2 Instance",
    "n2": "N2 Instance",
    "c2": "Compute optimized",
    "g2": "G2 Instance",
    "a2": "A2 Instance",
    "a3": "A3 Instance",
    "a4": "",
}
GPUS = {
    "t4": "Nvidia Tesla T4 GPU",
    "p4": "Nvidia Tesla P4 GPU",
    "v100": "Nvidia Tesla V100 GPU",
    "l4": "Nvidia L4 GPU",
    "a100": "Nvidia Tesla A100 GPU",
    "a100-80gb": "Nvidia (?:Tesla )?A100 80GB GPU",
    "h100": "Nvidia H100 80GB GPU",
    "h100-mega": "Nvidia H100 (?:80GB Mega|Mega 80GB|80GB Plus) GPU",
    "h200": "Nvidia H200 141GB GPU",
    "b200": r"(?:A4 )?Nvidia B200 \(1 gpu slice\)",
}
# Chips of a SKU's price, by a part of its description, and whether it is of slices of several machines.
TPUS = {
    "tpu-v2": ("Tpu-v2", False, 4),
    "tpu-v2-slice": ("Tpu-v2", True, 4),
    "tpu-v3": ("Tpu-v3", False, 4),
    "tpu-v3-slice": ("Tpu-v3", True, 4),
    "tpu-v4": ("Tpu-v4", True, 4),
    "tpu-v5e": ("TpuV5e", False, 1),
    "tpu-v5p": ("TpuV5p", False, 1),
    "tpu-v6e": ("TpuV6e", False, 1),
}
# Words of SKUs with another way to pay.
OTHERS = re.compile(
    r"\b(?:commitment|custom|dws|calendar|reserved|reservation|sole tenancy|premium|flex)\b", re.IGNORECASE
)
SPOT = "Spot Preemptible "
ATTACHED = "(?: attached to Spot Preemptible VMs)?"

# Prices by region and provisioning.
Rows = dict[str, dict[str, set[float]]]


def fetch(connection: Connection, say: Callable[[str], None]) -> JsonObject:
    """Return a table as `prices.json` has it, with today's date.

    Raises:
        UserError: The API refuses the call.
    """
    services = connection.api("cloudbilling", "v1").services()
    skus = []
    with refusing(connection, "read the list prices"):
        for service in (COMPUTE, TPU):
            for page in pages(services.skus(), parent=f"services/{service}", pageSize=5000):
                skus += [sku for sku in page.get("skus", ()) if _is_comparable(sku)]
                say(f"read the prices of {len(skus):,} kinds of machines and chips")
    return {
        "about": list(ABOUT),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "source": " and ".join(SOURCE.format(service) for service in (COMPUTE, TPU)),
        **table_of(skus),
    }


def table_of(skus: Iterable[JsonObject]) -> JsonObject:
    """Return the prices of machines and accelerators by region from SKUs as the API describes them."""
    every = [sku for sku in skus if _is_comparable(sku)]
    accelerators = {name: _prices(_described(every, f"{text}{ATTACHED}")) for name, text in GPUS.items()}
    accelerators |= {name: _prices(_of_tpu(every, *text)) for name, text in TPUS.items()}
    return {"machines": _machines(every, accelerators["b200"]), "accelerators": accelerators}


def as_text(table: JsonObject) -> str:
    """Return a table as text, with one line for each region."""
    text = json.dumps(table, indent=2)
    return re.sub(r"\[\s+([\d.a-z]+),\s+([\d.a-z]+)\s+\]", r"[\1, \2]", text) + "\n"


def changes(before: JsonObject, after: JsonObject) -> list[str]:
    """Return a line for each price of accelerators and machines that differs between two tables."""
    lines = []
    for kind in ("machines", "accelerators"):
        names = dict.fromkeys([*before[kind], *after[kind]])
        for name in names:
            old, new = (table[kind].get(name, {}) for table in (before, after))
            for region in sorted(old.keys() | new.keys()):
                prices = zip(
                    PROVISIONING, *(by_region.get(region, (None, None)) for by_region in (old, new)), strict=True
                )
                lines += [f"{name} in {region}, {mode}: {_shown(a)} → {_shown(b)}" for mode, a, b in prices if a != b]
    return lines


def _shown(price: float | None) -> str:
    return "not known" if price is None else f"${price:.6g}"


def _machines(skus: list[JsonObject], with_gpus: JsonObject) -> JsonObject:
    """Return the prices of a vCPU with its memory, by series: that of an hour of a core, and of its GB."""
    prices: JsonObject = {}
    for machine in load().machines:
        text = FAMILIES.get(machine.family)
        if text == "":
            prices[machine.series] = {region: [0.0, 0.0] for region in with_gpus}
        elif text and machine.vcpus and machine.memory_gb and machine.series not in prices:
            core, memory = (_prices(_described(skus, f"{text} {part}")) for part in ("Core", "Ram"))
            ratio = machine.memory_gb / machine.vcpus
            prices[machine.series] = {
                region: [
                    None if a is None or b is None else round(a + b * ratio, 6)
                    for a, b in zip(core[region], memory[region], strict=True)
                ]
                for region in core
                if region in memory
            }
    return prices


def _described(skus: list[JsonObject], text: str) -> Iterator[JsonObject]:
    """Yield the SKUs of a text, on demand or as Spot VMs."""
    whole = re.compile(rf"(?:{SPOT})?{text} running in .+", re.IGNORECASE)
    yield from (sku for sku in skus if whole.fullmatch(sku["description"]))


def _of_tpu(skus: list[JsonObject], text: str, is_slice: bool, chips: int) -> Iterator[JsonObject]:
    for sku in skus:
        if text in sku["description"] and ("Pod" in sku["description"]) == is_slice:
            yield {**sku, "per": chips}


def _prices(skus: Iterable[JsonObject]) -> JsonObject:
    """Return [on demand, Spot] by region; a price is not known if SKUs differ in it."""
    rows: Rows = defaultdict(lambda: defaultdict(set))
    for sku in skus:
        is_spot = "Preemptible" in sku["description"] or sku["category"]["usageType"] == "Preemptible"
        for region in sku["serviceRegions"]:
            rows[region][PROVISIONING[is_spot]].add(round(_price(sku) / sku.get("per", 1), 8))
    prices = {
        region: [next(iter(row[mode])) if len(row[mode]) == 1 else None for mode in PROVISIONING]
        for region, row in sorted(rows.items())
    }
    return {region: row for region, row in prices.items() if row != [None, None]}


def _price(sku: JsonObject) -> float:
    """Return the price of an hour after any free tier, by the latest of its prices."""
    rate = sku["pricingInfo"][-1]["pricingExpression"]["tieredRates"][-1]["unitPrice"]
    return int(rate.get("units", 0)) + int(rate.get("nanos", 0)) / 1e9


def _is_comparable(sku: JsonObject) -> bool:
    """Whether it is of a machine or chip, and paid for by the hour."""
    category = sku["category"]
    is_hourly = category["resourceFamily"] == "Compute" and category["usageType"] in ("OnDemand", "Preemptible")
    return is_hourly and bool(sku.get("pricingInfo")) and not OTHERS.search(sku["description"])
