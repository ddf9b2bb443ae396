"""From worker pools, a data set's manifest and the training settings to the complete worker_pool_specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components.plan_training.fitting import largest_batch
from trainer import abilities, events
from trainer.config import JobConfig, ModelSettings, Plan, TrainSettings
from trainer.errors import UserError
from trainer.manifest import Manifest

TRAINER_COMMAND = ["python", "-m", "trainer"]


@dataclass(frozen=True)
class TrainingPlan:
    """A job, ready to run: its worker pools with what runs in each, and the figures behind them."""

    worker_pool_specs: list[dict[str, Any]]
    plan: Plan


def plan_training(
    pools: list[dict[str, Any]],
    devices: int,
    manifest: Manifest,
    data: str,
    model: ModelSettings,
    train: TrainSettings,
    image: str,
    memory: int = 0,
) -> TrainingPlan:
    """Share the batch among the replicas, count the steps, and put the trainer's command into every pool.

    Args:
        pools: Vertex worker pools without a container: replica_count, machine_spec, maybe disk_spec.
        devices: How many devices a replica trains on: its accelerators, 0 where it has none but its CPUs.
        manifest: The prepared data set's.
        data: Where workers find it: a folder or a gs:// URI.
        model: The network.
        train: How to train it.
        image: The image that the workers run, or "" where they run in the Python at hand.
        memory: The bytes that all replicas have together, in a rehearsal: a batch that does not fit is made smaller,
            which is said aloud. 0: nothing is fitted.

    Raises:
        UserError: The engine can not do what the settings ask for, or the batch, the shards or the examples can not be
            shared among the replicas.
    """
    abilities.refuse(train)
    replicas = sum(int(pool.get("replica_count", 0)) for pool in pools)
    if memory:
        train = _fitted(replicas * max(1, devices), manifest, model, train, memory)
    plan = _plan(replicas, max(1, devices), manifest, train)
    job = JobConfig(data=data, model=model, train=train, plan=plan)
    container: dict[str, Any] = {
        "command": TRAINER_COMMAND,
        "args": ["--config", job.model_dump_json(exclude_none=True)],
    }
    if image:
        container["image_uri"] = image
    specs = [{**pool, "container_spec": container} if pool else {} for pool in pools]
    return TrainingPlan(specs, plan)


def _fitted(workers: int, manifest: Manifest, model: ModelSettings, train: TrainSettings, memory: int) -> TrainSettings:
    """The settings with a batch that this machine's memory can hold."""
    asked = train.batch_size
    shape, classes = manifest.image_shape, len(manifest.classes)
    fitting = largest_batch(train.engine, model, shape, classes, batch=asked, workers=workers, memory=memory)
    if fitting != asked:
        events.message(f"rehearsing with batches of {fitting}: {asked} would not fit this machine's memory")
    return train.model_copy(update={"batch_size": fitting})


def _plan(replicas: int, devices: int, manifest: Manifest, train: TrainSettings) -> Plan:
    examples = manifest.splits["train"].examples
    shards = len(manifest.splits["train"].shards)
    workers = replicas * devices
    batch = train.batch_size
    if batch % workers:
        near = max(workers, round(batch / workers) * workers)
        raise UserError(
            f"A batch of {batch} examples can not be shared evenly by {_layout(replicas, devices)}.",
            setting="train.batch_size",
            value=batch,
            allowed=f"a multiple of {workers}",
            nearest=str(near),
            mend=f"--set train.batch_size={near}",
        )
    if examples < batch:
        largest = examples // workers * workers
        raise UserError(
            f"The training split has {examples} examples, fewer than one batch of {batch}.",
            setting="train.batch_size",
            value=batch,
            allowed=f"at most {largest}" if largest else f"a training split of at least {workers} examples",
            nearest=str(largest) if largest else None,
            mend=f"--set train.batch_size={largest}"
            if largest
            else f"use fewer replicas than {replicas}, or more data",
        )
    if shards < replicas:
        raise UserError(
            f"The training split has {shards} shards, fewer than the {replicas} replicas that would read them.",
            setting="hardware",
            value=f"{replicas} replicas",
            allowed=f"at most {shards} replicas for this data set",
            nearest=f"{shards} replicas",
            mend=f"use {shards} replicas or fewer, or let prepare_data write the set for {replicas} replicas",
        )
    steps_per_epoch = examples // batch
    return Plan(
        replicas=replicas,
        batch_per_replica=batch // replicas,
        steps_per_epoch=steps_per_epoch,
        steps=train.duration.in_steps(batch, steps_per_epoch),
    )


def _layout(replicas: int, devices: int) -> str:
    if devices == 1:
        return f"{replicas} replicas"
    return f"{replicas} replica{'s' if replicas > 1 else ''} of {devices} devices"
