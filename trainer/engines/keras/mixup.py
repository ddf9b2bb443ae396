"""Mixup (`train.augment.mixup`): each image is blended with another one, and the loss with the loss for its label.

Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization". Both images are of a device's part of a step's batch.
Unlike in the paper's code, which has one factor for a batch, each image has its own, so that how a batch is split over
devices changes nothing in how it is blended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from keras import ops

from slipway.trainer.engines.keras.augment import Draw, Tensor

# Labels [batch, …]; with mixup a dict of `own`, `partner` and `share`, float32 [batch], the factor of the own label.
Labels: TypeAlias = Any


def mix(images: Tensor, labels: Tensor, alpha: float, uniform: Draw, integers: Draw) -> tuple[Tensor, Labels]:
    """Blend each example with the one that is a random distance after it, the same distance for all.

    Args:
        images: Float32 [n, height, width, channels], after all other augmentation.
        labels: [n, …].
        alpha: The parameter of the Beta distribution, above 0.
        uniform: Draws floats.
        integers: Draws integers.
    """
    examples = images.shape[0]
    drawn = uniform(7, (examples, 2), 0.0, 1.0)
    share = factors(drawn[:, 0], drawn[:, 1], alpha)
    distance = integers(8, (1,), 1, examples)
    partner = (ops.arange(examples, dtype=distance.dtype) + distance) % examples
    own = share[:, None, None, None]
    blended = own * images + (1 - own) * ops.take(images, partner, axis=0)
    return blended, {"own": labels, "partner": ops.take(labels, partner, axis=0), "share": share}


def factors(first: Tensor, second: Tensor, alpha: float) -> Tensor:
    """Return max(x, 1 - x) for x from Beta(alpha, alpha), of two independent draws in [0, 1) each; float32.

    Student's t with 2 alpha degrees of freedom is sqrt(2 alpha (u ** (-1 / alpha) - 1)) cos(2 pi v) (Bailey 1994,
    "Polar generation of random variates with the t-distribution"), and 1/2 + t / (2 sqrt(2 alpha + t²)) has the
    distribution Beta(alpha, alpha). Here this is written so that no intermediate value overflows.
    """
    radius = -ops.expm1(ops.log(first) / alpha)  # 1 - u ** (1 / alpha)
    along = radius * ops.square(ops.cos(math.pi * second))
    return 0.5 + 0.5 * ops.sqrt(ops.minimum(along / (1 - radius + along), 1.0))


def losses(of: Callable[[Tensor], Tensor], labels: Labels) -> Tensor:
    """Return each example's loss, float32 [batch]; `of` returns it for labels that are not mixed."""
    if not isinstance(labels, dict):
        return of(labels)
    share = labels["share"]
    return share * of(labels["own"]) + (1 - share) * of(labels["partner"])


def dominant(labels: Labels) -> Tensor:
    """Return the label of which an example has at least half."""
    return labels["own"] if isinstance(labels, dict) else labels
