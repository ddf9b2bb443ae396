"""Run many training steps in one TensorFlow call, from a split in memory or from a stream of batches.

There are two kinds: a graph loop for any number of devices, whose operations TensorFlow executes one by one; and, on a
single device, a loop that XLA compiles as a whole. Both accept any number of steps without retracing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.trainer.config import TrainSettings
from slipway.trainer.data.features import Tensors, each, scaled
from slipway.trainer.data.images import traced
from slipway.trainer.data.inputs import MemoryTraining, StreamTraining, TrainingData, padded
from slipway.trainer.distributed.shared_sums import SharedSums
from slipway.trainer.engines.keras.augment import Custom, Labels
from slipway.trainer.engines.tensorflow.step import TrainingStep, all_finite, augmented

Rates = NDArray[np.float32]
Batch = tuple[Tensors, tf.Tensor]  # decoded inputs and labels
# Function (first step's number, learning rates) -> (float32 [steps, 2], seconds spent on input): each step's loss and
# metric, this process's contribution to them.
Call = Callable[[int, Rates], tuple[tf.Tensor, float]]

# Limits on the batches passed to a compiled loop at once: decoded bytes, and for a stream the number of batches that
# its reader prefetches, so that it does not pause while they are trained on.
_HANDED_BYTES = 64 * 1024**2
_HANDED_OF_STREAM = 2


@dataclass(frozen=True)
class Layout:
    """How a batch is split: `local_devices` of the job's `devices` are here, with `per_device` examples each."""

    strategy: tf.distribute.Strategy
    local_devices: int
    devices: int
    per_device: int

    @property
    def batch(self) -> int:
        """This process's examples per step."""
        return self.local_devices * self.per_device


class StepLoop:
    """Creates the functions that run many steps in one call.

    Args:
        step: The training step.
        optimizer: The optimizer that `step` uses; its learning rate is set before each step.
        layout: How the batch is split over devices.
        train: The settings.
        compiled: Whether XLA compiles the whole loop; single device only.
        resident: The device that holds an in-memory split for a compiled loop ("GPU:0"); None for the CPU.
        own_augmentation: The user's augmentation, or None.
        sums: Sums the gradients of processes with one device each; None if the strategy does.
    """

    def __init__(
        self,
        step: TrainingStep,
        optimizer: keras.optimizers.Optimizer,
        layout: Layout,
        train: TrainSettings,
        *,
        compiled: bool,
        resident: str | None,
        own_augmentation: Custom | None = None,
        sums: SharedSums | None = None,
    ) -> None:
        self._step, self._optimizer, self._layout, self._train, self._sums = step, optimizer, layout, train, sums
        self._compiled, self._resident, self._own_augmentation = compiled, resident, own_augmentation

    def on(self, data: TrainingData, first: int) -> Call:
        """Return the call for `data`; a stream starts at step `first` and is read in order."""
        if isinstance(data, MemoryTraining):
            return self._compiled_from_memory(data) if self._compiled else self._from_memory(data)
        return _in_order((self._compiled_from_stream if self._compiled else self._from_stream)(data, first), first)

    # A loop in a graph

    def _from_memory(self, data: MemoryTraining) -> Call:
        """Gather examples in the graph; each call passes only their order."""
        inputs, labels = data.tensors(whole=False)
        shape = [self._layout.local_devices, self._layout.per_device]

        def batch(device: tf.Tensor, indices: tf.Tensor) -> Batch:
            return each(lambda values: tf.gather(values, indices[device]), inputs), tf.gather(labels, indices[device])

        order_type = tf.TensorSpec([None, *shape], tf.int32)

        @traced(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.float32), order_type])
        def steps(first: tf.Tensor, rates: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self._loop(first, rates, lambda number: ((order[number],), 0.0), batch)

        def call(step: int, rates: Rates) -> tuple[tf.Tensor, float]:
            started = time.perf_counter()
            order = data.order(step, len(rates)).reshape(len(rates), *shape)
            waited = time.perf_counter() - started
            return steps(step, rates, order)[0], waited

        return call

    def _from_stream(self, data: StreamTraining, first: int) -> Call:
        iterator = iter(data.batches(first))
        per_device = self._layout.per_device

        def fetch(_number: tf.Tensor) -> tuple[Batch, tf.Tensor]:
            started = _called(data.waiting.begin)
            with tf.control_dependencies([started]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(batch)):
                return batch, _called(data.waiting.end) - started

        def batch(device: tf.Tensor, inputs: Tensors, labels: tf.Tensor) -> Batch:
            start = device * per_device
            return each(lambda values: values[start : start + per_device], inputs), labels[start : start + per_device]

        @traced(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.float32)])
        def steps(first: tf.Tensor, rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self._loop(first, rates, fetch, batch)

        def call(step: int, rates: Rates) -> tuple[tf.Tensor, float]:
            metrics, waited = steps(step, rates)
            return metrics, float(waited)

        return call

    def _loop(
        self,
        first: tf.Tensor,
        rates: tf.Tensor,
        fetch: Callable[[tf.Tensor], tuple[tuple[Tensors, ...], tf.Tensor]],
        batch: Callable[..., Batch],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run steps in the graph; return their metrics, float32 [steps, 2], and the seconds spent in `fetch`.

        Args:
            first: The first step's number in the run (from 0), int32 scalar.
            rates: The steps' learning rates, float32 [steps].
            fetch: Function (step's number within the call) -> (the process's batch or its indices, seconds).
            batch: Function (device's number on this process, result of `fetch`) -> (decoded inputs, labels).
        """

        def on_device(step: tf.Tensor, *fetched: Tensors) -> tuple[tf.Tensor, list[tf.Tensor]]:
            context = tf.distribute.get_replica_context()
            device = context.replica_id_in_sync_group
            with tf.device("CPU:0"):
                inputs, labels = batch(device % self._layout.local_devices, *fetched)
            metrics, gradients = self._step.gradients(*self._prepared(inputs, labels, step, device))
            if self._layout.devices > 1:
                gradients = self._summed(gradients)
            if self._step.loss_scale:
                return metrics, gradients
            self._step.update(gradients)
            return metrics, []

        def one(
            number: tf.Tensor, metrics: tf.TensorArray, waited: tf.Tensor
        ) -> tuple[tf.Tensor, tf.TensorArray, tf.Tensor]:
            self._optimizer.learning_rate.assign(rates[number])
            fetched, seconds = fetch(number)
            by_device, gradients = self._layout.strategy.run(on_device, args=(first + number, *fetched))
            self._update_if_finite(gradients)
            metric = tf.add_n(self._layout.strategy.experimental_local_results(by_device))
            return number + 1, metrics.write(number, metric), waited + tf.cast(seconds, tf.float64)

        count = tf.shape(rates)[0]
        metrics = tf.TensorArray(tf.float32, size=count, element_shape=[2])
        _, metrics, waited = tf.while_loop(
            lambda number, *_: number < count, one, (tf.constant(0), metrics, tf.constant(0.0, tf.float64))
        )
        return metrics.stack(), waited

    def _summed(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sum gradients over all devices, in replica context."""
        if self._sums is None:
            context = tf.distribute.get_replica_context()
            sums: list[tf.Tensor] = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return sums
        add = self._sums.add
        # Stateful: a graph runs it once in each step, in order.
        sums = tf.numpy_function(lambda *arrays: add(arrays), gradients, [gradient.dtype for gradient in gradients])
        return [tf.ensure_shape(total, gradient.shape) for total, gradient in zip(sums, gradients, strict=True)]

    def _update_if_finite(self, gradients: list[tf.Tensor]) -> None:
        """Apply the gradients of a step with loss scaling, in cross-replica context; skips non-finite gradients."""
        if self._step.loss_scale is None:
            return
        strategy = self._layout.strategy
        finite = all_finite([strategy.experimental_local_results(gradient)[0] for gradient in gradients])

        def update() -> bool:
            strategy.run(self._step.update, args=(gradients,))
            return True

        tf.cond(finite, update, lambda: False)
        self._step.loss_scale.update(finite)

    # A loop that is compiled as a whole

    def _compiled_from_memory(self, data: MemoryTraining) -> Call:
        inputs, labels = data.tensors(whole=self._resident is not None)
        if self._resident:
            with tf.device(self._resident):
                inputs, labels = each(tf.identity, inputs), tf.identity(labels)

        def gather(order: tf.Tensor) -> Batch:
            return each(lambda values: tf.gather(values, order), inputs), tf.gather(labels, order)

        ahead = traced(gather, reduce_retracing=True)
        rows = 1 << 16 if self._resident else self._rows(data)
        rows = min(rows, self._train.steps_per_call)
        steps = self._compiled_steps(rows, gather if self._resident else lambda *batch: batch)

        def fetch(step: int, count: int) -> tuple[Tensors, ...]:
            order = padded(data.order(step, count), rows)
            return (tf.constant(order),) if self._resident else ahead(order)

        return _in_parts(rows, fetch, steps)

    def _compiled_from_stream(self, data: StreamTraining, first: int) -> Call:
        iterator = iter(data.batches(first))
        rows = min(_HANDED_OF_STREAM, self._train.steps_per_call, self._rows(data))

        def fetch(_step: int, count: int) -> tuple[Tensors, ...]:
            batches = [next(iterator) for _ in range(count)]
            inputs, labels = zip(*[*batches, *batches[:1] * (rows - count)], strict=True)
            return each(lambda *parts: tf.stack(parts), *inputs), tf.stack(labels)

        return _in_parts(rows, fetch, self._compiled_steps(rows, lambda *batch: batch))

    def _rows(self, data: TrainingData) -> int:
        return max(1, _HANDED_BYTES // (data.example_bytes * self._layout.batch))

    def _compiled_steps(self, rows: int, batch: Callable[..., Batch]) -> Callable[..., tf.Tensor]:
        """Return a function (first, count, rates [rows], *handed), compiled by XLA, that runs `count` <= `rows` steps.

        `handed` has a row for each step, from which `batch` makes its inputs and labels. The result has `rows` rows.
        """

        def one(
            number: tf.Tensor,
            metrics: tf.TensorArray,
            first: tf.Tensor,
            rates: tf.Tensor,
            handed: tuple[Tensors, ...],
        ) -> tuple[tf.Tensor, tf.TensorArray]:
            self._optimizer.learning_rate.assign(rates[number])
            inputs, labels = batch(*(each(lambda values: values[number], part) for part in handed))
            metric, gradients = self._step.gradients(*self._prepared(inputs, labels, first + number, 0))
            if self._step.loss_scale is None:
                self._step.update(gradients)
            else:
                self._update_if_finite(gradients)
            return number + 1, metrics.write(number, metric)

        @traced(jit_compile=True)
        def steps(first: tf.Tensor, count: tf.Tensor, rates: tf.Tensor, *handed: Tensors) -> tf.Tensor:
            metrics = tf.TensorArray(tf.float32, size=rows, element_shape=[2])
            _, metrics = tf.while_loop(
                lambda number, _: number < count,
                lambda number, metrics: one(number, metrics, first, rates, handed),
                (tf.constant(0), metrics),
            )
            return metrics.stack()

        return steps

    def _prepared(
        self, decoded: Tensors, labels: tf.Tensor, step: tf.Tensor, device: tf.Tensor
    ) -> tuple[Tensors, Labels]:
        """Convert a device's decoded inputs and labels to the training step's, with augmentation."""
        inputs = scaled(decoded)
        if not self._train.augment.is_on:
            return inputs, labels
        return augmented(inputs, labels, self._train, step, device, self._own_augmentation)


def _in_parts(rows: int, fetch: Callable[[int, int], tuple[Tensors, ...]], steps: Callable[..., tf.Tensor]) -> Call:
    def call(step: int, rates: Rates) -> tuple[tf.Tensor, float]:
        waited, parts = 0.0, []
        for start in range(0, len(rates), rows):
            count = min(rows, len(rates) - start)
            started = time.perf_counter()
            handed = fetch(step + start, count)
            waited += time.perf_counter() - started
            part = steps(
                tf.constant(step + start), tf.constant(count), padded(rates[start : start + count], rows), *handed
            )
            parts.append(part[:count])
        return tf.concat(parts, axis=0), waited

    return call


def _in_order(call: Call, first: int) -> Call:
    """Wrap `call` to check that each call continues where the previous one ended."""
    position = first

    def checked(step: int, rates: Rates) -> tuple[tf.Tensor, float]:
        nonlocal position
        if step != position:
            raise ValueError(f"the stream is at step {position}, not {step}")
        position += len(rates)
        return call(step, rates)

    return checked


def _called(time_of: Callable[[], np.float64]) -> tf.Tensor:
    """Return the result of a call, a time in seconds; deterministic runs do not allow tf.timestamp."""
    return tf.ensure_shape(tf.numpy_function(time_of, [], tf.float64), [])
