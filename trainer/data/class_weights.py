"""Class weights: `train.class_weights` applied to a data set's classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway.core.errors import UserError, nearest
from slipway.core.manifest import Manifest
from slipway.trainer.config import TrainSettings


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
