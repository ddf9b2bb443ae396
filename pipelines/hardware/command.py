"""The output of `slipway hardware`: the catalogue, or the details of one choice, as tables or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from slipway.core.cores import available_cores
from slipway.core.errors import UserError, nearest
from slipway.pipelines.hardware import this_machine
from slipway.pipelines.hardware.catalogue import (
    ENGINES,
    Accelerator,
    Machine,
    Provisioning,
    Slices,
    Status,
    load,
)
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.grammar import HERE
from slipway.pipelines.hardware.placement import nearest_region, validate_for
from slipway.pipelines.hardware.rules import parse

FEW_VCPUS = 4  # with fewer per accelerator, decoding images is rarely as fast as training


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One machine with one accelerator, or none; `regions` is None for every training region."""

    machine: str
    vcpus: int | None
    memory_gb: float | None
    accelerator: str | None
    accelerator_type: str | None
    counts: tuple[int, ...]
    topologies: dict[str, int]
    chip_memory_gb: int | None
    regions: tuple[str, ...] | None
    provisioning: tuple[Provisioning, ...]
    engines: tuple[str, ...]
    quota: str | None
    status: Status
    replacements: tuple[str, ...]
    certainty: str
    sources: tuple[str, ...]
    note: str | None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of hardware, CPUs or an accelerator, with its offers; `regions` is None for every training region."""

    accelerator: str
    title: str
    memory_gb: int | None
    sizes: tuple[str, ...]
    slices: Slices | None
    regions: tuple[str, ...] | None
    provisioning: tuple[Provisioning, ...]
    engines: tuple[str, ...]
    status: Status
    replacements: tuple[str, ...]
    offers: tuple[Offer, ...]


def show_list(
    console: Console, region: str | None = None, accelerator: str | None = None, engine: str | None = None
) -> None:
    """Print the kinds of hardware that match the filters, or the machines of one accelerator.

    Raises:
        UserError: A filter has an unknown value.
    """
    kinds = listing(region, accelerator, engine)
    if accelerator is not None:
        offers = kinds[0].offers
        console.print(_machine_table(offers), highlight=False)
        console.print(f"Details of a choice: slipway hardware '{_example(offers[0])}'", highlight=False)
        return
    console.print(f"This machine: {available_cores()} CPU cores; {_gpus_here()}", highlight=False, soft_wrap=True)
    console.print("Vertex AI:")
    console.print(_kind_table(kinds), highlight=False)
    console.print(
        f"{len(kinds)} kinds{f' in {region}' if region else ''}, as of {load().checked}. Choose GPUs as l4x4, TPUs as "
        "tpu-v5e-2x4.\nMachines of one kind: slipway hardware --accelerator l4. Details of a choice: slipway "
        "hardware 'l4x4*2'.",
        highlight=False,
        soft_wrap=True,
    )


def _gpus_here() -> str:
    try:
        gpus, count = this_machine.describe(), len(this_machine.find())
    except UserError as error:
        return f"no usable GPU: {error.message}"
    most = f" to {HERE}x{count}" if count > 1 else ""
    return f"{gpus}: --hardware {HERE}{most}" if gpus else "no GPU"


def list_as_json(region: str | None = None, accelerator: str | None = None, engine: str | None = None) -> str:
    """Return the list as JSON: the kinds, each with its offers (one per machine)."""
    return json.dumps([asdict(kind) for kind in listing(region, accelerator, engine)], indent=2)


def show_choice(console: Console, text: str, region: str | None = None, engine: str | None = None) -> None:
    """Print the details of a choice.

    Raises:
        UserError: The choice is invalid, or not available with that region or engine.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    for label, shown in _lines(_choice(text, region, engine), region):
        if shown:
            table.add_row(label, shown)
    console.print(table, highlight=False)


def _lines(hardware: Hardware, region: str | None) -> list[tuple[str, str]]:
    """Return the details of a choice as labels and texts; a text is empty if there is nothing to show."""
    machine, row = hardware.machine_row, hardware.accelerator_row
    if row is not None and row.status == "here":
        return [("hardware", str(hardware)), ("this machine", _gpus_here()), ("certainty", hardware.certainty)]
    size = f": {machine.vcpus} vCPUs, {machine.memory_gb:g} GB each" if machine.vcpus else ""
    devices = ""
    if row is not None:
        devices = (
            f"{hardware.accelerators_per_replica} {row.title} per replica, "
            f"{hardware.chips * hardware.replicas} chips in total"
        )
        if row.memory_gb:
            devices += f", {row.memory_gb} GB per chip"
        if row.cores_per_chip > 1:
            devices += f" ({row.device_memory_gb:g} GB per core)"
    quotas = [f"{needed:,} of {metric}" for metric, needed in hardware.quotas.items()]
    default = hardware.default_quota(region) if region else None
    if default is not None:
        of = row.title if row is not None else machine.family.upper()
        quotas.append(f"a new project has {default} of {of} in {region}")
    pools, scheduling = hardware.worker_pools(), hardware.scheduling()
    return [
        ("hardware", str(hardware)),
        ("replicas", str(hardware.replicas)),
        ("runtime version", row.tpu_vm.runtime_versions[0] + " with --target tpu" if row and row.tpu_vm else ""),
        ("machines", f"{hardware.replicas * hardware.machines_per_replica} x {machine.name}{size}"),
        ("accelerators", devices),
        ("worker pools", "\n".join(f"{index}: {json.dumps(pool)}" for index, pool in enumerate(pools))),
        ("scheduling", json.dumps(scheduling) if scheduling else ""),
        ("regions", "every training region" if hardware.regions is None else ", ".join(hardware.regions)),
        ("provisioning", ", ".join(hardware.provisioning_modes)),
        ("quotas", "\n".join(quotas)),
        ("engines", "\n".join([", ".join(hardware.supported_engines) or "none", *_why_not(hardware)])),
        ("certainty", hardware.certainty),
        ("note", row.note or "" if row else ""),
        ("advice", _advice(hardware) or ""),
    ]


def _why_not(hardware: Hardware) -> list[str]:
    return [why for engine in ENGINES if (why := hardware.why_not(engine))]


def _choice(text: str, region: str | None, engine: str | None) -> Hardware:
    hardware = parse(text)
    validate_for(hardware, region=region, engine=engine)
    return hardware


def choice_as_json(text: str, region: str | None = None, engine: str | None = None) -> str:
    """Return the details of a choice as JSON."""
    return json.dumps(describe(text, region, engine), indent=2)


def describe(text: str, region: str | None = None, engine: str | None = None) -> dict[str, object]:
    """Return the details of a choice as plain data; worker pools and scheduling are as sent to Vertex AI.

    Raises:
        UserError: The choice is invalid, or not available with that region or engine.
    """
    hardware = _choice(text, region, engine)
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
        "quotas": dict(hardware.quotas),
        "runtime_version": row.tpu_vm.runtime_versions[0] if row and row.tpu_vm else None,
        "default_quota": hardware.default_quota(region) if region else None,
        "engines": list(hardware.supported_engines),
        "unsupported_engines": {name: why for name in ENGINES if (why := hardware.why_not(name))},
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


def listing(region: str | None = None, accelerator: str | None = None, engine: str | None = None) -> list[Kind]:
    """Return the kinds of hardware that match the filters.

    `accelerator` (or "cpu") selects one kind. Kinds that are no longer offered are listed only without a region and
    an engine.

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
        raise UserError.unknown("engine", engine, ENGINES, setting="--engine")
    rows = (row for row in catalogue.accelerators if row.status != "here")
    kinds = [kind for row in (None, *rows) if _passes(kind := _kind(row), region, engine)]
    return kinds if accelerator is None else [_only(kinds, accelerator, region, engine)]


def _passes(kind: Kind, region: str | None, engine: str | None) -> bool:
    if region is None and engine is None:
        return True
    in_region = region is None or kind.regions is None or region in kind.regions
    return in_region and kind.status == "offered" and (engine is None or engine in kind.engines)


def _only(kinds: list[Kind], accelerator: str, region: str | None, engine: str | None) -> Kind:
    """Return the selected kind.

    Raises:
        UserError: No machine has it.
    """
    row = load().accelerator(accelerator)
    name = row.name if row else accelerator.lower()
    kind = next((kind for kind in kinds if kind.accelerator == name and kind.offers), None)
    if kind is not None:
        return kind
    known = [kind.accelerator for kind in kinds if kind.offers]
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


def _kind(row: Accelerator | None) -> Kind:
    """Return the kind of an accelerator, or of the machines without one."""
    catalogue = load()
    if row is None:
        machines = [machine for machine in catalogue.machines if catalogue.family(machine)]
        title = f"machines {' '.join(family.name for family in catalogue.families)}"
    else:
        machines, title = catalogue.machines_with(row), row.title
    return Kind(
        accelerator=row.name if row else "cpu",
        title=title,
        memory_gb=row.memory_gb if row else None,
        sizes=tuple(catalogue.sizes(row)) if row else (),
        slices=row.slices if row else None,
        regions=row.regions if row else None,
        provisioning=row.provisioning if row else ("standard", "spot"),
        engines=row.supported_engines if row else ENGINES,
        status=row.status if row else "offered",
        replacements=row.replacements if row else (),
        offers=tuple(_offer(machine, row) for machine in machines),
    )


def _offer(machine: Machine, row: Accelerator | None) -> Offer:
    source = row or load().family(machine)
    assert source is not None  # the catalogue's validation: a machine has an accelerator or a family
    return Offer(
        machine=machine.name,
        vcpus=machine.vcpus,
        memory_gb=machine.memory_gb,
        accelerator=row.name if row else None,
        accelerator_type=row.type if row else None,
        counts=machine.accelerators.get(row.name, ()) if row else (),
        topologies=machine.topologies,
        chip_memory_gb=row.memory_gb if row else None,
        regions=row.regions if row else None,
        provisioning=source.provisioning,
        engines=row.supported_engines if row else ENGINES,
        quota=row.quota if row else load().cpu_quotas.get(machine.family),
        status=row.status if row else "offered",
        replacements=row.replacements if row else (),
        certainty=load().certainties[machine.certainty or source.certainty],
        sources=tuple(load().sources[name] for name in source.source),
        note=row.note if row else None,
    )


def _kind_table(kinds: list[Kind]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "sizes", "GB/chip", "regions", "provisioning", "engines", "status"):
        table.add_column(column, justify="right" if column in ("GB/chip", "regions") else "left")
    for kind in kinds:
        table.add_row(
            kind.accelerator,
            _short_sizes(kind),
            str(kind.memory_gb or ""),
            "all" if kind.regions is None else str(len(kind.regions)),
            " ".join(kind.provisioning),
            "all" if len(kind.engines) == len(ENGINES) else " ".join(kind.engines) or "none",
            kind.status + (f", now {kind.replacements[0]}" if kind.replacements and kind.status != "offered" else ""),
        )
    return table


def _short_sizes(kind: Kind) -> str:
    """Return abbreviated sizes: "1 2 4 8", "8 32 … 512", "1x1 … 16x16"."""
    if kind.status != "offered":
        return ""
    if kind.slices:
        return " ".join([*kind.sizes, str(kind.slices.multiple_of), "…", str(kind.slices.largest)])
    return " ".join(kind.sizes if len(kind.sizes) <= 5 else (kind.sizes[0], "…", kind.sizes[-1]))


def _machine_table(offers: tuple[Offer, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("machine", "vCPUs", "memory GB", "sizes", "provisioning", "status"):
        table.add_column(column, justify="right" if column in ("vCPUs", "memory GB") else "left")
    for offer in offers:
        supported = map(str, offer.topologies or offer.counts)
        table.add_row(
            offer.machine,
            str(offer.vcpus or "?"),
            f"{offer.memory_gb:g}" if offer.memory_gb else "?",
            " ".join([offer.accelerator or "cpu", *supported]),
            " ".join(offer.provisioning),
            offer.status,
        )
    return table


def _example(offer: Offer) -> str:
    """Return a choice that runs on an offer's machine."""
    name = offer.accelerator
    if name is None:
        return f"cpu@{offer.machine}"
    size = next(iter(offer.topologies or offer.counts))
    return f"{name}{'-' if name.startswith('tpu') else 'x'}{size}@{offer.machine}"
