"""The examples that `slipway drift` compares: drawn from data in any format that `slipway predict` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.components.check_drift.features import (
    READ_TOGETHER,
    Sample,
    Values,
    of_examples,
    reference_in,
    sample_of,
)
from slipway.core.errors import UserError
from slipway.core.noise import without_native_stderr
from slipway.pipelines.prediction.parts import Chunk, Part
from slipway.serving.model import Model


def reference_of(model: Model, store: Path) -> Path:
    """Return the folder of the data set that a model was trained on, in a store on this machine.

    Raises:
        UserError: The store does not have it.
    """
    reference = reference_in(store, model)
    if reference is None:
        raise UserError(
            f"The data set on which the model in {model.folder} was trained is not in {store}.",
            setting="--reference",
            value=None,
            allowed="data like those that the model was evaluated on, in any format of slipway predict",
            fix="--reference DATA, or --store FOLDER",
        )
    return reference


def measured(model: Model, parts: Sequence[Part], most: int, seed: int) -> Sample:
    """Return the features of `most` examples, which are drawn from the parts.

    Raises:
        UserError: There are no examples, or the model does not run.
    """
    divided = [piece for part in parts for piece in part.divided(READ_TOGETHER)]
    total = sum(piece.examples or 0 for piece in divided)
    draws, share = np.random.default_rng(seed), min(1.0, most / max(1, total))
    examples: list[dict[str, Values]] = []
    failed = 0
    with without_native_stderr():
        for chunk in (chunk for piece in divided for chunk in piece.read(model, READ_TOGETHER)):
            chosen = draws.random(len(chunk.keys)) < share
            drawn = _drawn(chunk, chosen)
            failed += int(chosen.sum()) - len(drawn.keys)
            features, without = of_examples(model, drawn.arrays, len(drawn.keys))
            examples += features
            failed += without
    return sample_of(examples, failed)


def _drawn(chunk: Chunk, chosen: NDArray[np.bool_]) -> Chunk:
    """Return the chosen examples of a chunk, of those without a fault."""
    sound = np.array([index not in chunk.faults for index in range(len(chunk.keys))], bool)
    kept = chosen[sound]
    keys = [key for key, is_kept in zip(chunk.keys, chosen & sound, strict=True) if is_kept]
    return Chunk(keys, {name: np.asarray(values)[kept] for name, values in chunk.arrays.items()}, {})
