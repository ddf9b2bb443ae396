"""The tensorflow engine: Keras networks in a custom training loop inside one tf.function.

Runs on one device, on several devices of one machine (MirroredStrategy), on several machines
(MultiWorkerMirroredStrategy) or on a TPU (TPUStrategy).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.core.paths import local_path
from slipway.trainer import weights
from slipway.trainer.config import JobConfig, ModelSettings, Plan, TrainSettings
from slipway.trainer.data.features import Tensors, each, scaled, specs
from slipway.trainer.data.images import traced
from slipway.trainer.data.inputs import Evaluation, TrainingData
from slipway.trainer.distributed import shared_sums
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.verification import verify_library
from slipway.trainer.engines import hooks
from slipway.trainer.engines.base import (
    Engine,
    Measured,
    ModelSize,
    OutOfMemory,
    PeerLost,
    State,
    StepMetrics,
    Work,
    verify_state,
)
from slipway.trainer.engines.keras import model as keras_model
from slipway.trainer.engines.keras import normalization
from slipway.trainer.engines.keras.objective import Objective, objective
from slipway.trainer.engines.keras.remat import Recomputing, Rematerialization
from slipway.trainer.engines.tensorflow import devices as tensorflow_devices
from slipway.trainer.engines.tensorflow import flops, network, optimizer, tpu
from slipway.trainer.engines.tensorflow.export import as_function
from slipway.trainer.engines.tensorflow.loop import Call, Layout, StepLoop
from slipway.trainer.engines.tensorflow.step import CLASSIFICATION, TrainingStep, checkpoint
from slipway.trainer.export import examples, saved_model, threshold
from slipway.trainer.hyperparameters import Precision
from slipway.trainer.plan import Stage, stage_of
from slipway.trainer.stages import ALL, check_patterns

logger = logging.getLogger(__name__)


def make() -> Engine:
    """Create the engine."""
    return TensorFlowEngine()


class TensorFlowEngine:
    """See `slipway.trainer.engines.base.Engine`."""

    # Set by `open`.
    _strategy: tf.distribute.Strategy
    _is_distributed: bool  # otherwise, the strategy is TensorFlow's default, and any function can use the variables
    _sums: shared_sums.SharedSums | None
    # Set by `build`.
    _manifest: Manifest
    _model: keras.Model
    _objective: Objective
    _train: TrainSettings
    _plan: Plan
    _freeze_others: Callable[[Collection[str]], None]
    _predict: tf.types.experimental.PolymorphicFunction
    # Set by `begin`.
    _optimizer: keras.optimizers.Optimizer
    _step: TrainingStep
    _loop: StepLoop

    def __init__(self) -> None:
        self._world_size = 1
        self._names: list[str] = []
        self._batch = 0  # this process's examples per step
        self._precision: Precision = "float32"
        self._compiled = False
        self._stage: Stage | None = None
        self._call: Call | None = None
        self._recomputing: Recomputing = contextlib.nullcontext
        self._measures: dict[tuple[int, str], Callable[..., tf.Tensor]] = {}

    @property
    def _local_devices(self) -> int:
        return self._devices // self._world_size

    @property
    def _devices(self) -> int:
        return int(self._strategy.num_replicas_in_sync)

    def open(self, cluster: Cluster) -> str:
        self._world_size = cluster.world_size
        if cluster.on_this_machine > 1:  # on Linux, the default; elsewhere, replicas would compete for the cores
            tf.config.threading.set_intra_op_parallelism_threads(available_cores())
        devices = tensorflow_devices.devices()
        if cluster.accelerators.kind != "tpu":
            verify_library("tensorflow")
        if cluster.accelerators.kind == "tpu":
            self._strategy = tpu.tpu_strategy(cluster)
            verify_library("tensorflow")
            devices = [f"TPU:{number}" for number in range(self._local_devices)]
            kind = "TPUStrategy"
        elif cluster.world_size > 1:
            self._strategy = tensorflow_devices.multi_worker_strategy(cluster, devices)
            kind = "MultiWorkerMirroredStrategy"
        elif len(devices) > 1:
            self._strategy = tf.distribute.MirroredStrategy(devices)
            kind = "MirroredStrategy"
        else:
            self._strategy = tf.distribute.get_strategy()
            kind = "one device"
        self._is_distributed = self._strategy is not tf.distribute.get_strategy()
        self._names = devices
        is_single = len(devices) == 1 and tensorflow_devices.kind(devices) == "CPU"
        self._sums = shared_sums.join(cluster, self.agree) if is_single else None
        return (
            f"TensorFlow {tf.__version__}, {kind}, {self._local_devices} x {devices[0].partition(':')[0]} on this host"
        )

    def build(self, job: JobConfig, manifest: Manifest) -> None:
        self._train, self._plan, self._batch = job.train, job.plan, job.plan.batch_per_replica
        self._manifest, self._objective = manifest, objective(manifest, CLASSIFICATION, job.train)
        self._own_augmentation = hooks.augmentation(job.train, manifest)
        kind, capability = tensorflow_devices.kind(self._names), tensorflow_devices.capability(self._names)
        tf.config.experimental.enable_op_determinism()  # no measurable cost on a CPU
        # Imports the builder outside of the scope, so that variables created on import are detected as foreign.
        self._precision = keras_model.prepare(job, manifest, self._local_devices, kind, capability)
        with _peers(), self._strategy.scope():  # the first values of variables are sent to all processes
            self._model = keras_model.build_network(job.model, manifest)
            if self._devices > 1:
                normalization.synchronize(self._model, tensorflow_devices.gather)
            if job.model.weights:
                weights.load_keras(self._model, job.model.weights)
            self._refuse_foreign_variables(job.model)
            if job.train.remat:
                self._recomputing = Rematerialization(job.model, self._model, checkpoint, explicit=True)
        check_patterns(job.train.stages, keras_model.layers(self._model))
        self._freeze_others, self._stage = keras_model.freezer(self._model), None
        # Traced once, for TensorBoard, validation and export.
        inputs, _ = specs(manifest, None, decoded=False)
        self._predict = traced(functools.partial(self._model, training=False), input_signature=[inputs])
        self.begin(0)
        logger.info("computing in %s, %s", self._precision, "compiled by XLA" if self._compiled else "not compiled")

    def begin(self, step: int) -> None:
        stage = stage_of(self._train, self._plan, step)
        if stage == self._stage:
            return
        train, kind, devices = self._train, tensorflow_devices.kind(self._names), self._devices
        self._stage, self._call = stage, None
        self._freeze_others(stage.trainable)
        with _peers(), self._strategy.scope():
            self._optimizer = optimizer.make(train, self._model.trainable_variables)
            self._compiled = network.compiles(train, self._model, kind, devices)
            self._step = TrainingStep(
                self._model, self._optimizer, self._objective, train, devices,
                compiled=self._compiled and devices > 1, recomputing=self._recomputing,
            )  # fmt: skip
        layout = Layout(self._strategy, self._local_devices, devices, self._batch // self._local_devices)
        self._loop = StepLoop(
            self._step, self._optimizer, layout, train, compiled=self._compiled and devices == 1,
            resident=self._names[0] if kind != "CPU" else None, own_augmentation=self._own_augmentation,
            sums=self._sums,
        )  # fmt: skip

    def _refuse_foreign_variables(self, settings: ModelSettings) -> None:
        """Raise UserError for a variable created outside of the builder, which only one device would have."""
        for variable in self._model.variables:
            if not self._strategy.extended.variable_created_in_scope(variable.value):
                raise UserError(
                    f"The variable {variable.path} of {settings.builder} was created outside of the builder: "
                    f"{self._devices} devices cannot share it.",
                    setting="model.builder",
                    value=settings.builder,
                    allowed="a function that creates all layers and variables itself",
                    fix="create the layer inside the function, on every call",
                )

    def run(self, data: TrainingData, step: int, rates: NDArray[np.float32]) -> StepMetrics:
        with self._errors():
            if self._call is None:
                self._call = self._loop.on(data, step)
            metrics, waited = self._call(step, rates)
            metrics = (self._reduce(metrics, "SUM") if self._world_size > 1 else metrics).numpy().astype(np.float64)
        return StepMetrics(losses=metrics[:, 0], values=metrics[:, 1], waited=waited)

    def evaluate(self, data: Evaluation) -> Measured:
        key = (data.batch, data.assignment.manifest.fingerprint)
        if key not in self._measures:  # retracing each epoch would take longer than evaluating a small split
            self._measures[key] = self._measuring_function(data)
        measure = self._measures[key]
        sums = np.zeros(3 + len(self._objective.metrics))
        with self._errors():
            for inputs, labels, weights in data.batches():
                sums += measure(inputs, labels, weights).numpy()
        return Measured.of(self._over_processes(sums, "SUM"), self._objective.metrics)

    def agree(self, values: Sequence[float]) -> list[float]:
        return self._over_processes(values, "MAX")

    def state(self) -> State:
        return {name: np.asarray(variable.numpy()) for name, variable in self._variables().items()}

    def load_state(self, state: State) -> None:
        variables = self._variables()
        verify_state(
            state, {name: (tuple(weight.shape), tf.as_dtype(weight.dtype).name) for name, weight in variables.items()}
        )
        for name, variable in variables.items():
            variable.assign(state[name])

    def work(self) -> Work:
        def step_flops() -> float | None:
            of_example = flops.example_flops(self._model, self._manifest, self._objective)
            return None if of_example is None else of_example * self._batch * self._world_size

        return Work(tensorflow_devices.maker_name(self._names), self._devices, self._precision, step_flops)

    def graph(self) -> bytes | None:
        graph = self._predict.get_concrete_function().graph
        return bytes(graph.as_graph_def(add_shapes=True).SerializeToString())

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        with tf.profiler.experimental.Profile(str(folder)):
            yield

    def size(self) -> ModelSize:
        return keras_model.size(self._model)

    def weights_checksum(self) -> str:
        return keras_model.checksum(self._model)

    def export(self, folder: Path, job: JobConfig, manifest: Manifest) -> float | None:
        if not self._is_distributed and self._precision == "float32":
            self._freeze_others(ALL)  # model.keras has the layers as the builder made them
            model, predict = self._model, self._predict
        else:
            # Rebuild the network with plain variables: the trained one's belong to the strategy, and saving them would
            # require every process. It computes in float32, which every serving device supports.
            keras.config.set_dtype_policy("float32")
            with tf.distribute.get_strategy().scope() if self._world_size == 1 else contextlib.nullcontext():
                model = predict = keras_model.build_network(job.model, manifest)
            for target, trained in zip(model.weights, self._model.weights, strict=True):
                target.assign(trained.numpy())
        outputs = as_function(model)[0]
        decided = threshold.choose(job.train.threshold, local_path(job.data), manifest, outputs)
        saved_model.write(folder, predict, [variable.value for variable in model.variables], manifest, decided)
        keras_model.save(model, folder)
        examples.write(folder, local_path(job.data), manifest, outputs)
        return decided

    def close(self, _wait_for_others: Callable[[], None]) -> None:
        """Do nothing: TensorFlow's server ends with the process."""

    # Measuring

    def _measuring_function(self, data: Evaluation) -> Callable[..., tf.Tensor]:
        per_device = data.batch // self._local_devices
        inputs_spec, labels_spec = specs(data.assignment.manifest, data.batch, decoded=True)
        predict = functools.partial(self._model, training=False) if self._is_distributed else self._predict

        def device_sums(inputs: Tensors, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            start = per_device * (tf.distribute.get_replica_context().replica_id_in_sync_group % self._local_devices)
            with tf.device("CPU:0"):
                inputs = each(lambda values: values[start : start + per_device], inputs)
                labels, weights = (part[start : start + per_device] for part in (labels, weights))
            outputs = tf.cast(predict(scaled(inputs)), tf.float32)
            return tf.cast(self._objective.sums(outputs, labels, weights), tf.float64)

        @traced(input_signature=[inputs_spec, labels_spec, tf.TensorSpec([data.batch], tf.float32)])
        def measure(inputs: Tensors, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            by_device = self._strategy.run(device_sums, args=(inputs, labels, weights))
            return tf.add_n(self._strategy.experimental_local_results(by_device))

        return measure

    # Between processes

    def _over_processes(self, values: Sequence[float] | NDArray[np.float64], how: str) -> list[float]:
        if self._world_size == 1:
            return [float(value) for value in values]
        with _peers():
            return [float(value) for value in self._reduce(tf.constant(values, tf.float64), how)]

    @traced(reduce_retracing=True)
    def _reduce(self, values: tf.Tensor, how: str) -> tf.Tensor:
        """Return the sum or maximum of `values` (a vector or matrix) over all processes, of which there are several."""
        if how == "MAX":
            # Strategies can only sum, so each process writes its values into its own row.
            is_own = tf.range(self._world_size)[:, tf.newaxis] == self._strategy.extended._id_in_cluster
            # Not a product, since values may be infinite.
            rows = tf.where(is_own, values[tf.newaxis, :], tf.zeros_like(values)[tf.newaxis, :])
            return tf.reduce_max(self._reduce(rows, "SUM"), axis=0)

        def everywhere() -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, values / self._local_devices
            )

        return self._strategy.experimental_local_results(self._strategy.run(everywhere))[0]

    def _variables(self) -> dict[str, keras.Variable]:
        """Return all variables by a name that contains their position, identical for every build of a network."""
        groups = {"model": self._model.variables, "optimizer": self._optimizer.variables, "loss": self._step.variables}
        return {
            f"{group}/{number:04d}/{variable.name.removesuffix(':0')}": variable
            for group, variables in groups.items()
            for number, variable in enumerate(variables)
        }

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the errors of a lost replica and of exhausted memory to PeerLost and OutOfMemory."""
        try:
            with _peers():
                yield
        except tf.errors.ResourceExhaustedError as error:
            examples = self._batch // self._local_devices // self._train.accumulation
            fits = network.largest_batch_that_fits(self._step.part, self._manifest, examples)
            cause = re.search(r"(OOM|[Oo]ut of memory).*", error.message)
            raise OutOfMemory(cause[0] if cause else error.message.partition("\n")[0], fits) from error
        except tf.errors.OpError as error:
            if self._sums and self._sums.lost:
                raise PeerLost(self._sums.lost) from error
            raise


# What gRPC, the collective operations and the coordination service raise when another process is lost.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    """Convert the errors of a lost replica to PeerLost, also where one reached the model builder."""
    try:
        yield
    except (*_LOST, UserError) as error:
        lost = error.__cause__ if isinstance(error, UserError) else error
        if not isinstance(lost, _LOST):
            raise
        cause = re.search(r"Collective ops is aborted by: (.*)", lost.message)
        raise PeerLost(cause[1] if cause else lost.message.partition("\n")[0]) from error
