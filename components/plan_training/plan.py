"""Compute the worker_pool_specs from worker pools, a data set's manifest and the training settings."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.components.worker_pools import Container, WorkerPool, count_replicas
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.core.paths import DATA_VARIABLE
from slipway.trainer import checks, launch
from slipway.trainer.checkpoint.best import no_validation
from slipway.trainer.checks import check_inputs
from slipway.trainer.config import SEED, JobConfig, ModelSettings, Plan, TrainSettings
from slipway.trainer.distributed import nccl
from slipway.trainer.distributed.accelerators import PLANNED_VARIABLE
from slipway.trainer.distributed.cluster import HOSTS_VARIABLE
from slipway.trainer.distributed.verification import verified_command, verified_in_shell
from slipway.trainer.engines import table
from slipway.trainer.engines.builder import example_elements
from slipway.trainer.hyperparameters import class_weights, warmup_steps
from slipway.trainer.metrics.trial import METRIC_VARIABLE
from slipway.trainer.plan import divide, stages

TRAINER_COMMAND = ["python", "-m", "slipway.trainer"]
# Bytes of a training step per element of a layer's output: the float, its gradient and about as much workspace.
ELEMENT_BYTES = 3 * 4


@dataclass(frozen=True)
class TrainingPlan:
    """The worker pools of a job with their containers, and the plan they implement.

    `plan` is None for a custom program.
    """

    worker_pool_specs: list[WorkerPool]
    plan: Plan | None


def plan_training(
    pools: list[WorkerPool],
    devices: int,
    manifest: Manifest | None,
    data: str,
    model: ModelSettings | None,
    train: TrainSettings,
    image: str,
    memory: int = 0,
    hosts: int = 1,
    metric: str = "",
) -> TrainingPlan:
    """Divide the batch among the replicas, compute the steps, and add the trainer's command to every pool.

    See the component for the arguments.

    Raises:
        UserError: The engine does not support the settings, or the batch, shards or examples cannot be divided among
            the replicas.
    """
    replicas, devices = count_replicas(pools) * hosts, max(1, devices // hosts)
    if train.program is not None:
        return TrainingPlan(
            _with_container(pools, _own_container(train, data), image, train, hosts, devices, metric), None
        )
    assert model is not None and manifest is not None  # a run's configuration has these, or a program
    checks.refuse(train)
    check_inputs(train, manifest)
    class_weights(train, manifest)  # raises for an unknown class
    validation = manifest.splits.get("validation")
    if train.needs_validation and not (validation and validation.examples):
        raise no_validation(train)
    if memory:
        train = _fitted(replicas * devices, manifest, model, train, memory)
    plan = divide(replicas, devices, manifest, train)
    warmup = warmup_steps(train, plan)
    for stage in stages(train, plan):
        if warmup >= (steps := stage.end - stage.start) and not memory:
            part = f"stage {stage.number + 1}" if train.stages else "the run"
            events.message(
                f"{part} ends after {steps} steps, during the warm-up of {warmup}: the learning rate never reaches "
                f"{stage.learning_rate:g}"
            )
    job = JobConfig(data=data, model=model, train=train, plan=plan)
    container: Container = {"command": TRAINER_COMMAND, "args": ["--config", job.model_dump_json()]}
    return TrainingPlan(_with_container(pools, container, image, train, hosts, devices, metric), plan)


def _own_container(train: TrainSettings, data: str) -> Container:
    """Return the container specification of a custom program; without a command, its image's entry point runs."""
    container: Container = {"args": [argument.replace(SEED, str(train.seed)) for argument in train.arguments]}
    if train.module is not None and train.image is not None:
        container["command"] = ["python", "-m", train.module]  # Slipway is not in the image
    elif train.module is not None:
        container["command"] = launch.command(train.module, train.processes)
    elif train.command is not None:
        container["command"] = list(train.command)
    if data:
        container["env"] = [{"name": DATA_VARIABLE, "value": data}]
    return container


def _with_container(
    pools: list[WorkerPool],
    container: Container,
    image: str,
    train: TrainSettings,
    hosts: int,
    devices: int,
    metric: str,
) -> list[WorkerPool]:
    if metric:
        container = {**container, "env": [*container.get("env", []), {"name": METRIC_VARIABLE, "value": metric}]}
    if image := train.image or image:
        container = {**container, "image_uri": image}
    specs: list[WorkerPool] = []
    for pool in pools:
        added = pool.get("container_spec", {}).get("env", [])
        whole: Container = {**container, "env": [*container.get("env", []), *added]} if added else container
        specs.append({**pool, "container_spec": _on_machine(pool, whole, train, hosts, devices)} if pool else {})
    return specs


def _on_machine(pool: WorkerPool, container: Container, train: TrainSettings, hosts: int, devices: int) -> Container:
    """Return a container specification with the variables and the command for the pool's machine type.

    `devices` is the number of accelerators of each of the `hosts` of a TPU.
    """
    machine = pool.get("machine_spec", {})  # empty in a pipeline of one's own on this machine
    is_tpu = "tpu_topology" in machine or str(machine.get("accelerator_type")).startswith("TPU")
    gpus = 0 if is_tpu else int(str(machine.get("accelerator_count", 0)))
    variables = {HOSTS_VARIABLE: str(hosts)} if hosts > 1 else {}
    if is_tpu or gpus:
        variables[PLANNED_VARIABLE] = f"tpu:{devices}" if is_tpu else f"gpu:{gpus}"
    if "tpu_topology" in machine:
        variables |= table.ENGINES[train.engine].topology_variables
    if variables:
        more = [{"name": name, "value": value} for name, value in variables.items()]
        container = {**container, "env": [*container.get("env", []), *more]}
    command = container.get("command")
    if train.image is not None:  # an image of one's own does not contain Slipway
        if command and PLANNED_VARIABLE in variables:
            container = {**container, "command": verified_in_shell(command)}
        return container
    assert command is not None  # only an image has an entry point
    if train.command is not None and PLANNED_VARIABLE in variables:  # the trainer and the launcher verify it themselves
        command = verified_command(command)
    return {**container, "command": nccl.started_with(command, machine.get("machine_type"))}


def _fitted(workers: int, manifest: Manifest, model: ModelSettings, train: TrainSettings, memory: int) -> TrainSettings:
    """Return the settings with the largest batch size up to the requested one that fits in `memory` bytes.

    Args:
        workers: Number of devices, all on this machine, over which the batch is split.
        manifest: The data set's manifest.
        model: The network, which is built to measure it.
        train: The training settings.
        memory: The devices' total memory in bytes.

    Raises:
        UserError: Not even one example per device fits.
    """
    events.phase("measuring the network's memory")
    example_bytes = ELEMENT_BYTES * example_elements(train.engine, model, manifest)
    asked, parts = train.batch_size, train.accumulation
    if asked * example_bytes <= memory * parts:
        return train
    fitting = memory // example_bytes // workers * workers * parts
    if not fitting:
        raise UserError(
            f"This machine cannot rehearse the model: an example needs about {example_bytes / 2**20:,.0f} MiB, "
            f"and {workers} devices have {memory / 2**20:,.0f} MiB together.",
            setting="model.builder",
            value=model.builder,
            fix="rehearse on a machine with more memory, or with fewer replicas",
        )
    events.message(f"rehearsing with batch size {fitting}: {asked} does not fit this machine's memory")
    return train.model_copy(update={"batch_size": fitting})
