"""Predictions on many examples: chunks are read, predicted and written at the same time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from slipway.core.errors import UserError
from slipway.core.noise import without_native_stderr
from slipway.pipelines.prediction.parts import Chunk, Fault
from slipway.serving import instances
from slipway.serving.model import Model

# The next chunk's Python code runs while the library computes.
THREADS = 2


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
    try:
        predicted = instances.answers(model, chunk.arrays, len(sound), model.predict) if sound else []
    except Exception as error:  # a failing model may raise anything
        raise UserError(f"The model in {model.folder} does not run: {instances.sentence(error)}.") from error
    found: dict[int, Any] = {**chunk.faults, **dict(zip(sound, predicted, strict=True))}
    return [_answer(key, found[index]) for index, key in enumerate(chunk.keys)]


def _answer(key: str, found: Any) -> Answer:
    match found:
        case Fault(reason=reason) | instances.BadRequest(problem=reason):
            return Answer(key, error=reason)
        case instances.ModelFailed():
            return Answer(key, error=f"The model failed: {found}")
    return Answer(key, found)
