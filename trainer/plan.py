"""The plan of a training: how a batch is split among the replicas, and how many steps there are."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.config import Plan, TrainSettings
from slipway.trainer.data.assignment import check_even_split
from slipway.trainer.engines import table
from slipway.trainer.stages import ALL, Duration


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
        noun = "replicas" if readers == replicas else "devices"
        raise UserError(
            f"The training split has {shards} shards, fewer than the {readers} {noun} that would read them.",
            setting="hardware",
            value=f"{readers} {noun}",
            allowed=f"at most {shards} {noun} for this data set",
            nearest=f"{shards} {noun}",
            fix=f"use {shards} {noun} or fewer, or let prepare_data write the set for {readers} {noun}",
        )
    steps_per_epoch = examples // batch
    return Plan(
        replicas=replicas,
        batch_per_replica=batch // replicas,
        steps_per_epoch=steps_per_epoch,
        steps=whole_length(train, batch, steps_per_epoch),
    )


@dataclass(frozen=True)
class Stage:
    """A part of a run, from step `start` (from 0) to the one before `end`, with an optimizer of its own.

    `number` counts from 0; `trainable` are the patterns of the layers that it trains.
    """

    number: int
    start: int
    end: int
    learning_rate: float
    trainable: tuple[str, ...] = ALL


def stages(train: TrainSettings, plan: Plan) -> list[Stage]:
    """Return the stages of a run in order; without `train.stages`, the whole run is one."""
    if not train.stages:
        return [Stage(0, 0, plan.steps, train.learning_rate)]
    planned: list[Stage] = []
    for number, settings in enumerate(train.stages):
        start = planned[-1].end if planned else 0
        end = start + settings.in_steps(train.batch_size, plan.steps_per_epoch)
        planned.append(Stage(number, start, end, settings.learning_rate or train.learning_rate, settings.trainable))
    return planned


def stage_of(train: TrainSettings, plan: Plan, step: int) -> Stage:
    """Return the stage of the step number `step` (from 0)."""
    planned = stages(train, plan)
    return next((stage for stage in planned if step < stage.end), planned[-1])


def whole_length(train: TrainSettings, batch_size: int, steps_per_epoch: int) -> int:
    """Return the steps of a run: of `train.epochs`, `steps` or `examples`, or of all stages together."""
    lengths = train.stages or (Duration(epochs=train.epochs, steps=train.steps, examples=train.examples),)
    return sum(length.in_steps(batch_size, steps_per_epoch) for length in lengths)


def ends_epoch(plan: Plan, step: int) -> bool:
    """Return whether an epoch ends after `step` steps; the last one may be incomplete."""
    return step % plan.steps_per_epoch == 0 or step == plan.steps
