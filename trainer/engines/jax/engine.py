"""The jax engine: Keras networks on JAX, in one compiled function of many steps, data parallel over all devices.

It treats the devices of one and of many processes alike, and CPUs, GPUs and TPUs too. BatchNormalization uses the
global batch's statistics.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from slipway.core.manifest import Manifest
from slipway.core.paths import local_path
from slipway.trainer import weights
from slipway.trainer.checkpoint.parts import Parts
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.data.inputs import Evaluation, MemoryTraining, TrainingData
from slipway.trainer.distributed import shared_sums
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines import hooks
from slipway.trainer.engines.base import (
    Engine,
    Measured,
    ModelSize,
    State,
    StepMetrics,
    Work,
    choose_sharding,
    verify_state,
)
from slipway.trainer.engines.jax import export
from slipway.trainer.engines.jax.devices import Devices, TopologyDevices, errors_named
from slipway.trainer.engines.jax.feed import Feed, MemoryFeed, StreamFeed, abstract, fits
from slipway.trainer.engines.jax.sharding import Gathering
from slipway.trainer.engines.jax.step import (
    CLASSIFICATION,
    Arrays,
    Layouts,
    Program,
    Step,
    Variables,
    has_convolutions,
    looks_at_one_example,
)
from slipway.trainer.engines.keras import model as keras_model
from slipway.trainer.engines.keras import normalization, optimizer
from slipway.trainer.engines.keras.objective import objective
from slipway.trainer.export import examples, saved_model, threshold
from slipway.trainer.hyperparameters import Precision
from slipway.trainer.plan import Stage, stage_of
from slipway.trainer.stages import check_patterns


def make() -> Engine:
    """Create the engine."""
    return JaxEngine()


class JaxEngine:
    """See `slipway.trainer.engines.base.Engine`."""

    # Set by `open`, unless they are not there.
    _devices: Devices
    # Set by `build`.
    _job: JobConfig
    _manifest: Manifest
    _model: keras.Model
    _is_sharded: bool
    _freeze_others: Callable[[Collection[str]], None]
    # Set by `begin`.
    _optimizer: keras.optimizers.Optimizer
    _step: Step
    _measure: Callable[..., jax.Array]

    def __init__(self, devices: TopologyDevices | None = None) -> None:
        if devices is not None:
            self._devices = devices
        self._sums: shared_sums.SharedSums | None = None
        self._variables: Variables = ([], [], [])
        self._in_model = False  # whether the network has their values
        self._stage: Stage | None = None
        self._feed: Feed | None = None
        self._max_steps = 1  # maximum steps in one call of the compiled function
        self._precision: Precision = "float32"

    def open(self, cluster: Cluster) -> str:
        with errors_named(cluster):
            self._devices = Devices(cluster)
        devices = self._devices
        if len(devices.local) == 1 and devices.kind == "CPU":
            self._sums = shared_sums.join(cluster, self.agree)
        there = f", {len(devices.all)} in {cluster.world_size} processes" if cluster.world_size > 1 else ""
        return f"JAX {jax.__version__}, {len(devices.local)} x {devices.kind} on this host{there}"

    def build(self, job: JobConfig, manifest: Manifest) -> None:
        devices = self._devices
        self._precision = keras_model.prepare(job, manifest, len(devices.local), devices.kind, devices.capability)
        self._max_steps = job.train.steps_per_call
        self._is_sharded = job.train.sharding == "fsdp"
        with self._beside():
            self._model = devices.built(lambda: self._network(job, manifest))
        self._is_sharded = choose_sharding(job.train, self.size(), devices.own_memory, len(devices.all), self.agree)
        normalization.synchronize(self._model, None)  # XLA computes the global batch's statistics
        check_patterns(job.train.stages, keras_model.layers(self._model))
        self._job, self._manifest = job, manifest
        self._freeze_others, self._stage = keras_model.freezer(self._model), None
        self.begin(0)

    @staticmethod
    def _network(job: JobConfig, manifest: Manifest) -> keras.Model:
        model = keras_model.build_network(job.model, manifest)
        if job.model.weights:
            weights.load_keras(model, job.model.weights)
        return model

    def begin(self, step: int) -> None:
        job = self._job
        stage = stage_of(job.train, job.plan, step)
        if stage == self._stage:
            return
        if self._stage is not None:
            self._into_model()
        self._stage, self._feed = stage, None
        self._freeze_others(stage.trainable)
        scaled = self._precision == "mixed_float16"
        variables = self._model.trainable_variables

        def made() -> tuple[keras.optimizers.Optimizer, keras.optimizers.Optimizer]:
            inner = optimizer.make(job.train, variables, clips=True)
            outer = keras.optimizers.LossScaleOptimizer(inner) if scaled else inner
            outer.build(variables)
            return inner, outer

        with self._beside():
            inner, self._optimizer = self._devices.built(made)
        layouts = self._layouts() if self._is_sharded else None
        self._step = Step(
            model=self._model,
            optimizer=self._optimizer,
            objective=objective(self._manifest, CLASSIFICATION, job.train),
            manifest=self._manifest,
            rate=_index(inner._learning_rate, self._optimizer.variables),
            loss_scale=_index(self._optimizer.dynamic_scale, self._optimizer.variables) if scaled else None,
            train=job.train,
            devices=self._devices,
            layouts=layouts,
            gathering=layouts and Gathering(variables, layouts[0], self._devices.whole_layout),
            own_augmentation=hooks.augmentation(job.train, self._manifest),
            is_loop_fast=self._devices.kind != "CPU" or not has_convolutions(self._model),
            sums_together=self._devices.kind == "CPU"
            and self._devices.cluster.world_size > 1
            and layouts is None
            and looks_at_one_example(self._model),
            sums=self._sums,
        )
        self._measure = self._step.measuring()
        self._place([variable for group in self._groups() for variable in group])

    def run(self, data: TrainingData, step: int, rates: NDArray[np.float32]) -> StepMetrics:
        with errors_named(self._devices.cluster, self._sums):
            if self._feed is None:
                self._feed = self._feed_for(data, step)
            self._in_model = False
            results = []
            for start in range(0, len(rates), self._feed.max_steps):
                some = rates[start : start + self._feed.max_steps]
                self._variables, metrics = self._feed.run(self._variables, step + start, some)
                results.append((metrics, len(some)))
            # Converting to NumPy waits for the results.
            parts = [
                np.concatenate([np.atleast_2d(metric) for metric in metrics])[:count] for metrics, count in results
            ]
            by_step = np.concatenate(parts).astype(np.float64)
        return StepMetrics(losses=by_step[:, 0], values=by_step[:, 1], waited=self._feed.take_waited())

    def _feed_for(self, data: TrainingData, step: int) -> Feed:
        if isinstance(data, MemoryTraining):
            # Every process must make the same decision.
            (too_large,) = self.agree([float(not fits(data.decoded_bytes, self._devices))])
            if not too_large:
                (examples,) = self.agree([data.examples])
                return MemoryFeed(data, self._step, self._max_steps, round(examples))
        return StreamFeed(data, self._step, self._max_steps, step)

    def program(self, assignment: ShardAssignment, batch: int) -> tuple[Program, tuple[Any, ...]]:
        """Return what `run` compiles on devices that are not there, and its arguments: see `abstract`."""
        step = replace(self._step, train=self._job.train.model_copy(update={"batch_size": batch}))
        program, arguments = abstract(assignment, step, self._max_steps, batch)
        return program, (self._variables, *arguments)

    def evaluate(self, data: Evaluation) -> Measured:
        trained, non_trainable, _ = self._variables
        metrics = self._step.objective.metrics
        sums = np.zeros(3 + len(metrics))
        with errors_named(self._devices.cluster):
            waiting: Arrays = []
            for batch in data.batches():
                waiting.append(self._measure(trained, non_trainable, *jax.tree.map(self._devices.split, batch)))
                if len(waiting) > 1:  # compute one batch while the next is read
                    sums += np.asarray(waiting.pop(0))
            for result in waiting:
                sums += np.asarray(result)
        return Measured.of(sums.tolist(), metrics)

    def agree(self, values: Sequence[float]) -> list[float]:
        array = np.asarray(values, np.float64)
        if self._devices.cluster.world_size == 1:
            return [float(value) for value in array]
        # Float64 is disabled on the devices: exchange the values as raw bytes.
        parts = np.tile(array.view(np.uint32)[np.newaxis], (len(self._devices.local), 1))
        with errors_named(self._devices.cluster):
            # All-gather. A new function for each call: with one that was kept, JAX did not report the loss of another
            # process as a JaxRuntimeError.
            gather = jax.jit(lambda same: same, out_shardings=self._devices.whole_layout)
            everywhere = np.asarray(gather(self._devices.split(parts)))
        return [float(value) for value in everywhere.view(np.float64).max(axis=0)]

    def state(self) -> State:
        with errors_named(self._devices.cluster):
            arrays = [self._devices.stored(array) for group in self._variables for array in group]
        return dict(zip(self._names(), arrays, strict=True))

    def load_state(self, state: State) -> None:
        arrays = [array for group in self._variables for array in group]
        names = self._names()
        verify_state(state, {name: (array.shape, array.dtype.name) for name, array in zip(names, arrays, strict=True)})
        self._place([state[name] for name in names])

    def work(self) -> Work:
        kind, devices = self._devices.local[0].device_kind, len(self._devices.all)
        return Work(kind, devices, self._precision, lambda: self._step.gradient_flops(self._variables))

    def graph(self) -> bytes | None:
        return None

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        with jax.profiler.trace(str(folder)):
            yield

    def size(self) -> ModelSize:
        return keras_model.size(self._model)

    def weights_checksum(self) -> str:
        self._into_model()
        return keras_model.checksum(self._model)

    def export(self, folder: Path, job: JobConfig, manifest: Manifest) -> float | None:
        self._into_model()
        model = self._model
        predict = functools.partial(export.on_cpu, model)
        decided = threshold.choose(job.train.threshold, local_path(job.data), manifest, predict)
        saved_model.write(folder, *export.as_function(model, manifest), manifest, decided)
        keras_model.save(model, folder)
        examples.write(folder, local_path(job.data), manifest, predict)
        return decided

    def close(self, wait_for_others: Callable[[], None]) -> None:
        if self._devices.cluster.is_chief:  # the runtime aborts a process that leaves after the chief
            wait_for_others()
        self._devices.leave()

    # The variables

    def _beside(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which Keras' own values of sharded variables are on the host, beside the devices."""
        if not self._is_sharded or self._devices.kind == "CPU":
            return contextlib.nullcontext()
        device: contextlib.AbstractContextManager[object] = jax.default_device(jax.local_devices(backend="cpu")[0])
        return device

    def _groups(self) -> tuple[list[keras.Variable], list[keras.Variable], list[keras.Variable]]:
        model = self._model
        return list(model.trainable_variables), list(model.non_trainable_variables), list(self._optimizer.variables)

    def _names(self) -> list[str]:
        """Return every variable's name in a checkpoint, in the order of `_variables`."""
        names: dict[int, str] = {}
        for group, variables in (("model", self._model.variables), ("optimizer", self._optimizer.variables)):
            for number, variable in enumerate(variables):
                names[id(variable)] = f"{group}/{number:04d}/{variable.name}"
        return [names[id(variable)] for group in self._groups() for variable in group]

    def _layouts(self) -> Layouts:
        """Return the layout of each variable that is sharded over the devices where that is worth it."""
        first, second, third = (
            [self._devices.part_layout(variable.shape) for variable in group] for group in self._groups()
        )
        return first, second, third

    def _place(self, values: Sequence[ArrayLike | Parts]) -> None:
        """Copy the values of all variables to the devices, in the order of `_groups`."""
        rest = iter(values)
        whole, groups = self._devices.whole_layout, self._groups()
        layouts = self._step.layouts or tuple([whole] * len(group) for group in groups)
        first, second, third = ([self._devices.place(next(rest), layout) for layout in group] for group in layouts)
        self._variables, self._in_model = (first, second, third), False
        if self._is_sharded:  # else each process would keep the whole network; see `_into_model`
            for variable in [variable for group in groups for variable in group]:
                variable._value = np.broadcast_to(np.zeros((), variable.dtype), variable.shape)

    def _into_model(self) -> None:
        """Copy the trained values into the network; the compiled functions work on separate arrays.

        All processes must call it, unless nothing was trained since it was called.
        """
        if self._in_model:
            return
        with errors_named(self._devices.cluster), self._beside():
            for variables, arrays in zip(self._groups(), self._variables, strict=True):
                for variable, array in zip(variables, arrays, strict=True):
                    variable.assign(self._devices.gathered(array))
        self._in_model = True


def _index(target: keras.Variable, variables: Sequence[keras.Variable]) -> int:
    return next(number for number, variable in enumerate(variables) if variable is target)
