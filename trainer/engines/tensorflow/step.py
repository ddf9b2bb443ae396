"""One training step of a Keras network on TensorFlow: from a device's images to the update of the weights.

The gradients are those of the global batch, summed over all devices before anything is done to them; so clipping and
loss scaling see the same gradients on every device, and do the same.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.trainer.config import TrainSettings
from slipway.trainer.data.tracing import traced

# The loss scale of mixed_float16 at the start, and after how many steps without overflow it doubles.
FIRST_SCALE = 2.0**15
STEPS_BEFORE_GROWTH = 2000


class LossScale:
    """What the loss is multiplied by, so that float16 gradients neither vanish nor overflow; its state is checkpointed.

    It doubles after `STEPS_BEFORE_GROWTH` steps with finite gradients, and halves at one without, which is left out.
    """

    def __init__(self) -> None:
        options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.scale = tf.Variable(FIRST_SCALE, name="scale", dtype=tf.float32, **options)
        self.finite_steps = tf.Variable(0, name="finite_steps", dtype=tf.int64, **options)

    @property
    def variables(self) -> list[Any]:
        """Its state."""
        return [self.scale, self.finite_steps]

    def update(self, finite: Any) -> None:
        """Take note of whether a step's gradients were finite, a boolean scalar. Outside of any replica."""
        steps = tf.where(finite, self.finite_steps + 1, 0)
        grows = steps >= STEPS_BEFORE_GROWTH
        scale = tf.where(finite, tf.where(grows, self.scale * 2.0, self.scale), self.scale * 0.5)
        self.scale.assign(tf.clip_by_value(scale, 1.0, 2.0**24))
        self.finite_steps.assign(tf.where(grows, tf.zeros_like(steps), steps))


class TrainingStep:
    """A step's two halves: `gradients` on each device, then `update`.

    `part` is what a device computes at once, of a part of its share, as `gradients` does for all of it.

    Args:
        model: The network.
        optimizer: As `optimizer` makes it.
        train: The settings.
        class_weights: A factor for each class, float32 [classes], or None.
        replicas: How many devices share a batch.
        compiled: Whether XLA compiles the gradients' computation.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        train: TrainSettings,
        class_weights: NDArray[np.float32] | None,
        replicas: int,
        *,
        compiled: bool,
    ) -> None:
        self._model, self._optimizer, self._train = model, optimizer, train
        self._class_weights, self._replicas = class_weights, replicas
        self._variables = model.trainable_variables
        self.loss_scale = LossScale() if keras.config.dtype_policy().name == "mixed_float16" else None
        self.part = traced(self._of_part, jit_compile=True) if compiled else self._of_part

    @property
    def variables(self) -> list[Any]:
        """What of its state is not the network's and not the optimizer's."""
        return self.loss_scale.variables if self.loss_scale else []

    def gradients(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """A device's part of the global batch's loss and accuracy, float32 [2], and of the gradients.

        Args:
            images: What the network is given, float32 [share of the batch, height, width, channels].
            labels: int32 [share of the batch].
        """
        parts = self._train.accumulation
        if parts == 1:
            return self.part(images, labels)
        images = tf.reshape(images, [parts, -1, *images.shape[1:]])
        labels = tf.reshape(labels, [parts, -1])
        # One after the other: only one part's activations are in memory at a time.
        zeros = [tf.zeros_like(variable.value) for variable in self._variables]

        def add(number: Any, figures: Any, sums: list[Any]) -> Any:
            more, gradients = self.part(images[number], labels[number])
            return number + 1, figures + more, [one + other for one, other in zip(sums, gradients, strict=True)]

        first = (tf.constant(0), tf.zeros([2]), zeros)
        _, figures, sums = tf.while_loop(
            lambda number, *_: number < parts, add, first, parallel_iterations=1, maximum_iterations=parts
        )
        return figures, sums

    def update(self, gradients: list[Any]) -> None:
        """Apply the global batch's gradients; in replica context, the same on every device."""
        if self.loss_scale:
            gradients = [gradient / self.loss_scale.scale for gradient in gradients]
        if self._train.clip_norm is not None:
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(gradient)) for gradient in gradients]))
            factor = self._train.clip_norm / tf.maximum(norm, self._train.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        self._optimizer.apply(gradients, self._variables)

    def _of_part(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        # Every device has the same share, and every part of it the same size.
        examples = images.shape[0] * self._train.accumulation * self._replicas
        with tf.GradientTape() as tape:
            logits = tf.cast(self._model(images, training=True), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            if self._class_weights is not None:
                losses *= tf.gather(self._class_weights, labels)
            loss = tf.reduce_sum(losses) / examples
            if self._model.losses:  # the regularizers', the same on every device and for every part
                loss += tf.add_n(self._model.losses) / (self._replicas * self._train.accumulation)
            minimized = loss * self.loss_scale.scale if self.loss_scale else loss
        variables = [variable.value for variable in self._variables]
        gradients = tape.gradient(minimized, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        accuracy = tf.reduce_sum(correct(logits, labels)) / examples
        return tf.stack([loss, accuracy]), [tf.convert_to_tensor(gradient) for gradient in gradients]


def correct(logits: Any, labels: Any) -> Any:
    """1.0 where the most probable class is the label, else 0.0: float32 [batch]."""
    return tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels), tf.float32)


def all_finite(gradients: list[Any]) -> Any:
    """Whether all elements are finite, a boolean scalar."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
