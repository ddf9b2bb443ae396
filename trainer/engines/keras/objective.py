"""What a network is trained for: each task's loss and metric, in Keras operations.

An engine passes its own cross-entropy for classification, in its framework's fused operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from keras import ops
from numpy.typing import NDArray

from slipway.core.manifest import Manifest
from slipway.trainer.config import TrainSettings
from slipway.trainer.engines import hooks
from slipway.trainer.engines.keras import augment
from slipway.trainer.engines.keras.augment import Labels, Tensor
from slipway.trainer.hyperparameters import class_weights
from slipway.trainer.tasks import is_named_loss

# Function (outputs float32 [batch, outputs], labels [batch, …]) -> float32 [batch].
PerExample = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """The loss of each example, whose mean is minimized, and its part of the task's metric (TASKS[task].metric).

    `take` returns the elements of an array at a tensor of indices. `metrics` are the custom metrics by name
    (`train.metrics`), `class_weights` the factors of the classes in training, float32 [classes], or None.
    """

    losses: PerExample
    metric: PerExample
    take: Callable[[NDArray[np.float32], Tensor], Tensor]
    metrics: Mapping[str, PerExample] = field(default_factory=dict)
    class_weights: NDArray[np.float32] | None = None

    def training(self, outputs: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
        """Return each example's weighted loss, and its part of the metric, float32 [batch]; labels may be mixed."""

        def weighted(labels: Tensor) -> Tensor:
            losses = self.losses(outputs, labels)
            return losses if self.class_weights is None else losses * self.take(self.class_weights, labels)

        return augment.losses(weighted, labels), self.metric(outputs, augment.dominant(labels))

    def sums(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the sums of losses, metrics, weights (1, or 0 for padding) and custom metrics, float32 [3 + metrics].

        Args:
            outputs: The network's, float32 [batch, outputs].
            labels: [batch, …].
            weights: float32 [batch].
        """
        losses, metric = self.losses(outputs, labels), self.metric(outputs, labels)
        values = [losses, metric, weights, *(function(outputs, labels) for function in self.metrics.values())]
        # Not a product with the weights: the user's functions may return NaN for padding.
        return ops.stack([ops.sum(ops.where(weights > 0, value, 0.0)) for value in values])


def objective(manifest: Manifest, classification: Objective, train: TrainSettings) -> Objective:
    """Return the objective of the data set's task, with the user's loss and metrics if there are any.

    Args:
        manifest: The data set's manifest.
        classification: The engine's own objective for classes.
        train: The settings.

    Raises:
        UserError: A function of the user does not exist or is wrong.
    """
    losses, metric = _of_task(manifest, classification)
    if is_named_loss(train.loss):
        losses = _named(train.loss)
    elif train.loss:
        losses = hooks.per_example(train, "train.loss", manifest)
    metrics = {name: hooks.per_example(train, f"train.metrics.{name}", manifest) for name in train.metrics}
    return Objective(losses, metric, classification.take, metrics, class_weights(train, manifest))


def _named(loss: str) -> PerExample:
    """Return a loss of the standardized target by its name (`tasks.NAMED_LOSS_PATTERN`)."""
    name, _, level = loss.partition(":")
    if name == "mse":
        return _squared_error

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        error = labels - outputs[:, 0]
        size = ops.abs(error)
        if name == "quantile":
            return ops.maximum(float(level) * error, (float(level) - 1) * error)
        return size if name == "mae" else ops.where(size < 1, ops.square(error) / 2, size - 0.5)

    return losses


def _of_task(manifest: Manifest, classification: Objective) -> tuple[PerExample, PerExample]:
    if manifest.task == "multilabel":
        return _sigmoid_cross_entropy, _label_accuracy
    if manifest.target is not None:
        (mean,), (deviation,) = manifest.target.mean, manifest.target.deviation
        if manifest.target.logarithmic:
            return _squared_error, lambda outputs, labels: ops.abs(
                ops.exp(outputs[:, 0] * deviation + mean) - ops.exp(labels * deviation + mean)
            )
        return _squared_error, lambda outputs, labels: ops.abs(outputs[:, 0] - labels) * deviation
    return classification.losses, classification.metric


def _sigmoid_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    # softplus(x) - x y is -y log(sigmoid(x)) - (1 - y) log(1 - sigmoid(x)), without overflow.
    return ops.mean(ops.softplus(logits) - logits * labels, axis=-1)


def _label_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    right = ops.equal(ops.cast(logits > 0, "float32"), labels)
    return ops.mean(ops.cast(right, "float32"), axis=-1)


def _squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return ops.square(outputs[:, 0] - labels)
