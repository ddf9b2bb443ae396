"""The part of a prepared data set that one worker reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Shard, verify_shard


@dataclass(frozen=True)
class Share:
    """The part of the data set that one worker reads: shards rank, rank + workers, rank + 2 workers, …"""

    folder: Path
    manifest: Manifest
    rank: int
    workers: int

    def shards(self, split: str, rank: int | None = None) -> list[Shard]:
        """The shards of `split` that this worker (or the one of `rank`) reads, in order."""
        own = self.rank if rank is None else rank
        return self.manifest.splits[split].shards[own :: self.workers]

    def examples(self, split: str, rank: int | None = None) -> int:
        """How many examples those shards hold."""
        return sum(shard.examples for shard in self.shards(split, rank))

    def paths(self, split: str) -> list[str]:
        """The files of those shards."""
        return [str(self.folder / shard.file) for shard in self.shards(split)]

    def has(self, split: str) -> bool:
        """Whether the data set has examples in `split`."""
        return split in self.manifest.splits and self.manifest.splits[split].examples > 0

    def decoded_bytes(self, split: str) -> int:
        """The size of this worker's part of `split` as uint8 pixels."""
        return self.examples(split) * math.prod(self.manifest.image_shape)


def verify(share: Share) -> None:
    """Check the shards of the training and validation splits that this worker reads.

    Raises:
        UserError: A shard is missing or damaged, or there is none of the training split for this worker.
    """
    refuse_empty(share)
    for split in ("train", "validation"):
        for shard in share.shards(split) if share.has(split) else []:
            verify_shard(share.folder / shard.file, shard)


def refuse_empty(share: Share) -> None:
    """Check that there are examples of the training split for this worker.

    Raises:
        UserError: There are none.
    """
    if not share.examples("train"):
        count = len(share.manifest.splits["train"].shards)
        raise UserError(
            f"The training split's {count} shards leave none for worker {share.rank} of {share.workers}.",
            setting="hardware",
            allowed=f"at most {count} replicas for this data set",
            fix="use fewer replicas, or prepare the data set for more",
        )
