"""The output of `slipway hardware`: the catalogue, or the details of one choice, as tables or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from slipway.core.errors import UserError, nearest
from slipway.pipelines.hardware.catalogue import ENGINES, Accelerator, Machine, load
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.parsing import parse
from slipway.pipelines.hardware.placement import nearest_region, validate_for
from slipway.pipelines.hardware.sizes import sizes, spoken

FEW_VCPUS = 4  # with fewer per accelerator, decoding images is rarely as fast as training


def show_list(
    console: Console, region: str | None = None, accelerator: str | None = None, engine: str | None = None
) -> None:
    """Print the kinds of hardware that match the filters, or the machines of one accelerator.

    Raises:
        UserError: A filter has an unknown value.
    """
    kinds = listing(region, accelerator, engine)
    if accelerator is not None:
        console.print(_machine_table(kinds[0]["offers"]), highlight=False)
        console.print(f"Details of a choice: slipway hardware '{_example(kinds[0]['offers'][0])}'", highlight=False)
        return
    console.print(_kind_table(kinds), highlight=False)
    console.print(
        f"{len(kinds)} kinds{f' in {region}' if region else ''}, as of {load().checked}. Choose GPUs as l4x4, TPUs as "
        "tpu-v5e-2x4.\nMachines of one kind: slipway hardware --accelerator l4. Details of a choice: slipway "
        "hardware 'l4x4*2'.",
        highlight=False,
        soft_wrap=True,
    )


def list_as_json(region: str | None = None, accelerator: str | None = None, engine: str | None = None) -> str:
    """Return the list as JSON: the kinds, each with its offers (one per machine)."""
    return json.dumps(listing(region, accelerator, engine), indent=2)


def show_choice(console: Console, text: str, region: str | None = None, engine: str | None = None) -> None:
    """Print the details of a choice.

    Raises:
        UserError: The choice is invalid, or not available with that region or engine.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    for label, shown in _lines(describe(text, region, engine), region):
        if shown:
            table.add_row(label, shown)
    console.print(table, highlight=False)


def _lines(facts: dict[str, Any], region: str | None) -> list[tuple[str, str]]:
    """Return the details of a choice as labels and texts; a text is empty if there is nothing to show."""
    size = f": {facts['vcpus']} vCPUs, {facts['memory_gb']:g} GB each" if facts["vcpus"] else ""
    devices = f"{facts['accelerators_per_replica']} {facts['accelerator']} per replica, {facts['chips']} chips in total"
    memory = f", {facts['chip_memory_gb']} GB per chip"
    if facts["device_memory_gb"] != facts["chip_memory_gb"]:
        memory += f" ({facts['device_memory_gb']:g} GB per core)"
    quota = f"{facts['quota_needed']} of {facts['quota_metric'] or 'an unlisted quota'}"
    if facts["default_quota"] is not None:
        quota += f"; a new project has {facts['default_quota']} in {region}"
    return [
        ("hardware", facts["hardware"]),
        ("replicas", str(facts["replicas"])),
        ("machines", f"{facts['machines']} x {facts['machine']}{size}"),
        ("accelerators", devices + memory if facts["accelerator"] else ""),
        ("worker pools", "\n".join(f"{index}: {json.dumps(pool)}" for index, pool in enumerate(facts["worker_pools"]))),
        ("scheduling", json.dumps(facts["scheduling"]) if facts["scheduling"] else ""),
        ("regions", "every training region" if facts["regions"] is None else ", ".join(facts["regions"])),
        ("provisioning", ", ".join(facts["provisioning"])),
        ("quota", quota if facts["quota_needed"] else ""),
        ("engines", ", ".join(facts["engines"])),
        ("certainty", facts["certainty"]),
        ("note", facts["note"] or ""),
        ("advice", facts["advice"] or ""),
    ]


def choice_as_json(text: str, region: str | None = None, engine: str | None = None) -> str:
    """Return the details of a choice as JSON."""
    return json.dumps(describe(text, region, engine), indent=2)


def describe(text: str, region: str | None = None, engine: str | None = None) -> dict[str, Any]:
    """Return the details of a choice as plain data; worker pools and scheduling are as sent to Vertex AI.

    Raises:
        UserError: The choice is invalid, or not available with that region or engine.
    """
    hardware = parse(text)
    validate_for(hardware, region=region, engine=engine)
    machine, row = hardware.machine_row, hardware.accelerator_row
    return {
        "hardware": str(hardware),
        "machine": machine.name,
        "machines": hardware.replicas * hardware.machines_per_replica,
        "vcpus": machine.vcpus,
        "memory_gb": machine.memory_gb,
        "accelerator": row.title if row else None,
        "accelerator_type": row.type if row else None,
        "accelerators_per_replica": hardware.accelerators_per_replica,
        "replicas": hardware.replicas,
        "chips": hardware.chips * hardware.replicas,
        "chip_memory_gb": row.memory_gb if row else None,
        "device_memory_gb": row.device_memory_gb if row else None,
        "worker_pools": hardware.worker_pools(),
        "scheduling": hardware.scheduling(),
        "regions": list(hardware.regions) if hardware.regions is not None else None,
        "provisioning": list(hardware.provisioning_modes),
        "quota_metric": hardware.quota_metric,
        "quota_needed": hardware.quota_needed,
        "default_quota": hardware.default_quota(region) if region else None,
        "engines": list(row.engines) if row else list(ENGINES),
        "certainty": hardware.certainty,
        "note": row.note if row else None,
        "advice": _advice(hardware),
    }


def _advice(hardware: Hardware) -> str | None:
    """Suggest a larger machine if this one has too few vCPUs to keep its accelerators busy."""
    machine, row = hardware.machine_row, hardware.accelerator_row
    if row is None or row.is_tpu or not machine.vcpus or machine.vcpus >= FEW_VCPUS * hardware.count:
        return None
    larger = [
        other.name
        for other in load().machines_with(row)
        if (other.vcpus or 0) >= FEW_VCPUS * hardware.count and hardware.count in other.accelerators[row.name]
    ]
    if not larger:
        return None
    return (
        f"{machine.vcpus} vCPUs may be too few to feed {hardware.count} accelerators; @{larger[0]} has "
        f"{load().machine_index[larger[0]].vcpus}"
    )


def listing(
    region: str | None = None, accelerator: str | None = None, engine: str | None = None
) -> list[dict[str, Any]]:
    """Return the kinds of hardware that match the filters, as plain data: CPUs and accelerators, with their offers.

    An offer is one machine with the accelerator. `accelerator` (or "cpu") selects one kind. Kinds that are no longer
    offered are listed only without a region and an engine; `regions` is None for every training region.

    Raises:
        UserError: A filter has an unknown value.
    """
    catalogue = load()
    if region is not None and region not in catalogue.regions():
        near = nearest_region(region, catalogue.regions())
        raise UserError(
            f"No accelerator is listed for the region {region}.",
            setting="--region",
            value=region,
            allowed=", ".join(catalogue.regions()),
            nearest=near,
            fix=f"--region {near}",
        )
    if engine is not None and engine not in ENGINES:
        near = nearest(engine, ENGINES) or ENGINES[0]
        raise UserError(
            f"There is no engine {engine}.",
            setting="--engine",
            value=engine,
            allowed=spoken(ENGINES),
            nearest=near,
            fix=f"--engine {near}",
        )
    kinds = [_cpu_kind(), *(_accelerator_kind(row) for row in catalogue.accelerators)]
    kinds = [kind for kind in kinds if _passes(kind, region, engine)]
    if accelerator is None:
        return kinds
    return _only(kinds, accelerator, region, engine)


def _passes(kind: dict[str, Any], region: str | None, engine: str | None) -> bool:
    if region is None and engine is None:
        return True
    in_region = region is None or kind["regions"] is None or region in kind["regions"]
    return in_region and kind["status"] == "offered" and (engine is None or engine in kind["engines"])


def _only(
    kinds: list[dict[str, Any]], accelerator: str, region: str | None, engine: str | None
) -> list[dict[str, Any]]:
    """Return the selected kind.

    Raises:
        UserError: No machine has it.
    """
    row = load().accelerator(accelerator)
    name = row.name if row else accelerator.lower()
    found = next((kind for kind in kinds if kind["accelerator"] == name), None)
    if found is None or not found["offers"]:
        known = [kind["accelerator"] for kind in kinds if kind["offers"]]
        near = nearest(name, known)
        filters = [f"in {region}"] * bool(region) + [f"for {engine}"] * bool(engine)
        raise UserError(
            f"No machine {' '.join(['has', name, *filters])}.",
            setting="--accelerator",
            value=accelerator,
            allowed=", ".join(known),
            nearest=near,
            fix=f"--accelerator {near or 'cpu'}",
        )
    return [found]


def _cpu_kind() -> dict[str, Any]:
    catalogue = load()
    machines = [machine for machine in catalogue.machines if catalogue.family(machine)]
    offers = [_offer(machine, None) for machine in machines]
    return {
        "accelerator": "cpu",
        "title": f"machines {' '.join(family.name for family in catalogue.families)}",
        "memory_gb": None,
        "sizes": [],
        "slices": None,
        "regions": None,
        "provisioning": ["standard", "spot"],
        "engines": list(ENGINES),
        "status": "offered",
        "successors": [],
        "offers": offers,
    }


def _accelerator_kind(row: Accelerator) -> dict[str, Any]:
    return {
        "accelerator": row.name,
        "title": row.title,
        "memory_gb": row.memory_gb,
        "sizes": [size.removeprefix(row.name)[1:] for size in sizes(row)],
        "slices": asdict(row.slices) if row.slices else None,
        "regions": list(row.regions),
        "provisioning": list(row.provisioning),
        "engines": list(row.engines),
        "status": row.status,
        "successors": list(row.successors),
        "offers": [_offer(machine, row) for machine in load().machines_with(row)],
    }


def _offer(machine: Machine, row: Accelerator | None) -> dict[str, Any]:
    """Return one machine with one accelerator as plain data."""
    family = load().family(machine)
    source = row or family
    assert source is not None  # the catalogue's validation: a machine has an accelerator or a family
    certainty = machine.certainty or source.certainty
    return {
        "machine": machine.name,
        "vcpus": machine.vcpus,
        "memory_gb": machine.memory_gb,
        "accelerator": row.name if row else None,
        "accelerator_type": row.type if row else None,
        "counts": list(machine.accelerators.get(row.name, ())) if row else [],
        "topologies": dict(machine.topologies),
        "chip_memory_gb": row.memory_gb if row else None,
        "regions": list(row.regions) if row else None,
        "provisioning": list(source.provisioning),
        "engines": list(row.engines) if row else list(ENGINES),
        "quota": source.quota,
        "status": row.status if row else "offered",
        "successors": list(row.successors) if row else [],
        "certainty": load().certainties[certainty],
        "sources": [load().sources[name] for name in source.source],
        "note": row.note if row else None,
    }


def _kind_table(kinds: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "sizes", "GB/chip", "regions", "provisioning", "engines", "status"):
        table.add_column(column, justify="right" if column in ("GB/chip", "regions") else "left")
    for kind in kinds:
        table.add_row(
            kind["accelerator"],
            _short_sizes(kind),
            str(kind["memory_gb"] or ""),
            "all" if kind["regions"] is None else str(len(kind["regions"])),
            " ".join(kind["provisioning"]),
            "all" if len(kind["engines"]) == len(ENGINES) else " ".join(kind["engines"]),
            kind["status"] + (f", now {kind['successors'][0]}" if kind["successors"] else ""),
        )
    return table


def _short_sizes(kind: dict[str, Any]) -> str:
    """Return abbreviated sizes: "1 2 4 8", "8 32 … 512", "1x1 … 16x16"."""
    if kind["status"] != "offered":
        return ""
    sizes = list(kind["sizes"])
    if kind["slices"]:
        sizes += [kind["slices"]["multiple_of"], "…", kind["slices"]["largest"]]
    elif len(sizes) > 5:
        sizes = [sizes[0], "…", sizes[-1]]
    return " ".join(str(size) for size in sizes)


def _machine_table(offers: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("machine", "vCPUs", "memory GB", "sizes", "provisioning", "status"):
        table.add_column(column, justify="right" if column in ("vCPUs", "memory GB") else "left")
    for offer in offers:
        taken = offer["topologies"] or offer["counts"]
        table.add_row(
            offer["machine"],
            str(offer["vcpus"] or "?"),
            f"{offer['memory_gb']:g}" if offer["memory_gb"] else "?",
            f"{offer['accelerator'] or 'cpu'} {' '.join(str(value) for value in taken)}".strip(),
            " ".join(offer["provisioning"]),
            offer["status"],
        )
    return table


def _example(offer: dict[str, Any]) -> str:
    """Return a choice that runs on an offer's machine."""
    name = offer["accelerator"]
    if name is None:
        return f"cpu@{offer['machine']}"
    size = next(iter(offer["topologies"] or offer["counts"]))
    return f"{name}{'-' if name.startswith('tpu') else 'x'}{size}@{offer['machine']}"
