"""The service's validation of a custom job's worker pools, by the catalogue, with its error messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from slipway.pipelines.hardware.catalogue import CORES_PER_HOST, QUOTA_PREFIX, Accelerator, chips_of, load
from tests.fakes.errors import ServiceError
from tests.fakes.vertex.shapes import IMAGE, invalid
from tests.fakes.world import World

LARGEST_JOB = 4
UNLIMITED = -1


def check_worker_pools(spec: vertex.CustomJobSpec, region: str) -> None:
    """Raise CreateCustomJob's error for pools that cannot run in `region`."""
    pools = list(spec.worker_pool_specs)
    if not pools or not _used(pools[0]):
        raise invalid("The first worker pool spec must be specified.")
    if len(pools) > LARGEST_JOB:
        raise invalid(f"At most {LARGEST_JOB} worker pools can be specified.")
    if pools[0].replica_count > 1:
        raise invalid("Chief spec replica count cannot be greater than 1.")
    used = [pool for pool in pools if _used(pool)]
    if any(_is_tpu(pool.machine_spec) for pool in used) and (len(used) > 1 or used[0].replica_count != 1):
        raise invalid("TPU jobs must have exactly one worker pool with a replica count of 1.")
    for pool in used:
        _check_container(pool)
        if pool.replica_count < 1:
            raise invalid("The replica count of a worker pool must be at least 1.")
        _check_machine(pool.machine_spec, region)


def check_quota(world: World, spec: vertex.CustomJobSpec, project: str, region: str, running: Counter[str]) -> None:
    """Raise the service's error if the pools exceed `world.quotas`; `running` is the usage of other jobs."""
    check_demand(world, demand(spec), running, project, region)


def check_demand(world: World, wanted: Counter[str], held: Counter[str], project: str, region: str) -> None:
    """Raise the service's error if what is `wanted`, besides what others have (`held`), exceeds `world.quotas`."""
    exceeded = []
    for metric, amount in sorted(wanted.items()):
        limit = world.quotas.get((project, region, metric), UNLIMITED)
        if limit != UNLIMITED and held[metric] + amount > limit:
            exceeded.append(metric)
    if exceeded:
        raise ServiceError(429, f"The following quota metrics exceed quota limits: {','.join(exceeded)}")


def demand(spec: vertex.CustomJobSpec) -> Counter[str]:
    """Return a job's usage by quota metric: accelerators; except on TPUs, vCPUs and SSD boot disks, too."""
    strategy = vertex.Scheduling.Strategy
    preemptible = spec.scheduling.strategy in (strategy.SPOT, strategy.FLEX_START)
    taken: Counter[str] = Counter()
    for pool in spec.worker_pool_specs:
        if not _used(pool):
            continue
        row = _accelerator(pool.machine_spec)
        machine = load().machine_index[pool.machine_spec.machine_type]
        if row is not None and row.quota:
            chips = pool.machine_spec.accelerator_count or _chips(pool.machine_spec)
            taken[f"{QUOTA_PREFIX}{'preemptible_' * preemptible}{row.quota}"] += chips * pool.replica_count
        if _is_tpu(pool.machine_spec):
            continue
        cpus = "preemptible_cpus" if preemptible else load().cpu_quotas.get(machine.family)
        if cpus:
            taken[f"{QUOTA_PREFIX}{cpus}"] += (machine.vcpus or 0) * pool.replica_count
        if pool.disk_spec.boot_disk_type == "pd-ssd":
            taken[f"{QUOTA_PREFIX}pd_ssd"] += pool.disk_spec.boot_disk_size_gb * pool.replica_count
    return taken


def fill_disks(spec: vertex.CustomJobSpec) -> None:
    """Fill in the boot disks of the pools."""
    for pool in spec.worker_pool_specs:
        if _used(pool):
            default = "hyperdisk-balanced" if pool.machine_spec.machine_type == "a3-ultragpu-8g" else "pd-ssd"
            pool.disk_spec.boot_disk_type = pool.disk_spec.boot_disk_type or default
            pool.disk_spec.boot_disk_size_gb = pool.disk_spec.boot_disk_size_gb or 100


def _check_container(pool: Any) -> None:
    if not pool.container_spec.image_uri:
        raise invalid("Exactly one of container_spec and python_package_spec must be set in a worker pool.")
    if not IMAGE.fullmatch(pool.container_spec.image_uri):
        raise invalid(f"Invalid image URI: {pool.container_spec.image_uri}.")


def _check_machine(spec: vertex.MachineSpec, region: str) -> None:
    offered = load()
    machine = offered.machine_index.get(spec.machine_type)
    if machine is None:
        raise invalid(f"Machine type {spec.machine_type} is not supported.")
    kind = spec.accelerator_type
    if bool(kind) != bool(spec.accelerator_count):
        raise invalid("Both `accelerator_type` and `accelerator_count` should be specified or none.")
    if kind:
        row = _accelerator(spec)
        counts = machine.accelerators.get(row.name, ()) if row else ()
        slices = row.slices if row else None
        fits = spec.accelerator_count in counts or (slices and counts and spec.accelerator_count % 32 == 0)
        if row is None or row.status != "offered" or not fits:
            raise invalid(f'Accelerator "{kind.name}" is not supported for machine type "{spec.machine_type}"')
    if machine.tpu and spec.tpu_topology not in machine.topologies:
        raise invalid(f'TPU topology "{spec.tpu_topology}" is not supported for machine type "{spec.machine_type}".')
    if spec.tpu_topology and not machine.tpu:
        raise invalid(f'Machine type "{spec.machine_type}" takes no TPU topology.')
    if machine.accelerators and not kind and offered.family(machine) is None:
        raise invalid(f'Machine type "{spec.machine_type}" must be used with accelerators.')
    row = _accelerator(spec)
    if row is not None and row.regions and region not in row.regions:
        raise invalid(f"Accelerator {row.title} is not available in region {region}.")


def _accelerator(spec: vertex.MachineSpec) -> Accelerator | None:
    offered = load()
    if spec.accelerator_type:
        return offered.accelerator(spec.accelerator_type.name)
    machine = offered.machine_index.get(spec.machine_type)
    return offered.accelerator_index[machine.tpu] if machine and machine.tpu else None


def hosts_of(spec: vertex.MachineSpec) -> int:
    """Return the number of machines of a replica: 1, except for TPU slices."""
    machine = load().machine_index.get(spec.machine_type)
    if machine is None or not _is_tpu(spec):
        return 1
    return machine.topologies[spec.tpu_topology] if spec.tpu_topology else spec.accelerator_count // CORES_PER_HOST


def _chips(spec: vertex.MachineSpec) -> int:
    return chips_of(spec.tpu_topology) if spec.tpu_topology else CORES_PER_HOST


def _is_tpu(spec: vertex.MachineSpec) -> bool:
    row = _accelerator(spec)
    return row is not None and row.is_tpu


def _used(pool: Any) -> bool:
    """Whether a pool has replicas; a skipped pool is an empty message."""
    return bool(pool.machine_spec.machine_type or pool.replica_count or pool.container_spec.image_uri)
