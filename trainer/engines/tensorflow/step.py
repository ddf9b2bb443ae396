"""One training step of a Keras network on TensorFlow: from a device's inputs to the weight update.

Gradients are summed over all devices before clipping and loss scaling, which therefore do the same on every device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import keras
import tensorflow as tf

from slipway.trainer.config import TrainSettings
from slipway.trainer.data.features import Tensors, each
from slipway.trainer.data.images import traced
from slipway.trainer.engines.keras import augment, normalization
from slipway.trainer.engines.keras.augment import Custom, Labels
from slipway.trainer.engines.keras.objective import Objective
from slipway.trainer.engines.keras.remat import Recomputing

# Initial loss scale of mixed_float16, and the number of steps without overflow after which it doubles.
FIRST_SCALE = 2.0**15
STEPS_BEFORE_GROWTH = 2000


class LossScale:
    """Dynamic loss scaling, so that float16 gradients neither underflow nor overflow; its state is checkpointed.

    It doubles after `STEPS_BEFORE_GROWTH` steps with finite gradients; otherwise it halves and the step is skipped.
    """

    def __init__(self) -> None:
        options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.scale = tf.Variable(FIRST_SCALE, name="scale", dtype=tf.float32, **options)
        self.finite_steps = tf.Variable(0, name="finite_steps", dtype=tf.int64, **options)

    @property
    def variables(self) -> list[tf.Variable]:
        """Its state."""
        return [self.scale, self.finite_steps]

    def update(self, finite: tf.Tensor) -> None:
        """Update the scale after a step; `finite` is a boolean scalar. Call in cross-replica context."""
        steps = tf.where(finite, self.finite_steps + 1, 0)
        grows = steps >= STEPS_BEFORE_GROWTH
        scale = tf.where(finite, tf.where(grows, self.scale * 2.0, self.scale), self.scale * 0.5)
        self.scale.assign(tf.clip_by_value(scale, 1.0, 2.0**24))
        self.finite_steps.assign(tf.where(grows, tf.zeros_like(steps), steps))


class TrainingStep:
    """The two halves of a training step: `gradients` on each device, then `update`.

    `part` computes the gradients of one micro-batch, `gradients` those of the device's whole part of the batch.

    Args:
        model: The network.
        optimizer: The optimizer made by `optimizer.make`.
        objective: The loss and the metric.
        train: The settings.
        devices: The number of devices that a batch is split over.
        compiled: Whether XLA compiles the gradient computation.
        recomputing: The context of a forward pass.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        objective: Objective,
        train: TrainSettings,
        devices: int,
        *,
        compiled: bool,
        recomputing: Recomputing = contextlib.nullcontext,
    ) -> None:
        self._model, self._optimizer, self._train = model, optimizer, train
        self._objective, self._devices, self._recomputing = objective, devices, recomputing
        self._variables = model.trainable_variables
        self.loss_scale = LossScale() if keras.config.dtype_policy().name == "mixed_float16" else None
        self.part = traced(self._of_part, jit_compile=True) if compiled else self._of_part

    @property
    def variables(self) -> list[tf.Variable]:
        """State variables other than the network's and the optimizer's."""
        return self.loss_scale.variables if self.loss_scale else []

    def gradients(self, inputs: Tensors, labels: Labels) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return a device's contribution to the global batch's loss and metric, float32 [2], and to the gradients.

        Args:
            inputs: The network's inputs, [per-device batch, …].
            labels: [per-device batch, …]; a dict if they are mixed.
        """
        parts = self._train.accumulation
        if parts == 1:
            return self.part(inputs, labels)
        inputs, labels = (
            each(lambda values: tf.reshape(values, [parts, -1, *values.shape[1:]]), batch) for batch in (inputs, labels)
        )
        # Sequentially, so that only one micro-batch's activations are in memory at a time.
        if self._devices > 1 and normalization.layers(self._model):
            return self._unrolled(inputs, labels)
        zeros = [tf.zeros_like(variable.value) for variable in self._variables]

        def add(
            number: tf.Tensor, metrics: tf.Tensor, sums: list[tf.Tensor]
        ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
            more, gradients = self.part(*(each(lambda values: values[number], batch) for batch in (inputs, labels)))
            return (
                number + 1,
                metrics + more,
                [total + gradient for total, gradient in zip(sums, gradients, strict=True)],
            )

        first = (tf.constant(0), tf.zeros([2]), zeros)
        _, metrics, sums = tf.while_loop(
            lambda number, *_: number < parts, add, first, parallel_iterations=1, maximum_iterations=parts
        )
        return metrics, sums

    def _unrolled(self, inputs: Tensors, labels: Labels) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the result of `gradients` without a loop, in which devices could not exchange statistics."""

        def part(number: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
            return self.part(*(each(lambda values: values[number], batch) for batch in (inputs, labels)))

        metrics, sums = part(0)
        for number in range(1, self._train.accumulation):
            with tf.control_dependencies(sums):
                more, gradients = part(number)
            metrics, sums = metrics + more, [total + gradient for total, gradient in zip(sums, gradients, strict=True)]
        return metrics, sums

    def update(self, gradients: list[tf.Tensor]) -> None:
        """Apply the global batch's gradients; call in replica context, the same on every device."""
        if self.loss_scale:
            gradients = [gradient / self.loss_scale.scale for gradient in gradients]
        if self._train.clip_norm is not None:
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(gradient)) for gradient in gradients]))
            factor = self._train.clip_norm / tf.maximum(norm, self._train.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        self._optimizer.apply(gradients, self._variables)

    def _of_part(self, inputs: Tensors, labels: Labels) -> tuple[tf.Tensor, list[tf.Tensor]]:
        # All per-device batches have the same size, and so have all micro-batches.
        examples = augment.dominant(labels).shape[0] * self._train.accumulation * self._devices
        variables = [variable.value for variable in self._variables]
        # Explicitly, since the tape does not watch variables that were created frozen.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            with self._recomputing():
                outputs = tf.cast(self._model(inputs, training=True), tf.float32)
            losses, metrics = self._objective.training(outputs, labels)
            loss = tf.reduce_sum(losses) / examples
            if self._model.losses:  # regularization, equal on every device and for every micro-batch
                loss += tf.add_n(self._model.losses) / (self._devices * self._train.accumulation)
            minimized = loss * self.loss_scale.scale if self.loss_scale else loss
        gradients = tape.gradient(minimized, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        metric = tf.reduce_sum(metrics) / examples
        return tf.stack([loss, metric]), [tf.convert_to_tensor(gradient) for gradient in gradients]


def augmented(
    inputs: Tensors, labels: tf.Tensor, train: TrainSettings, step: tf.Tensor, device: tf.Tensor,
    custom: Custom | None = None,
) -> tuple[Tensors, Labels]:  # fmt: skip
    """Augment a device's part of a step's batch (`augment.augmented`); deterministic for the settings' seed.

    `step` is the number of the step in the run (from 0), `device` that of the device in the job: integer scalars.
    """
    seed = tf.stack([tf.constant(train.seed, tf.int32), tf.cast(step, tf.int32)])
    seed = tf.random.fold_in(seed, tf.cast(device, tf.int32))
    seeds = tf.unstack(tf.random.split(seed, augment.TRANSFORMATIONS))

    def uniform(transformation: int, shape: tuple[int, ...], low: float, high: float) -> tf.Tensor:
        return tf.random.stateless_uniform(shape, seeds[transformation], low, high)

    def integers(transformation: int, shape: tuple[int, ...], low: int, high: int) -> tf.Tensor:
        return tf.random.stateless_uniform(shape, seeds[transformation], low, high, tf.int32)

    drawing = (uniform, integers)
    return augment.augmented(
        inputs, labels, train.augment, custom, drawing, lambda number: tf.random.fold_in(seed, number)
    )


CLASSIFICATION = Objective(
    losses=lambda logits, labels: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits),
    metric=lambda logits, labels: tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), labels), tf.float32),
    take=tf.gather,
)


def all_finite(gradients: list[tf.Tensor]) -> tf.Tensor:
    """Whether all elements are finite, a boolean scalar."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])


def checkpoint(function: Callable[..., list[tf.Tensor]], tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return what `function` returns for tensors, by which it is computed again for their gradients."""
    results: list[tf.Tensor] = tf.recompute_grad(function)(*tensors)
    return results
