"""Predictions on many examples: chunks are read, predicted and written at the same time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipway.core.errors import UserError
from slipway.core.noise import without_native_stderr
from slipway.pipelines.prediction.parts import Chunk, Fault
from slipway.serving import instances
from slipway.serving.model import Arrays, Model

# The next chunk's Python code runs while the library computes.
THREADS = 2
# What libraries say when memory is short: smaller batches may fit.
OUT_OF_MEMORY = ("ResourceExhausted", "OutOfMemory")


@dataclass(frozen=True)
class Answer:
    """An example's prediction, or the reason why there is none."""

    key: str
    prediction: Any = None
    error: str | None = None


def predict(model: Model, chunks: Iterator[Chunk]) -> Iterator[list[Answer]]:
    """Yield the answers to each chunk, in order.

    Raises:
        UserError: The model fails, other than by an image that cannot be decoded.
    """
    threads = 1 if model.is_custom else THREADS
    waiting: deque[Future[list[Answer]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_answers, model, chunk))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def quiet(model: Model) -> AbstractContextManager[None]:
    """Return a context without what decoders print on images that they cannot decode; a custom model's output stays."""
    return nullcontext() if model.is_custom else without_native_stderr()


def _answers(model: Model, chunk: Chunk) -> list[Answer]:
    sound = [index for index in range(len(chunk.keys)) if index not in chunk.faults]
    found: dict[int, Any] = dict(chunk.faults)
    if sound:
        found.update(zip(sound, _predicted(model, chunk.arrays, len(sound)), strict=True))
    return [
        Answer(key, error=found[index].reason) if isinstance(found[index], Fault) else Answer(key, found[index])
        for index, key in enumerate(chunk.keys)
    ]


def _predicted(model: Model, arrays: Arrays, examples: int) -> list[Any]:
    """Return the predictions, with a fault for each image that cannot be decoded and for each that is not finite."""
    try:
        outputs = model.predict(arrays)
        faults = {index: f"The model failed: {reason}" for index, reason in instances.not_finite(outputs).items()}
        if faults:
            kept = [index for index in range(examples) if index not in faults]
            outputs = {name: values[kept] for name, values in outputs.items()}
        return _with_faults(instances.predictions(model, outputs), faults, examples)
    except Exception as error:  # a failing model may raise anything
        values = {name: np.asarray(arrays[name]) for name in model.inputs}
        if examples > 1 and any(word in type(error).__name__ for word in OUT_OF_MEMORY):
            half = examples // 2
            first = {name: one[:half] for name, one in values.items()}
            second = {name: one[half:] for name, one in values.items()}
            return _predicted(model, first, half) + _predicted(model, second, examples - half)
        faults = {index: reason for index, _, reason in instances.undecodable(model, values)}
        if not faults:
            raise UserError(
                f"The model in {model.folder} does not run: {instances.sentence(error)}.",
            ) from error
        kept = [index for index in range(examples) if index not in faults]
        rest = _predicted(model, {name: one[kept] for name, one in values.items()}, len(kept)) if kept else []
        return _with_faults(rest, faults, examples)


def _with_faults(predictions: list[Any], faults: dict[int, str], examples: int) -> list[Any]:
    """Return the predictions of the examples without a fault, and the faults, in the order of the examples."""
    rest = iter(predictions)
    return [Fault(faults[index]) if index in faults else next(rest) for index in range(examples)]
