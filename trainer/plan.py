"""The plan of a training: how a batch is split among the replicas, and how many steps there are."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.config import Plan, TrainSettings
from slipway.trainer.data.assignment import check_even_split
from slipway.trainer.engines import table
from slipway.trainer.stages import whole_length


def divide(replicas: int, devices: int, manifest: Manifest, train: TrainSettings) -> Plan:
    """Return the plan for `replicas` with `devices` each.

    Raises:
        UserError: The batch, the shards or the examples cannot be divided among them.
    """
    examples = manifest.splits["train"].examples
    shards = len(manifest.splits["train"].shards)
    workers = replicas * devices
    batch = train.batch_size
    check_even_split(train, replicas, devices)
    if examples < batch:
        largest = examples // workers * workers
        raise UserError(
            f"The training split has {examples} examples, fewer than one batch of {batch}.",
            setting="train.batch_size",
            value=batch,
            allowed=f"at most {largest}" if largest else f"a training split of at least {workers} examples",
            nearest=str(largest) if largest else None,
            fix=f"--set train.batch_size={largest}" if largest else f"use fewer replicas than {replicas}, or more data",
        )
    readers = table.readers(train.engine, replicas, devices)
    if shards < readers:
        what = "replicas" if readers == replicas else "devices"
        raise UserError(
            f"The training split has {shards} shards, fewer than the {readers} {what} that would read them.",
            setting="hardware",
            value=f"{readers} {what}",
            allowed=f"at most {shards} {what} for this data set",
            nearest=f"{shards} {what}",
            fix=f"use {shards} {what} or fewer, or let prepare_data write the set for {readers} {what}",
        )
    steps_per_epoch = examples // batch
    return Plan(
        replicas=replicas,
        batch_per_replica=batch // replicas,
        steps_per_epoch=steps_per_epoch,
        steps=whole_length(train, batch, steps_per_epoch),
    )
