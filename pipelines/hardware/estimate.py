"""How long a training step takes on hardware that is not there, which part of it limits, and whether it fits.

A step's costs on one device (`profile`) are scaled to the hardware by the rates of `rates.json`: of its chips, of what
connects them, and of its CPUs, which read the data. All that is measured is a range, never one number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject
from slipway.pipelines.hardware.catalogue import Accelerator
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.memory import device_bytes
from slipway.trainer.config import TrainSettings
from slipway.trainer.engines.ahead import Profile
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.hyperparameters import choose_precision
from slipway.trainer.metrics.speed import peak_flops
from slipway.trainer.optimizers import slots

RATES_FILE = Path(__file__).with_name("rates.json")
# The part of a device's memory that a step may take, by how its costs are known: what JAX takes of a GPU by default,
# what CUDA leaves to PyTorch, what a TPU's compiler accepts.
USABLE = {("cuda", "compiled"): 0.75, ("cuda", "traced"): 0.9, ("tpu", "compiled"): 0.98}
# The bytes of a step's traffic that do not grow with its batch, by those of the trainable variables: reading them, and
# the optimizer. Of the transformers of `benchmarks.advice`, 15 to 17.5; of other networks, it is less than a tenth.
VARIABLES_TRAFFIC = 16
# The range is wider by this factor on kinds without published results.
UNPUBLISHED = 1.25
PARTS = ("compute", "memory bandwidth", "kernel launches", "all-reduce", "input")


class Range(NamedTuple):
    """The lowest, the likely and the highest value."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Range:
        """Return the range of this many."""
        return Range(*(factor * value for value in self))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a kind of chip does with steps of which the costs are known in one way, from `rates.json`.

    Attributes:
        bandwidth: Bytes per second of its memory.
        link: Bytes per second to the other chips of its machine, or of its slice.
        compute: The part of its peak FLOP/s that networks reach.
        memory: The part of the bandwidth that they reach.
        kernel: Seconds to start a kernel.
        low: The factor of the lowest step's time; with `high`, the range in which most published results are.
        high: The factor of the highest.
        results: The published results on this kind.
    """

    bandwidth: float
    link: float
    compute: float
    memory: float
    kernel: float
    low: float
    high: float
    results: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A training on one choice of hardware.

    Attributes:
        hardware: The choice.
        devices: The devices of all replicas.
        peak_bytes: The most memory of a device that the step takes; None if it is not known.
        fits: Whether the step fits; None if it is not known.
        largest_batch: The largest batch that would.
        step: Seconds of a step.
        limit: The part of the step that takes longest, of `PARTS`.
        parts: The seconds of each part.
        based_on: What the range rests on, in words.
    """

    hardware: Hardware
    devices: int
    peak_bytes: float | None
    fits: bool | None
    largest_batch: int | None
    step: Range
    limit: str
    parts: Mapping[str, float]
    based_on: str


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained: its settings and data, and how fast one core reads the data, in examples per second.

    `examples_per_core` is None for a split that is kept in memory, decoded.
    """

    train: TrainSettings
    manifest: Manifest
    examples_per_core: float | None


def product(row: Accelerator) -> str:
    """Return an accelerator's name as `peak_flops` knows it."""
    return (row.product or row.title).replace("-", " ")


def rates(row: Accelerator, program: str) -> Rates | None:
    """Return what is known of a kind of chip for steps that are "compiled" or "traced"; None if nothing is.

    Where nobody has published results, the range is wider.
    """
    known = table()["chips"].get(row.name)
    if known is None:
        return None
    reached = table()["reached"][f"{'tpu' if row.is_tpu else 'cuda'} {program}"]
    results = known.get("results", {}).get(program, 0)
    wider = 1.0 if results else UNPUBLISHED
    return Rates(
        bandwidth=row.chip.bandwidth if row.chip else known["bandwidth"],
        link=known["link"],
        compute=reached["compute"],
        memory=reached["memory"],
        kernel=reached["kernel"],
        low=reached["low"] / wider,
        high=reached["high"] * wider,
        results=results,
    )


@cache
def table() -> JsonObject:
    """Return the table of rates; its key `about` describes the others."""
    values: JsonObject = json.loads(RATES_FILE.read_text())
    return values


def estimate(hardware: Hardware, training: Training, profile: Profile, program: str) -> Estimate | None:
    """Return the estimate for accelerators; None if nothing is known of the chip.

    Args:
        hardware: The accelerators.
        training: What is trained.
        profile: The costs of its step on GPUs or on TPUs, whichever these are.
        program: How these are known: compiled or traced.
    """
    row = hardware.accelerator_row
    assert row is not None
    known, peak = rates(row, program), peak_flops(product(row), precision(row, training.train))
    if known is None or peak is None or (hardware.replicas > 1 and network(hardware) is None):
        return None
    devices = hardware.accelerators_per_replica * hardware.replicas
    chip = _at(profile, training.train.batch_size / devices)
    per_device = 1 / row.cores_per_chip  # a chip's bandwidths are its devices'
    state = _state(profile, training.train)
    is_sharded = _is_sharded(hardware, training.train, state)
    compute = chip.flops / (known.compute * peak)
    memory = chip.traffic / (known.memory * known.bandwidth * per_device)
    parts = {
        "compute": compute,
        "memory bandwidth": memory,
        "kernel launches": known.kernel * chip.kernels,
        "all-reduce": all_reduce(hardware, known, profile.trainable, sharded=is_sharded),
        "input": _input(hardware, training),
    }
    # Kernels do one or the other, and those of one wait for those of the other in part: of the sum, the larger one and
    # this, this is nearest to published results (`python -m benchmarks.advice`).
    alone = max(math.hypot(compute, memory), parts["kernel launches"])
    both = alone + parts["all-reduce"]  # gradients are summed while others are computed, at best
    low, middle, high = max(alone, parts["all-reduce"]), (alone + both) / 2, both
    step = Range(*(max(value, parts["input"]) for value in (known.low * low, middle, known.high * high)))
    peak_bytes, largest = _memory(hardware, training, profile, state, sharded=is_sharded, program=program)
    limit = max(PARTS, key=lambda part: parts[part])
    return Estimate(
        hardware=hardware,
        devices=devices,
        peak_bytes=peak_bytes,
        fits=largest is not None and training.train.batch_size <= largest,
        largest_batch=largest,
        step=step,
        limit=limit,
        parts=parts,
        based_on=_based_on(row, known, training.train.engine, program),
    )


def _based_on(row: Accelerator, known: Rates, engine: str, program: str) -> str:
    """Return what an estimate rests on, in words."""
    step = "traced by PyTorch" if program == "traced" else "compiled by XLA"
    step += "" if engine in ("jax", "pytorch") else f", as JAX builds the network that {engine} trains"
    kind = "TPUs" if row.is_tpu else "GPUs"
    if known.results:
        return f"the step {step}; the range of {known.results} published results on {row.title}"
    return f"the step {step}; no published result on {row.title}: a wider range than that of other {kind}"


def precision(row: Accelerator, train: TrainSettings) -> str:
    """Return the compute precision on a kind of chip."""
    capability = None if row.compute_capability is None else divmod(round(10 * row.compute_capability), 10)
    return choose_precision(train, "TPU" if row.is_tpu else "GPU", capability)


class _Chip(NamedTuple):
    """A step's costs on one device."""

    flops: float
    traffic: float
    kernels: float


def _at(profile: Profile, batch: float) -> _Chip:
    """Return the costs of `batch` examples per device, from those of the batch that was compiled."""
    costs = profile.costs
    assert costs is not None
    times = batch * profile.devices / costs.batch
    of_variables = min(VARIABLES_TRAFFIC * profile.trainable / profile.devices, costs.traffic_bytes / 2)
    traffic = of_variables + (costs.traffic_bytes - of_variables) * times
    return _Chip(costs.flops * times, traffic, costs.kernels)


def _state(profile: Profile, train: TrainSettings) -> int:
    """Return the bytes of a network's variables and of its optimizer's state."""
    return profile.variables + profile.trainable * slots(train.optimizer_kind)


def _is_sharded(hardware: Hardware, train: TrainSettings, state: int) -> bool:
    """Return whether each device holds a part of the variables, as `slipway.trainer.engines.base.choose_sharding`."""
    devices = hardware.accelerators_per_replica * hardware.replicas
    if devices == 1 or not ENGINES[train.engine].shards:
        return False
    too_large = state > (device_bytes(hardware) or 0)
    return train.sharding == "fsdp" or (train.sharding == "auto" and too_large)


def _memory(
    hardware: Hardware, training: Training, profile: Profile, state: int, *, sharded: bool, program: str
) -> tuple[float, int | None]:
    """Return the bytes that the step takes of a device at most, and the largest batch that fits, None if none does."""
    devices, train = hardware.accelerators_per_replica * hardware.replicas, training.train
    one_device = ENGINES[train.engine].one_device_per_process
    kept = profile.kept_bytes / (devices if one_device else hardware.hosts)
    costs = profile.costs
    assert costs is not None
    compiled_state = state / profile.devices
    per_example = max(0.0, costs.peak_bytes - compiled_state) * profile.devices / costs.batch
    fixed = state / (devices if sharded else 1) + kept
    if train.accumulation > 1 or (one_device and devices > 1):  # sums of gradients beside these, or copies
        fixed += profile.trainable / (devices if sharded else 1)
    platform = "tpu" if hardware.is_tpu else "cuda"
    room = USABLE[platform, program] * (device_bytes(hardware) or 0) - fixed
    unit = devices * train.accumulation
    largest = int(room / per_example) * unit if per_example else training.manifest.splits["train"].examples
    most = training.manifest.splits["train"].examples // unit * unit
    return fixed + per_example * train.batch_size / unit, min(largest, most) if room > per_example else None


def all_reduce(hardware: Hardware, known: Rates, size: int, *, sharded: bool) -> float:
    """Return the seconds in which gradients of `size` bytes are summed over all devices.

    A ring sends all of them twice, but for a device's own part (https://arxiv.org/abs/1802.05799): first in each
    machine, then between the machines. Sharded variables are gathered twice and their gradients summed once, which is
    one and a half times as much.
    """
    factor = 1.5 if sharded else 1.0
    within = hardware.accelerators_per_replica
    chips = hardware.chips if hardware.is_tpu else within
    seconds = factor * 2 * (chips - 1) / chips * size / known.link if chips > 1 else 0.0
    return seconds + factor * between_machines(hardware, size)


def between_machines(hardware: Hardware, size: int) -> float:
    """Return the seconds in which the machines of several replicas, whose network is known, sum `size` bytes."""
    speed, machines = network(hardware), hardware.replicas
    return 2 * (machines - 1) / machines * size / speed if machines > 1 and speed else 0.0


def network(hardware: Hardware) -> float | None:
    """Return the bytes per second between two of the hardware's machines; None if it is not known."""
    networks, machine = table()["networks"], hardware.machine_row
    row = networks.get(machine.name) or networks.get(machine.family)
    if row is None:
        return None
    gigabits = min(row["most"], row.get("per_vcpu", row["most"]) * (machine.vcpus or row["most"]))
    return float(gigabits) * 1e9 / 8


def _input(hardware: Hardware, training: Training) -> float:
    """Return the seconds in which the machines read a batch; 0 for a split that is kept in memory."""
    if training.examples_per_core is None:
        return 0.0
    vcpus = (hardware.machine_row.vcpus or 0) * hardware.hosts
    return training.train.batch_size / (training.examples_per_core * vcpus) if vcpus else 0.0
