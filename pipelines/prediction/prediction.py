"""Predictions on many examples: chunks are read, predicted and written at the same time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from slipway.core.errors import UserError
from slipway.core.noise import without_native_stderr
from slipway.pipelines.prediction.parts import Chunk
from slipway.serving import instances
from slipway.serving.kinds import BadRequest
from slipway.serving.model import Model, Outputs

# The next chunk's Python code runs while the library computes.
THREADS = 2


@dataclass(frozen=True)
class Answers:
    """The answers to a chunk.

    Attributes:
        keys: The keys of its examples.
        outputs: The model's outputs for those with a prediction, in order; {} if there is none.
        errors: Why the others have none, by their index.
        unknown: The categories and texts that the training data does not have, by column; see `Field.unknown`.
        texts: The columns among these that are texts.
    """

    keys: list[str]
    outputs: Outputs
    errors: Mapping[int, str]
    unknown: Mapping[str, list[str]] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.keys)


def predict(model: Model, chunks: Iterator[Chunk]) -> Iterator[Answers]:
    """Yield the answers to each chunk, in order.

    Raises:
        UserError: The model fails, other than by an image that cannot be decoded.
    """
    threads = 1 if model.is_custom else THREADS
    waiting: deque[Future[Answers]] = deque()
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


def _answers(model: Model, chunk: Chunk) -> Answers:
    errors = {index: fault.reason for index, fault in chunk.faults.items()}
    sound = [index for index in range(len(chunk.keys)) if index not in errors]
    if not sound:
        return Answers(chunk.keys, {}, errors)
    try:
        outputs, faults = instances.outputs_of(model, chunk.arrays, len(sound), model.predict)
    except Exception as error:  # a failing model may raise anything
        raise UserError(f"The model in {model.folder} does not run: {instances.sentence(error)}.") from error
    for index, fault in faults.items():
        text = fault.problem if isinstance(fault, BadRequest) else f"The model failed: {fault}"
        errors[sound[index]] = text
    texts = frozenset(model.source(name) for name, feature in model.inputs.items() if feature.words)
    return Answers(chunk.keys, outputs, errors, model.unknown(chunk.arrays), texts)
