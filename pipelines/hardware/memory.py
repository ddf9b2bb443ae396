"""Estimate whether a model and its optimizer state fit the memory of a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipway.core.errors import UserError
from slipway.pipelines.hardware.choice import Hardware, choices
from slipway.pipelines.hardware.placement import alternatives
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.optimizers import slots

GIB = 2**30


@dataclass(frozen=True)
class MemoryNeed:
    """Memory per device during training, in bytes, excluding activations and gathered variables."""

    variables: int
    gradients: int
    optimizer: int
    optimizer_name: str

    @property
    def total(self) -> int:
        """The sum, in bytes."""
        return self.variables + self.gradients + self.optimizer

    def __str__(self) -> str:
        state = f" + state of {self.optimizer_name} {_gib(self.optimizer)}" if self.optimizer else ""
        return f"variables {_gib(self.variables)} + gradients {_gib(self.gradients)}{state} = {_gib(self.total)}"


def fits_memory(
    hardware: Hardware,
    variables_bytes: int,
    optimizer: str = "adam",
    *,
    trainable_bytes: int | None = None,
    engine: str | None = None,
    sharding: str = "replicated",
) -> MemoryNeed:
    """Return the memory that the model needs on each device, without activations.

    Args:
        hardware: The training hardware.
        variables_bytes: Size of all variables of the built model.
        optimizer: The optimizer's kind (`TrainSettings.optimizer_kind`).
        trainable_bytes: Size of the trainable variables; by default, all are trainable.
        engine: The training engine; suggested hardware supports it.
        sharding: `TrainSettings.sharding`.

    Raises:
        UserError: The model needs more memory than a device has.
    """
    trainable = variables_bytes if trainable_bytes is None else trainable_bytes
    parts = max(1, hardware.count) * hardware.replicas
    whole, shard = (
        MemoryNeed(variables_bytes // of, trainable // of, trainable * slots(optimizer) // of, optimizer)
        for of in (1, parts)
    )
    available = device_bytes(hardware)
    is_small = available is None or whole.total <= available
    can_shard = engine is not None and ENGINES[engine].shards
    need = shard if sharding == "fsdp" or (sharding == "auto" and can_shard and not is_small) else whole
    if available is None or need.total <= available:
        return need
    row = hardware.accelerator_row
    part = "the machine" if row is None else f"a {'core' if row.cores_per_chip > 1 else 'chip'} of {row.title}"
    near = next((str(other) for other in larger(hardware, engine) if (device_bytes(other) or 0) >= need.total), None)
    without_state = need.total - need.optimizer <= available and need.optimizer > 0
    fixes = [f"--hardware '{near}'"] if near else ["a smaller model"]
    if can_shard and shard.total <= available < need.total and parts > 1:
        fixes.insert(0, "--set train.sharding=fsdp")
    raise UserError(
        f"The model does not fit in memory: without activations it needs {need}, and {part} has {_gib(available)}.",
        setting="hardware",
        value=str(hardware),
        allowed=f"at least {_gib(need.total)} per device",
        nearest=near,
        fix=" or ".join([*fixes, *(["--set train.optimizer=sgd, which keeps no state"] if without_state else [])]),
    )


def device_bytes(hardware: Hardware) -> int | None:
    """Return the memory of one device: a GPU, a TPU chip or core, or the machine; None if unknown."""
    row = hardware.accelerator_row
    gigabytes = row.device_memory_gb if row else hardware.machine_row.memory_gb
    return int(gigabytes * GIB) if gigabytes else None


def larger(hardware: Hardware, engine: str | None) -> list[Hardware]:
    """Return other choices: the same kind of accelerator first, then by increasing memory per device."""
    candidates = [replace(choice, replicas=hardware.replicas) for choice in choices() if choice.accelerator is None]
    if hardware.accelerator:
        candidates = alternatives(hardware, engine)
    return sorted(candidates, key=lambda other: (other.is_tpu != hardware.is_tpu, device_bytes(other) or 0))


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.2f} MiB"
