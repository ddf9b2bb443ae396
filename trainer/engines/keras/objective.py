"""What a network is trained for: each task's loss and figure, in Keras operations.

An engine passes its own cross-entropy for classification, in its framework's fused operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keras import ops

from slipway.core.manifest import Manifest
from slipway.trainer.engines.keras.augment import Tensor

# Function (outputs float32 [batch, outputs], labels [batch, …]) -> float32 [batch].
PerExample = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """The loss of each example, whose mean is minimized, and its part of the task's figure (TASKS[task].figure)."""

    losses: PerExample
    figures: PerExample


def objective(manifest: Manifest, classification: Objective) -> Objective:
    """Return the objective of the data set's task; `classification` is the engine's own."""
    if manifest.task == "multilabel":
        return Objective(_sigmoid_cross_entropy, _label_accuracy)
    if manifest.target is not None:
        (deviation,) = manifest.target.deviation
        return Objective(_squared_error, lambda outputs, labels: ops.abs(outputs[:, 0] - labels) * deviation)
    return classification


def _sigmoid_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    # softplus(x) - x y is -y log(sigmoid(x)) - (1 - y) log(1 - sigmoid(x)), without overflow.
    return ops.mean(ops.softplus(logits) - logits * labels, axis=-1)


def _label_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    right = ops.equal(ops.cast(logits > 0, "float32"), labels)
    return ops.mean(ops.cast(right, "float32"), axis=-1)


def _squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return ops.square(outputs[:, 0] - labels)
