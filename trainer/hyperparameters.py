"""Hyperparameters as engines use them: the learning rate of each step, class weights and the compute precision.

They are the same for every engine. The learning rate has a warm-up, then a schedule that decays to a final value.
With W of T steps as warm-up, peak p and final rate f, the rate of step k (from 0) is p (k + 1) / (W + 1) while k < W.
After that, with x = (k - W) / (T - W):

- linear: p + (f - p) x
- cosine: f + (p - f) (1 + cos πx) / 2
- exponential: p (f / p)^x
- piecewise: p multiplied by `factor` once for each milestone reached by k, but at least f

The first three would reach f right after the last step. In a run with stages, k, T and p are those of the stage.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slipway.core.errors import UserError, nearest
from slipway.core.manifest import Manifest
from slipway.trainer.config import Plan, TrainSettings
from slipway.trainer.plan import Stage, stage_of

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
# Minimum NVIDIA compute capability for matrix multiplication in bfloat16 (Ampere) and in float16 (Volta).
BFLOAT16_CAPABILITY = (8, 0)
FLOAT16_CAPABILITY = (7, 0)
# Default factor of a piecewise schedule at each milestone.
FACTOR = 0.1


def rates(train: TrainSettings, plan: Plan, step: int, count: int) -> NDArray[np.float32]:
    """Return the learning rates of `count` steps of a stage starting at `step` (from 0), float32 [count]."""
    stage = stage_of(train, plan, step)
    steps = np.arange(step, step + count, dtype=np.float64) - stage.start
    warmup = warmup_steps(train, plan)
    rising = stage.learning_rate * (steps + 1) / (warmup + 1)
    return np.where(steps < warmup, rising, _after_warmup(train, plan, stage, steps, warmup)).astype(np.float32)


def warmup_steps(train: TrainSettings, plan: Plan) -> int:
    """Return the number of warm-up steps, which may exceed the length of the run or stage."""
    warmup = train.schedule.warmup
    return 0 if warmup is None else warmup.in_steps(train.batch_size, plan.steps_per_epoch)


def _after_warmup(
    train: TrainSettings, plan: Plan, stage: Stage, steps: NDArray[np.float64], warmup: int
) -> NDArray[np.float64]:
    peak, schedule = stage.learning_rate, train.schedule
    final = schedule.final or 0.0
    over = np.clip((steps - warmup) / max(1, stage.end - stage.start - warmup), 0.0, 1.0)
    match schedule.shape:
        case "constant":
            return np.full_like(steps, peak)
        case "linear":
            return peak + (final - peak) * over
        case "cosine":
            return final + (peak - final) * (1 + np.cos(np.pi * over)) / 2
        case "exponential":
            return peak * (final / peak) ** over
        case "piecewise":
            ends = [milestone.in_steps(train.batch_size, plan.steps_per_epoch) for milestone in schedule.milestones]
            reached = np.searchsorted(np.sort(ends), steps, side="right")
            return np.maximum(peak * (schedule.factor or FACTOR) ** reached, final)


def class_weights(train: TrainSettings, manifest: Manifest) -> NDArray[np.float32] | None:
    """Return a factor per class in the manifest's order, float32 [classes]; None without class weights.

    "balanced" is N / (K n) for a class with n examples, where N is the number of training examples and K the number of
    classes that have any. All classes then have the same total weight, and the mean weight of an example is 1.

    Raises:
        UserError: The settings name a class that the data set does not have.
    """
    settings = train.class_weights
    if settings is None:
        return None
    if settings == "balanced":
        counts = np.array([manifest.splits["train"].classes.get(name, 0) for name in manifest.classes], np.float64)
        present = counts > 0
        weights = np.where(present, counts.sum() / (present.sum() * np.maximum(counts, 1)), 1.0)
        return weights.astype(np.float32)
    for name in settings:
        if name not in manifest.classes:
            near = nearest(name, manifest.classes)
            raise UserError(
                f"The data set has no class {name!r}.",
                setting=f"train.class_weights.{name}",
                value=settings[name],
                allowed=", ".join(manifest.classes[:20]) + (", …" if len(manifest.classes) > 20 else ""),
                nearest=near,
                fix=f"replace {name} with {near}" if near else f"remove {name}",
            )
    return np.array([settings.get(name, 1.0) for name in manifest.classes], np.float32)


def choose_precision(train: TrainSettings, device: str, capability: tuple[int, int] | None = None) -> Precision:
    """Return the configured precision; for "auto" the fastest one that the device supports natively.

    Args:
        train: The settings.
        device: CPU, GPU or TPU.
        capability: A GPU's compute capability, None if unknown.
    """
    if train.precision != "auto":
        return train.precision
    if device == "TPU" or (device == "GPU" and (capability or (0, 0)) >= BFLOAT16_CAPABILITY):
        return "mixed_bfloat16"
    if device == "GPU" and (capability or (0, 0)) >= FLOAT16_CAPABILITY:
        return "mixed_float16"
    return "float32"
