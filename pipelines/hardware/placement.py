"""Rules for hardware that depend on the region, bucket, engine or image."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from slipway.core.errors import UserError, nearest
from slipway.pipelines.hardware.catalogue import ENGINES, Accelerator, load
from slipway.pipelines.hardware.choice import Hardware, choices, default_machines
from slipway.trainer.engines import table

REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
ZONE = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]")
PREBUILT_IMAGE = re.compile(r"(?:[a-z0-9-]+-)?docker\.pkg\.dev/vertex-ai/training/([^:@/]+)(?:[:@].*)?")
# As in containers/Dockerfile; packages are locked for this version.
IMAGE_PYTHON = "3.11"
LEGACY_IMAGES = "gcr.io/cloud-ml-public/"


def validate_for(
    hardware: Hardware,
    *,
    region: str | None = None,
    engine: str | None = None,
    image: str | None = None,
    own_program: bool = False,
    today: date | None = None,
) -> None:
    """Check that hardware works with a region, engine and image; arguments that are None are not checked.

    Args:
        hardware: The choice.
        region: The job's region, such as ``us-central1``.
        engine: The training engine: tensorflow, jax or pytorch.
        image: The training container's image; None for Slipway's.
        own_program: Whether a program of the user's trains, not Slipway's trainer (`train.program`).
        today: The date for checking the image's availability; default: today.

    Raises:
        UserError: Vertex AI would refuse the job, or it could not train there.
    """
    if engine is not None:
        check_engine(hardware, engine, region, own_program=own_program, own_build=image is not None)
    if region is not None:
        check_sold(hardware)
        check_region(hardware, region, engine)
        check_reservation_zone(hardware, region)
    if image is not None:
        check_image(image, today or date.today())


def check_sold(hardware: Hardware) -> None:
    """Check that the choice names what Vertex AI has, not this machine's GPUs or what only Cloud TPU VMs have."""
    row, allowed = hardware.accelerator_row, None
    if row is not None and row.status == "here":
        kinds = [other.name for other in load().accelerators if other.status == "offered" and not other.is_tpu]
        message = f"{hardware} means GPUs of any kind on this machine; Vertex AI needs their kind."
        allowed, near = ", ".join(kinds), f"{kinds[0]}x1"
    elif row is not None and row.status == "tpu-vm":
        message = f"{row.title} is not offered for training on Vertex AI ({load().certainties[row.certainty]})."
        allowed = f"its replacement: {' or '.join(row.replacements)}"
        near = str(next(other for other in alternatives(hardware) if other.accelerator in row.replacements))
    elif hardware.machines_per_replica > 1 and hardware.provisioning == "spot":
        machines = hardware.machines_per_replica
        message = f"Vertex AI has no Spot for multi-host TPUs; {hardware} has {machines} machines."
        near = str(replace(hardware, provisioning="standard"))
    else:
        return
    fix = f"--hardware {near}" + ", or --target tpu" * hardware.is_tpu
    raise UserError(message, setting="hardware", value=str(hardware), allowed=allowed, nearest=near, fix=fix)


def check_region(hardware: Hardware, region: str, engine: str | None = None) -> None:
    """Check that the region has the accelerators; suggested alternatives support `engine`."""
    if not REGION.fullmatch(region):
        zone = ZONE.fullmatch(region)
        near = zone[1] if zone else nearest(region, load().regions())
        raise UserError(
            f"{region} is a zone; jobs run in a region." if zone else f"There is no region {region}.",
            setting="vertex.region",
            value=region,
            allowed="a region, such as us-central1",
            nearest=near,
            fix=f"--set vertex.region={near or 'us-central1'}",
        )
    regions = hardware.regions
    if regions is None or region in regions:
        return
    near = nearest_region(region, regions)
    there = next((str(other) for other in alternatives(hardware, engine) if region in (other.regions or ())), None)
    kind = f"{hardware.accelerator}{' slices' if hardware.machines_per_replica > 1 else ''}"
    raise UserError(
        f"Vertex AI has no {kind} for training in {region}.",
        setting="vertex.region",
        value=region,
        allowed=", ".join(regions),
        nearest=near,
        fix=f"--set vertex.region={near}" + (f", or --hardware '{there}' in {region}" if there else ""),
    )


def nearest_region(region: str, regions: Iterable[str]) -> str:
    """Return the region on the same continent with the most similar name; otherwise one in the United States."""
    regions = list(regions)
    continent = {"northamerica": "us"}.get(region.partition("-")[0], region.partition("-")[0])
    close = [other for other in regions if other.partition("-")[0] in (region.partition("-")[0], continent)]
    far = [other for other in regions if other.startswith("us-")]
    candidates = close or far or regions
    return nearest(region, candidates) or candidates[0]


def check_reservation_zone(hardware: Hardware, region: str) -> None:
    """Check that named reservations are in the job's region."""
    for name in hardware.reservation:
        zone = re.search(r"/zones/([^/]+)/", name)
        if zone and not zone[1].startswith(f"{region}-"):
            there = zone[1].rpartition("-")[0]
            raise UserError(
                f"The reservation {name} is in {zone[1]}, the job in {region}.",
                setting="hardware",
                value=str(hardware),
                allowed=f"a reservation in a zone of {region}",
                nearest=there,
                fix=f"--set vertex.region={there}, or reserve in {region}",
            )


def check_engine(
    hardware: Hardware, engine: str, region: str | None = None, *, own_program: bool = False, own_build: bool = False
) -> None:
    """Check that the engine trains on the hardware; `own_program` and `own_build` as in `Hardware.why_not`."""
    if engine not in ENGINES:
        raise UserError.unknown("engine", engine, ENGINES, setting="train.engine")
    reason = hardware.why_not(engine, own_program=own_program, own_build=own_build)
    if reason is None:
        return
    row = hardware.accelerator_row
    assert row is not None  # every engine trains on CPUs
    fitting = alternatives(hardware, engine)
    here = [other for other in fitting if region is None or region in (other.regions or ())]
    near = next((str(other) for other in [*here, *fitting]), None)
    engines = sorted(hardware.supported_engines, key=lambda other: table.ENGINES[other].tpus != "all")
    instead = f"--set train.engine={engines[0]}" if engines else "--set vertex.image=IMAGE with older libraries"
    raise UserError(
        reason,
        setting="train.engine",
        value=engine,
        allowed=" or ".join(engines) or "other accelerators, or an image of your own (vertex.image)",
        nearest=near,
        fix=f"--hardware '{near}', or {instead}" if near else instead,
    )


def check_python(hardware: Hardware, engine: str | None = None) -> None:
    """Check that Slipway's images have the Python version that the accelerator's libraries need."""
    row = hardware.accelerator_row
    if row is None or row.python is None:
        return
    from packaging.version import Version

    if Version(row.python) <= Version(IMAGE_PYTHON):
        return
    near = next((str(other) for other in alternatives(hardware, engine)), None)
    raise UserError(
        f"{row.title} needs Python {row.python} or later; Slipway's images have {IMAGE_PYTHON}.",
        setting="hardware",
        value=str(hardware),
        allowed=f"other accelerators, or a custom image with Python {row.python} (vertex.image)",
        nearest=near,
        fix=f"--hardware '{near}', or --set vertex.image=IMAGE",
    )


def alternatives(hardware: Hardware, engine: str | None = None) -> list[Hardware]:
    """Return other choices in the same layout that `engine` trains on, most similar kind, memory and size first.

    The same layout is as many chips per replica and replicas; of TPUs, about as many chips in total. Of the same
    accelerator they are other slices, if the engine does not train on this one.
    """
    row = hardware.accelerator_row
    if row is None:
        return []
    fits = engine is None or hardware.why_not(engine) is None
    chips = hardware.chips * hardware.replicas

    def is_alike(choice: Hardware, other: Accelerator) -> bool:
        if choice.machine != default_machines()[choice.base] or (fits and other is row):
            return False
        if other.is_tpu:
            return choice.chips <= 2 * chips or (other.slices is not None and choice.hosts == 1)
        return choice.chips == hardware.chips

    candidates = []
    for choice in choices():
        other = choice.accelerator_row
        if other is None or other.status != "offered" or not is_alike(choice, other):
            continue
        if engine is None or choice.why_not(engine) is None:
            unlikeness = (
                other.is_tpu != row.is_tpu,
                (other.slices is None) != (row.slices is None),
                abs(other.device_memory_gb - row.device_memory_gb),
                abs(choice.chips - chips),
            )
            candidates.append((unlikeness, choice))
    return [
        replace(
            choice,
            replicas=1 if choice.is_tpu else hardware.replicas,
            provisioning=hardware.provisioning if hardware.provisioning in choice.provisioning_modes else "standard",
            timeout=hardware.timeout,
            restart=hardware.restart,
        )
        for _, choice in sorted(candidates, key=lambda pair: pair[0])
    ]


def check_image(image: str, today: date) -> None:
    """Check that the image is not a Google image that is no longer available."""
    match = PREBUILT_IMAGE.fullmatch(image)
    end = load().prebuilt_images.get(match[1]) if match else None
    if image.startswith(LEGACY_IMAGES):
        message = f"{image} belongs to AI Platform Training, which was shut down on 2025-01-31."
    elif match is not None and end is not None and today > end:
        message = f"The prebuilt training image {match[1]} has not been available since {end.isoformat()}."
    else:
        return
    raise UserError(
        message,
        setting="vertex.image",
        value=image,
        allowed="a custom image; the trainer's is built from containers/",
        fix="--set vertex.image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE@DIGEST",
    )
