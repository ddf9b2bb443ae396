"""A training worker, `python -m slipway.trainer --config JSON`: one process per replica, in Vertex AI's environment.

Arguments after that override settings, as a trial of a search has them: see `overrides`.

Exit status: 0 trained and exported; 1 failed; 75 the storage or a replica was unavailable; 138 another replica was
lost; 143 stopped by SIGTERM or SIGHUP, after saving a checkpoint if possible. Vertex AI receives 134 for the last
three.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence

from pydantic import ValidationError

from slipway.core import cores, events
from slipway.core import manifest as manifests
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError, report
from slipway.core.exit_codes import FAILED, PEER_LOST, STOPPED, UNAVAILABLE, leave, reported
from slipway.core.paths import OutputPaths, local_path, output_paths
from slipway.trainer import weights
from slipway.trainer.checkpoint.best import FOLDER as BEST_FOLDER
from slipway.trainer.checkpoint.best import BestWeights, no_validation
from slipway.trainer.checkpoint.resume import identity, resume
from slipway.trainer.checkpoint.store import Checkpoints, StorageUnavailable
from slipway.trainer.checks import check_inputs
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment, refuse_empty, verify
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed import processes, rendezvous
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.idle import watch_for_idleness
from slipway.trainer.distributed.signals import Stopped, StopRequest
from slipway.trainer.distributed.steps import StepsOfProcesses
from slipway.trainer.distributed.verification import verify_machine
from slipway.trainer.engines import installed
from slipway.trainer.engines.base import Engine, PeerLost
from slipway.trainer.engines.quick_import import import_tensorflow
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.export.export import export, exported
from slipway.trainer.failures import full_disk, of_library, storage_unavailable
from slipway.trainer.metrics.attempt import ENDING, EXPORT, IMPORTING, MACHINES, Attempt
from slipway.trainer.metrics.history import Metrics, Record
from slipway.trainer.metrics.summary import better_epoch, table
from slipway.trainer.tasks import TASKS

# How long a replica that has finished may take to leave the others.
CLOSE_SECONDS = 30.0

logger = logging.getLogger("slipway.trainer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one worker and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Run one training worker.")
    parser.add_argument("--config", required=True, metavar="JSON", help="the job: a slipway.trainer.config.JobConfig")
    options, overrides = parser.parse_known_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    stop = StopRequest()
    stop.install()
    try:
        _work(_overridden(options.config, overrides), stop)
    except UserError as error:
        if error.__cause__ is not None:  # raised by the user's code
            error.traceback = "".join(traceback.format_exception(error.__cause__))
        report(error)
        return UNAVAILABLE if isinstance(error, (rendezvous.ReplicasMissing, StorageUnavailable)) else FAILED
    except SystemExit as request:
        return request.code if isinstance(request.code, int) else FAILED
    except KeyboardInterrupt:
        return 130
    except PeerLost as error:
        logger.error("another replica is lost (see its log); this replica cannot continue alone: %s", error)
        return PEER_LOST
    except Exception as error:
        if (problem := full_disk(error)) is not None:
            report(problem)
            return FAILED
        traceback.print_exc()
        # A library may convert the SystemExit of a stop request into its own error.
        if stop.requested:
            return STOPPED
        if unavailable := storage_unavailable(error):
            report(unavailable)
            return UNAVAILABLE
        return FAILED  # any other error will recur
    return 0


def _work(config: str, stop: StopRequest) -> None:
    """Check everything that does not need TensorFlow, which takes seconds to import; then train."""
    job = _with_checksum(processes.with_processes(_job(config), os.environ))
    installed.verify(job.train.engine)
    if job.plan.processes == 1:  # otherwise, this one's parent has verified it
        verify_machine(os.environ)
    where = output_paths(os.environ)
    cluster, watch = _join_slice(job) if clusters.slice_hosts(os.environ) > 1 else (clusters.read(os.environ), None)
    logger.info("%s", cluster.describe())
    if not cluster.is_chief:
        events.mute()
    _check_replicas(job, cluster)
    data = local_path(job.data)
    assignment = ShardAssignment(data, manifests.read(data), cluster.rank, cluster.world_size)
    if (count := processes.count(job.train.engine, cluster)) > 1:
        _train_in_processes(config, job, cluster, assignment, count, stop)
        return
    if cluster.on_this_machine > 1:
        cores.take_part(cluster.local_rank, cluster.on_this_machine)
        logger.info("cores of this process: %d, because it shares the machine", cores.available_cores())
    attempt = Attempt(where.logs if cluster.is_chief else None)
    events.phase("checking the shards")
    verify(assignment)
    events.phase(f"loading {ENGINES[job.train.engine].libraries}")
    import_tensorflow(job.train.engine)
    if watch is None:
        if cluster.world_size > 1:
            events.phase(f"waiting for all {cluster.world_size} replicas")
        attempt.begin(MACHINES)
        watch = rendezvous.join(cluster, rendezvous.seconds_to_wait(os.environ))
        attempt.begin(IMPORTING)
    watch_for_idleness(cluster, watch)
    try:
        engine = _train(job, where, cluster, assignment, stop, watch, attempt)
    except PeerLost as error:
        watch.give_up(str(error))
        raise
    except Exception as error:
        if not isinstance(error, UserError) and (problem := of_library(error, assignment.folder)):
            raise problem from None
        raise
    except Stopped:
        with stop.deferred():  # the others are at the same point: none may leave before all have
            watch.close()
        raise
    attempt.begin(ENDING)
    with stop.deferred():  # all replicas are done: stop requests and lost replicas no longer matter
        watch.finish()
        # Everything is saved: a library that waits for a lost connection must not keep the process from ending.
        end = threading.Timer(CLOSE_SECONDS, os._exit, [0])
        end.daemon = True
        end.start()
        try:
            engine.close(watch.wait_for_shutdown)
            watch.close()
        finally:
            end.cancel()


def _join_slice(job: JobConfig) -> tuple[Cluster, rendezvous.Watch]:
    """Join the other hosts of this replica's TPU slice, which only the engine's library knows.

    Raises:
        UserError: The engine does not train on several machines of a slice, or the others do not connect.
    """
    row, hosts = ENGINES[job.train.engine], clusters.slice_hosts(os.environ)
    if not row.slices:
        raise UserError(
            f"The engine {job.train.engine} does not train on a TPU slice of {hosts} machines.",
            setting="train.engine",
            value=job.train.engine,
            allowed=" or ".join(name for name, other in ENGINES.items() if other.slices),
            fix="--set train.engine=jax",
        )
    events.phase(f"loading {row.libraries}")
    import_tensorflow(job.train.engine)
    events.phase(f"waiting for all {hosts} hosts of the TPU slice")
    joined: tuple[Cluster, rendezvous.Watch] = importlib.import_module(row.slices).join()
    return joined


def _train_in_processes(
    config: str, job: JobConfig, cluster: Cluster, assignment: ShardAssignment, count: int, stop: StopRequest
) -> None:
    """Train in one process per device; raise SystemExit with their status if it is not 0."""
    for number in range(count):
        rank, workers = cluster.rank * count + number, cluster.world_size * count
        refuse_empty(ShardAssignment(assignment.folder, assignment.manifest, rank, workers))
    with StepsOfProcesses(count) as steps:
        watch = rendezvous.join(cluster, rendezvous.seconds_to_wait(os.environ), steps)
        watch_for_idleness(cluster, watch, root=False)
        with stop.deferred():
            status = processes.run(config, job, cluster, count, stop)
            if status in (0, STOPPED):  # otherwise the other replicas would consider this one lost
                watch.close()
    if status:
        sys.exit(status)


def _train(
    job: JobConfig,
    where: OutputPaths,
    cluster: Cluster,
    assignment: ShardAssignment,
    stop: StopRequest,
    watch: rendezvous.Watch,
    attempt: Attempt,
) -> Engine:
    from slipway.trainer import loop  # imported late because they import TensorFlow
    from slipway.trainer.data import inputs
    from slipway.trainer.engines import base
    from slipway.trainer.metrics import spent

    engine = base.load(job.train.engine)
    logger.info("%s", engine.open(cluster))
    stop.install()  # TensorFlow's server has replaced the signal handler
    if _is_finished(job, where, cluster, assignment, engine):
        return engine
    task = assignment.manifest.task
    check_inputs(job.train, assignment.manifest)
    batch = job.plan.batch_per_process
    reading = inputs.start_reading(assignment, batch, job.plan.steps_per_epoch, job.train.seed)
    events.phase("building the network")
    engine.build(job, assignment.manifest)
    if cluster.is_chief:
        _warn_untrainable(engine, job)
    checkpoints = Checkpoints(where.checkpoints, job.train.checkpoint.keep, cluster.rank, cluster.world_size)
    origin = identity(job, assignment.manifest.fingerprint)
    progress = resume(checkpoints, cluster, engine, origin, job.plan.steps)
    if job.train.needs_validation and not assignment.has("validation"):
        raise no_validation(job.train)
    metrics = Metrics(where.logs, progress.step) if cluster.is_chief else None
    if metrics and (graph := engine.graph()):
        metrics.graph(graph)
    training, validation = reading.result()
    best = None
    if job.train.export == "best":
        folder = Checkpoints(where.checkpoints / BEST_FOLDER, 2, cluster.rank, cluster.world_size)
        best = BestWeights(folder, cluster, origin)
    trainer = loop.Trainer(
        job=job, task=task, cluster=cluster, engine=engine, training_data=training, validation_data=validation,
        checkpoints=checkpoints, identity=origin, metrics=metrics, stop=stop, progress=progress, best=best, watch=watch,
        attempt=attempt,
    )  # fmt: skip
    began = progress.step
    trainer.train()
    seconds = trainer.spent.by_activity()
    attempt.begin(EXPORT)
    steps = weights_step = progress.step
    best_step = progress.selection.best_step
    if best and best_step not in (0, steps):
        best.restore(engine, best_step)
        weights_step = best_step
    checksum = engine.weights_checksum()
    if metrics:
        history = metrics.history()
        last = next((record for record in reversed(history) if record["kind"] == "train"), {})
        sentences = spent.told(seconds, job, assignment.manifest, engine.work(), last, trainer.waits)
        file = metrics.folder / spent.FILE_NAME
        if progress.step > began or not file.exists():  # else the attempt that ran the steps has written it
            replace_file(file, json.dumps({"seconds": seconds, "text": ". ".join(sentences)}, indent=2).encode())
        for line in [*_ended(job, history, TASKS[task].metric, best_step, weights_step), *sentences]:
            logger.info("%s", line)
            events.message(line)
        metrics.report_exported(weights_step)
        metrics.close()
        events.phase("exporting the model")
        went_back = checkpoints.went_back()
        export(engine, job, assignment.manifest, checksum, metrics.folder, where.model, steps, weights_step, went_back)
    engine.agree([0.0])  # barrier: a job may be considered finished when the chief exits
    logger.info("weights checksum %s", checksum)
    return engine


def _ended(job: JobConfig, history: list[Record], metric: str, best_step: int, exported_step: int) -> list[str]:
    """Return what is printed of the epochs, and of a better one than the exported."""
    lines = table(history, metric, *((best_step, exported_step) if job.train.needs_validation else ()))
    better = better_epoch(history, job.train.monitor, exported_step) if job.train.export == "last" else None
    return [*lines, better] if better else lines


def _is_finished(
    job: JobConfig, where: OutputPaths, cluster: Cluster, assignment: ShardAssignment, engine: Engine
) -> bool:
    """Return whether an earlier attempt of this job already exported its model; the chief decides."""
    checksum = exported(job, assignment.manifest, where.model) if cluster.is_chief else None
    (finished,) = engine.agree([float(checksum is not None)])
    if checksum is not None:
        logger.info("this job has finished already; its model is in %s", where.model)
        logger.info("weights checksum %s", checksum)
    return finished > 0


def _warn_untrainable(engine: Engine, job: JobConfig) -> None:
    if not engine.size().trainable:
        text = f"warning: the network of {job.model.builder} has no trainable weights; training will not change it"
        logger.warning("%s", text)
        events.message(text)


def _overridden(config: str, arguments: Sequence[str]) -> str:
    """Return the configuration with a trial's settings, for this process and its children."""
    if not arguments:
        return config
    from slipway.trainer.overrides import overridden

    _job(config)
    try:
        return overridden(config, arguments, os.environ)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = f"The settings of this trial are not valid: {first['msg']}."
        raise UserError(message, setting=name, value=" ".join(arguments)) from None


def _job(config: str) -> JobConfig:
    try:
        return JobConfig.model_validate_json(config)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"--config is not a valid job configuration: {first['msg']}.",
            setting=name or "--config",
            value=first.get("input"),
            allowed="the JSON of slipway.trainer.config.JobConfig, as plan_training writes it",
        ) from None


def _with_checksum(job: JobConfig) -> JobConfig:
    """Return the job with the checksum of its initial weights, which a resumed run and a finished one have to share."""
    if job.model.weights is None:
        return job
    model = job.model.model_copy(update={"weights": weights.with_checksum(job.model.weights)})
    return job.model_copy(update={"model": model})


def _check_replicas(job: JobConfig, cluster: Cluster) -> None:
    planned = job.plan.replicas * job.plan.processes
    if planned != cluster.world_size:
        raise UserError(
            f"The job was planned for {planned} replicas, but {cluster.source} lists {cluster.world_size}.",
            setting="plan.replicas",
            value=planned,
            nearest=str(cluster.world_size),
            fix="plan the training for the hardware that it runs on",
        )


if __name__ == "__main__":
    status = main()
    if (code := reported(status, os.environ)) != status:
        logger.info("exit code %d asks Vertex AI for another try", code)
    sys.stdout.flush()
    sys.stderr.flush()
    leave(status)
