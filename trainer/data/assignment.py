"""Assignment of a prepared data set's shards to workers, and of a batch's examples to devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Shard
from slipway.trainer.config import TrainSettings


@dataclass(frozen=True)
class ShardAssignment:
    """One worker's shard assignment: shards rank, rank + workers, rank + 2 workers, …"""

    folder: Path
    manifest: Manifest
    rank: int
    workers: int

    def shards(self, split: str, rank: int | None = None) -> list[Shard]:
        """Return the shards of `split` assigned to this worker, or to the one of `rank`, in order."""
        worker = self.rank if rank is None else rank
        return self.manifest.splits[split].shards[worker :: self.workers]

    def examples(self, split: str, rank: int | None = None) -> int:
        """Return the number of examples in those shards."""
        return sum(shard.examples for shard in self.shards(split, rank))

    def paths(self, split: str) -> list[str]:
        """Return the paths of those shards."""
        return [str(self.folder / shard.file) for shard in self.shards(split)]

    def has(self, split: str) -> bool:
        """Return whether the data set has examples in `split`."""
        return split in self.manifest.splits and self.manifest.splits[split].examples > 0

    def decoded_bytes(self, split: str) -> int:
        """Return the size of this worker's examples of `split` when decoded, images as uint8 pixels, in bytes."""
        return self.examples(split) * self.manifest.decoded_bytes


def verify(assignment: ShardAssignment) -> None:
    """Verify this worker's shards of the training and validation splits.

    Raises:
        UserError: A shard is missing or damaged, or this worker has no training examples.
    """
    refuse_empty(assignment)
    for split in ("train", "validation"):
        manifest.verify(assignment.folder, assignment.shards(split) if assignment.has(split) else [])


def refuse_empty(assignment: ShardAssignment) -> None:
    """Check that this worker has training examples.

    Raises:
        UserError: It has none.
    """
    if not assignment.examples("train"):
        count = len(assignment.manifest.splits["train"].shards)
        raise UserError(
            f"The training split's {count} shards leave none for worker {assignment.rank} of {assignment.workers}.",
            setting="hardware",
            allowed=f"at most {count} replicas for this data set",
            fix="use fewer replicas, or lower data.shard_megabytes for more shards",
        )


def check_even_split(train: TrainSettings, replicas: int, devices: int) -> None:
    """Check that a batch splits evenly over all devices, and each device's part into equal micro-batches.

    With mixup, a device's part must be more than one example.

    Raises:
        UserError: It does not; names the closest value that does.
    """
    workers, batch, parts = replicas * devices, train.batch_size, train.accumulation
    if batch % workers:
        near = max(workers, round(batch / workers) * workers)
        layout = f"{replicas} replica{'s' if replicas > 1 else ''}" + (f" of {devices} devices" if devices > 1 else "")
        raise UserError(
            f"A batch of {batch} examples cannot be split evenly over {layout}.",
            setting="train.batch_size",
            value=batch,
            allowed=f"a multiple of {workers}",
            nearest=str(near),
        )
    per_device = batch // workers
    if per_device % parts:
        near = min(
            (count for count in range(1, per_device + 1) if per_device % count == 0),
            key=lambda count: abs(count - parts),
        )
        raise UserError(
            f"{per_device} examples per device and step cannot be split into {parts} equal micro-batches.",
            setting="train.accumulation",
            value=parts,
            allowed=f"a divisor of {per_device}" + (f" (train.batch_size / {workers} devices)" if workers > 1 else ""),
            nearest=str(near),
        )
    if train.augment.mixup and per_device == 1:
        raise UserError(
            "Mixup blends two examples of a device's part of a batch, and each device has one example per step.",
            setting="train.batch_size",
            value=batch,
            allowed=f"at least {2 * workers}, or train.augment.mixup = 0",
            nearest=str(2 * workers),
        )
