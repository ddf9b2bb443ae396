"""The output of `slipway hardware`: the catalogue, or the details of one choice, as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from slipway.core.cores import available_cores
from slipway.core.errors import UserError, nearest
from slipway.core.values import JsonObject
from slipway.pipelines.hardware import this_machine
from slipway.pipelines.hardware.catalogue import ENGINES, Accelerator, load
from slipway.pipelines.hardware.choice import Hardware, choices
from slipway.pipelines.hardware.grammar import HERE
from slipway.pipelines.hardware.placement import check_sold, nearest_region, validate_for
from slipway.pipelines.hardware.rules import parse

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
        offers = kinds[0]["offers"]
        console.print(_machine_table(offers))
        console.print(f"Details of a choice: slipway hardware '{_example(kinds[0])}'")
        return
    console.print(f"This machine: {available_cores()} CPU cores; {_gpus_here()}")
    console.print("Vertex AI:")
    console.print(_kind_table(kinds))
    console.print(
        f"{len(kinds)} kinds{f' in {region}' if region else ''}, as of {load().checked}. Choose GPUs as l4x4, TPUs as "
        "tpu-v5e-2x4.\nMachines of one kind: slipway hardware --accelerator l4. Details of a choice: slipway "
        "hardware 'l4x4*2'."
    )


def _gpus_here() -> str:
    try:
        gpus, count = this_machine.describe(), len(this_machine.find())
    except UserError as error:
        return f"no usable GPU: {error.message}"
    most = f" to {HERE}x{count}" if count > 1 else ""
    return f"{gpus}: --hardware {HERE}{most}" if gpus else "no GPU"


def listing(region: str | None = None, accelerator: str | None = None, engine: str | None = None) -> list[JsonObject]:
    """Return the kinds of hardware that match the filters, each with its machines as `offers`.

    `accelerator` (or "cpu") selects one kind. Kinds that are no longer offered are listed only without a region and
    an engine. The regions are None for every training region.

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
        )
    if engine is not None and engine not in ENGINES:
        raise UserError.unknown("engine", engine, ENGINES, setting="--engine")
    rows = [row for row in catalogue.accelerators if row.status != "here"]
    kinds = [_kind(row) for row in (None, *rows)]
    if region is not None or engine is not None:
        kinds = [kind for kind in kinds if kind["status"] == "offered"]
        kinds = [kind for kind in kinds if region is None or kind["regions"] is None or region in kind["regions"]]
        kinds = [kind for kind in kinds if engine is None or engine in kind["engines"]]
    return kinds if accelerator is None else [_only(kinds, accelerator, region, engine)]


def _only(kinds: list[JsonObject], accelerator: str, region: str | None, engine: str | None) -> JsonObject:
    """Return the selected kind; raise UserError if no machine has it."""
    row = load().accelerator(accelerator)
    name = row.name if row else accelerator.lower()
    known = {kind["accelerator"]: kind for kind in kinds if kind["offers"]}
    if name in known:
        return known[name]
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


def _kind(row: Accelerator | None) -> JsonObject:
    """Return the kind of an accelerator, or of the machines without one, as plain values."""
    catalogue = load()
    machines = catalogue.machines_with(row) if row else [m for m in catalogue.machines if catalogue.family(m)]
    # As the machines of CPU families are: on all engines, in every training region.
    cpu = Accelerator(
        name="cpu",
        title=f"machines {' '.join(family.name for family in catalogue.families)}",
        memory_gb=0,
        provisioning=("standard", "spot"),
        certainty="cpu",
        source=(),
    )
    of = row or cpu
    common: JsonObject = {
        "regions": list(row.regions) if row else None,
        "provisioning": list(of.provisioning),
        "engines": list(of.supported_engines),
        "status": of.status,
        "replacements": list(of.replacements),
    }
    offers = []
    for machine in machines:
        source = row or catalogue.family(machine)
        assert source is not None  # the machines without an accelerator are those of a family
        offer: JsonObject = {
            "machine": machine.name,
            "vcpus": machine.vcpus,
            "memory_gb": machine.memory_gb,
            "accelerator": row.name if row else None,
            "accelerator_type": of.type,
            "counts": list(machine.accelerators.get(of.name, ())),
            "topologies": machine.topologies,
            "chip_memory_gb": row.memory_gb if row else None,
            "quota": row.quota if row else catalogue.cpu_quotas.get(machine.family),
            "certainty": catalogue.certainties[machine.certainty or source.certainty],
            "sources": [catalogue.sources[name] for name in source.source],
            "note": of.note,
        }
        offers.append(offer | common | {"provisioning": list(source.provisioning)})
    return {
        "accelerator": of.name,
        "title": of.title,
        "memory_gb": row.memory_gb if row else None,
        "sizes": catalogue.sizes(row) if row else [],
        "slices": vars(of.slices) if of.slices else None,
        **common,
        "offers": offers,
    }


def _kind_table(kinds: list[JsonObject]) -> Table:
    rows = []
    for kind in kinds:
        engines, replacements = kind["engines"], kind["replacements"]
        now = f", now {replacements[0]}" if replacements and kind["status"] != "offered" else ""
        rows.append(
            (
                kind["accelerator"],
                _short_sizes(kind),
                str(kind["memory_gb"] or ""),
                "all" if kind["regions"] is None else str(len(kind["regions"])),
                " ".join(kind["provisioning"]),
                "all" if len(engines) == len(ENGINES) else " ".join(engines) or "none",
                kind["status"] + now,
            )
        )
    return _table(("name", "sizes", ">GB/chip", ">regions", "provisioning", "engines", "status"), rows)


def _short_sizes(kind: JsonObject) -> str:
    """Return abbreviated sizes: "1 2 4 8", "8 32 … 512", "1x1 … 16x16"."""
    sizes, slices = kind["sizes"], kind["slices"]
    if kind["status"] != "offered":
        return ""
    if slices:
        return " ".join([*sizes, str(slices["multiple_of"]), "…", str(slices["largest"])])
    return " ".join(sizes if len(sizes) <= 5 else (sizes[0], "…", sizes[-1]))


def _machine_table(offers: list[JsonObject]) -> Table:
    rows = [
        (
            offer["machine"],
            str(offer["vcpus"] or "?"),
            f"{offer['memory_gb']:g}" if offer["memory_gb"] else "?",
            " ".join([offer["accelerator"] or "cpu", *map(str, offer["topologies"] or offer["counts"])]),
            " ".join(offer["provisioning"]),
            offer["status"],
        )
        for offer in offers
    ]
    return _table(("machine", ">vCPUs", ">memory GB", "sizes", "provisioning", "status"), rows)


def _table(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    """Return a table; the columns whose names start with > are aligned to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _example(kind: JsonObject) -> str:
    """Return a choice that runs on the machine of a kind's first offer."""
    offer, row = kind["offers"][0], load().accelerator(kind["accelerator"])
    base = row.spelled(next(iter(offer["topologies"] or offer["counts"]))) if row else "cpu"
    return f"{base}@{offer['machine']}"


def show_choice(
    console: Console, text: str, region: str | None = None, engine: str | None = None, step: Sequence[str] = ()
) -> None:
    """Print the details of a choice; `step` is what its compiler says of a configuration's training step.

    Raises:
        UserError: The choice is invalid, or not available with that region or engine.
    """
    hardware = _choice(text, region, engine)
    row = hardware.accelerator_row
    lines = {"hardware": str(hardware), "this machine": _gpus_here(), "certainty": hardware.certainty}
    if row is None or row.status != "here":
        lines = _details(hardware, region)
    lines["training step"] = "\n".join(step)
    table = Table(show_header=False, box=None, pad_edge=False)
    for label, shown in lines.items():
        if shown:
            table.add_row(label, shown)
    console.print(table)


def _details(hardware: Hardware, region: str | None) -> dict[str, str]:
    """Return the details of a choice as labels and texts; a text is empty if there is nothing to show."""
    from slipway.pipelines.hardware import prices

    facts, row = _facts(hardware, region), hardware.accelerator_row
    devices = ""
    if row is not None:
        devices = f"{facts['accelerators_per_replica']} {row.title} per replica, {facts['chips']} chips in total"
        devices += f", {row.memory_gb} GB per chip" if row.memory_gb else ""
        devices += f" ({row.device_memory_gb:g} GB per core)" if row.cores_per_chip > 1 else ""
    size = f": {facts['vcpus']} vCPUs, {facts['memory_gb']:g} GB each" if facts["vcpus"] else ""
    quotas = [f"{needed:,} of {metric}" for metric, needed in facts["quotas"].items()]
    if facts["default_quota"] is not None:
        of = row.title if row is not None else hardware.machine_row.family.upper()
        quotas.append(f"a new project has {facts['default_quota']} of {of} in {region}")
    pools = [f"{index}: {json.dumps(pool)}" for index, pool in enumerate(facts["worker_pools"])]
    version, regions = facts["runtime_version"], facts["regions"]
    if facts["refused"]:
        pools, quotas, facts["scheduling"] = [], [], None
    return {
        "hardware": facts["hardware"],
        "replicas": str(facts["replicas"]),
        "runtime version": f"{version} with --target tpu" if version else "",
        "refused": "\n".join(f"with --target {target}: {why}" for target, why in facts["refused"].items()),
        "machines": f"{facts['machines']} x {facts['machine']}{size}",
        "accelerators": devices,
        "worker pools": "\n".join(pools),
        "scheduling": json.dumps(facts["scheduling"]) if facts["scheduling"] else "",
        "regions": "every training region" if regions is None else ", ".join(regions),
        "provisioning": ", ".join(facts["provisioning"]),
        "price per hour": "\n".join(prices.lines_of(facts["prices"])),
        "quotas": "\n".join(quotas),
        "engines": "\n".join([", ".join(facts["engines"]) or "none", *facts["unsupported_engines"].values()]),
        "certainty": facts["certainty"],
        "note": facts["note"] or "",
        "advice": facts["advice"] or "",
    }


def describe(text: str, region: str | None = None, engine: str | None = None) -> JsonObject:
    """Return the details of a choice as plain data; worker pools and scheduling are as sent to Vertex AI.

    Raises:
        UserError: The choice is invalid, or not available with that region or engine.
    """
    return _facts(_choice(text, region, engine), region)


def _choice(text: str, region: str | None, engine: str | None) -> Hardware:
    hardware = parse(text)
    validate_for(hardware, region=region, engine=engine)
    return hardware


def _facts(hardware: Hardware, region: str | None) -> JsonObject:
    from slipway.pipelines.hardware import prices

    machine, row = hardware.machine_row, hardware.accelerator_row
    return {
        "hardware": str(hardware),
        "machine": machine.name,
        "machines": hardware.hosts,
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
        "refused": _refusals(hardware),
        "regions": list(hardware.regions) if hardware.regions is not None else None,
        "provisioning": list(hardware.provisioning_modes),
        "prices": prices.facts_of(hardware, region),
        "quotas": dict(hardware.quotas),
        "runtime_version": row.tpu_vm.runtime_versions[0] if row and row.tpu_vm else None,
        "default_quota": hardware.default_quota(region) if region else None,
        "engines": list(hardware.supported_engines),
        "unsupported_engines": {name: why for name in ENGINES if (why := hardware.why_not(name))},
        "certainty": hardware.certainty,
        "note": hardware.doubt or (row.note if row else None),
        "advice": _advice(hardware),
    }


def _refusals(hardware: Hardware) -> dict[str, str]:
    """Return why platforms refuse a choice, by their names."""
    row, refused = hardware.accelerator_row, {}
    try:
        check_sold(hardware)
    except UserError as error:
        refused["vertex"] = f"{error.message} Closest: {error.nearest}."
    if row is not None and row.is_tpu and row.tpu_vm is None:
        refused["tpu"] = f"Cloud TPU VMs have no {row.title}."
    return refused


def _advice(hardware: Hardware) -> str | None:
    """Suggest a larger machine if this one has too few vCPUs to keep its accelerators busy."""
    vcpus, least = hardware.machine_row.vcpus, FEW_VCPUS * hardware.count
    if not vcpus or hardware.is_tpu or vcpus >= least:
        return None
    same = [choice.machine_row for choice in choices() if choice.base == hardware.base]
    larger = min((machine for machine in same if (machine.vcpus or 0) >= least), key=lambda m: m.size, default=None)
    if larger is None:
        return None
    return f"{vcpus} vCPUs may be too few to feed {hardware.count} accelerators; @{larger.name} has {larger.vcpus}"
