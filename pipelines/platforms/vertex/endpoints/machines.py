"""The machines of an endpoint's replicas: which ones online prediction offers, and what they draw on.

Source: https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/configure-compute
Machines with GPUs are those of the training catalogue, which has the same combinations.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.hardware import parse, prices
from slipway.pipelines.hardware.catalogue import QUOTA_PREFIX, Provisioning, load
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.quotas import PREEMPTIBLE_CPUS

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import DedicatedResources

SPOT = "+spot"
# A machine type, not hardware such as l4x1: e2-standard-4.
MACHINE_TYPE = re.compile(r"[a-z][a-z0-9]*-[a-z]+-[0-9]+[a-z]?")
_SIZES = {
    "e2-standard": (2, 4, 8, 16, 32),
    "e2-highmem": (2, 4, 8, 16),
    "e2-highcpu": (2, 4, 8, 16, 32),
    "n1-standard": (2, 4, 8, 16, 32),
    "n1-highmem": (2, 4, 8, 16, 32),
    "n1-highcpu": (2, 4, 8, 16, 32),
    "n2-standard": (2, 4, 8, 16, 32, 48, 64, 80, 96, 128),
    "n2-highmem": (2, 4, 8, 16, 32, 48, 64, 80, 96, 128),
    "n2-highcpu": (2, 4, 8, 16, 32, 48, 64, 80, 96),
    "n2d-standard": (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224),
    "n2d-highmem": (2, 4, 8, 16, 32, 48, 64, 80, 96),
    "n2d-highcpu": (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224),
    "c2-standard": (4, 8, 16, 30, 60),
    "c2d-standard": (2, 4, 8, 16, 32, 56, 112),
    "c2d-highmem": (2, 4, 8, 16, 32, 56, 112),
    "c2d-highcpu": (2, 4, 8, 16, 32, 56, 112),
    "c3-highcpu": (4, 8, 22, 44, 88, 176),
}
# Machine types without accelerators, and their vCPUs.
MACHINES = {f"{series}-{cpus}": cpus for series, sizes in _SIZES.items() for cpus in sizes}
# Metrics of serving are those of training with another name (reported: custom_model_serving_cpus,
# custom_model_serving_nvidia_l4_gpus, custom_model_serving_preemptible_nvidia_h100_gpus).
SERVING_PREFIX = "aiplatform.googleapis.com/custom_model_serving_"


@dataclass(frozen=True)
class ServingMachine:
    """The machine of a replica: its MachineSpec, whether it is a Spot VM, and its quotas; regions None for all."""

    spec: JsonObject
    spot: bool
    quotas: Counter[str]
    regions: tuple[str, ...] | None = None


def machine_of(text: str) -> ServingMachine:
    """Return the machine that the setting `machine` names.

    Raises:
        UserError: There is no such machine, or online prediction does not offer it.
    """
    name = "".join(text.lower().split())
    spot = name.endswith(SPOT)
    name = name.removesuffix(SPOT)
    if name in MACHINES:
        family = name.partition("-")[0]
        metric = PREEMPTIBLE_CPUS if spot else load().cpu_quotas.get(family, f"{family}_cpus")
        return ServingMachine({"machine_type": name}, spot, Counter({SERVING_PREFIX + metric: MACHINES[name]}))
    if MACHINE_TYPE.fullmatch(name) and not name.startswith("tpu"):
        raise _unknown(text, name)
    try:
        hardware = parse(name + SPOT * spot)
    except UserError as error:
        raise UserError(
            error.message, setting="machine", value=text, allowed=error.allowed, nearest=error.nearest
        ) from None
    return _of_hardware(text, hardware)


def _unknown(text: str, name: str) -> UserError:
    row = load().machine(name)
    if row is not None and row.accelerators:
        accelerator, counts = next(iter(row.accelerators.items()))
        near = f"{accelerator}x{counts[0]}@{name}"
        return UserError(f"{name} has GPUs: name them, too.", setting="machine", value=text, nearest=near)
    return UserError.unknown("machine type for online prediction", name, MACHINES, setting="machine")


def _of_hardware(text: str, hardware: Hardware) -> ServingMachine:
    options = {
        "a number of replicas": hardware.replicas > 1,
        "+flex": hardware.provisioning == "flex",
        "+disk": bool(hardware.disk_type or hardware.disk_gb),
        "+timeout": hardware.timeout is not None,
        "+restart": hardware.restart,
    }
    for option, is_given in options.items():
        if is_given:
            raise UserError(
                f"The machine of an endpoint cannot have {option}.",
                setting="machine",
                value=text,
                allowed="one machine with its GPUs, +spot and +reservation; min_replicas and max_replicas",
            )
    if hardware.is_tpu:
        raise UserError(
            f"Slipway's serving image has no support for TPUs: {text}.",
            setting="machine",
            value=text,
            allowed="a machine type, or GPUs such as l4x1",
        )
    if hardware.accelerator is None and hardware.machine not in MACHINES:
        raise _unknown(text, hardware.machine)
    (pool,) = hardware.worker_pools()
    quotas = Counter(
        {
            SERVING_PREFIX + metric.removeprefix(QUOTA_PREFIX): amount
            for metric, amount in hardware.quotas.items()
            if not metric.endswith("_ssd")  # known of training jobs only
        }
    )
    return ServingMachine(pool["machine_spec"], hardware.provisioning == "spot", quotas, hardware.regions)


def list_price(resources: DedicatedResources, region: str) -> float | None:
    """Return what a replica costs per hour in US dollars by Compute Engine's list prices; None if that is not known.

    Online prediction has prices of its own, which are higher.
    """
    spec, row = resources.machine_spec, load().machine(resources.machine_spec.machine_type)
    vcpus = MACHINES.get(spec.machine_type) or (row.vcpus if row else None)
    if vcpus is None:
        return None
    accelerator = spec.accelerator_type.name if spec.accelerator_count else None
    provisioning: Provisioning = "spot" if resources.spot else "standard"
    return prices.of_machine(spec.machine_type, vcpus, accelerator, spec.accelerator_count, region, provisioning)
