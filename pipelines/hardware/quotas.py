"""How much of Vertex AI's training quotas machines draw on, by metric: accelerators, vCPUs and boot disks.

A step of a pipeline is a custom job on an e2-standard-4, unless it asks for more CPUs or memory, and draws on the same
quotas. Source: https://docs.cloud.google.com/vertex-ai/docs/pipelines/machine-types; a step was refused for
custom_model_training_cpus (reported).
"""

from __future__ import annotations

from collections import Counter

from slipway.pipelines.hardware.catalogue import QUOTA_PREFIX, Machine, load

# In place of the catalogue's `cpu_quotas` with Spot and FLEX_START: Spot jobs with T4 on N1 and with A100 on A2 were
# refused for it (reported).
PREEMPTIBLE_CPUS = "preemptible_cpus"
# Gigabytes; named in the refusal that the page "quota-error" of the catalogue's sources quotes.
SSD = "pd_ssd"
# The defaults of a custom job's DiskSpec (google/cloud/aiplatform/v1/machine_resources.proto).
DEFAULT_DISK_TYPE = "pd-ssd"
DEFAULT_DISK_GB = 100
MAX_DISK_GB = 64_000
HYPERDISK_BY_DEFAULT = ("a3-ultragpu-8g",)
# The machine of a pipeline's step, and the most that a step can ask for, on the page above.
STEP_MACHINE = "e2-standard-4"
MAX_STEP_CPUS = 96
MAX_STEP_MEMORY_GB = 624
# "From initial experiments it seems like Vertex finds the closest e2 configuration" (reported, tensorflow/tfx#3194).
# E2 ends at 128 GB; that N1 follows is an assumption, and both draw on the same metric.
STEP_FAMILIES = ("e2", "n1")


def machine_quotas(
    machine: Machine,
    count: int = 1,
    *,
    preemptible: bool = False,
    disk_type: str | None = None,
    disk_gb: int | None = None,
) -> Counter[str]:
    """Return what `count` machines draw on for their vCPUs and boot disks.

    Nothing for TPU machines: only the metric of the TPU is documented.
    """
    drawn: Counter[str] = Counter()
    if machine.is_tpu:
        return drawn
    family = load().cpu_quotas.get(machine.family)
    cpus = PREEMPTIBLE_CPUS if preemptible else family
    if cpus is not None and machine.vcpus:
        drawn[QUOTA_PREFIX + cpus] = count * machine.vcpus
    default = None if machine.name in HYPERDISK_BY_DEFAULT else DEFAULT_DISK_TYPE
    if (disk_type or default) == DEFAULT_DISK_TYPE:
        drawn[QUOTA_PREFIX + SSD] = count * (disk_gb or DEFAULT_DISK_GB)
    return drawn


def step_machine(cpus: float | None = None, memory_gb: float | None = None) -> Machine:
    """Return the smallest machine for a step that asks for these limits; the default machine without limits."""
    machines = load().machine_index
    if cpus is None and memory_gb is None:
        return machines[STEP_MACHINE]
    least_cpus = cpus or machines[STEP_MACHINE].vcpus or 0
    least_memory = memory_gb or machines[STEP_MACHINE].memory_gb or 0
    return min(
        (
            machine
            for machine in machines.values()
            if machine.family in STEP_FAMILIES
            and (machine.vcpus or 0) >= least_cpus
            and (machine.memory_gb or 0) >= least_memory
        ),
        key=lambda machine: (STEP_FAMILIES.index(machine.family), *machine.size),
    )
