"""What an example's loss is multiplied by, for its class: `train.class_weights` on a data set's classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway.core.errors import UserError, nearest
from slipway.core.manifest import Manifest
from slipway.trainer.config import TrainSettings


def class_weights(train: TrainSettings, manifest: Manifest) -> NDArray[np.float32] | None:
    """A factor for each class in the manifest's order, float32 [classes]; None where all examples count the same.

    "balanced" gives a class of n examples, of N in the training split and K classes that have any, N / (K n): every
    class has the same sum of weights, and an example's is 1 on average.

    Raises:
        UserError: A class is named that the data set does not have.
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
                f"The data set has no class {name!r} to be weighted.",
                setting=f"train.class_weights.{name}",
                value=settings[name],
                allowed=", ".join(manifest.classes[:20]) + (", …" if len(manifest.classes) > 20 else ""),
                nearest=near,
                fix=f"write {near} in place of {name}" if near else f"leave {name} out",
            )
    return np.array([settings.get(name, 1.0) for name in manifest.classes], np.float32)
