"""Dynamic batching: requests that arrive while the model is busy are predicted together.

The model runs in one thread. Its next batch is what has arrived meanwhile, so a lone client waits for nobody. After a
batch of several requests, the thread waits up to `max_delay` for as many again, since their clients are about to send
the next ones. The queue is bounded: what does not fit is refused at once rather than answered too late.

A large request is split into parts of at most `max_batch` examples, where a large image counts as several. Its next
part waits behind the requests that arrived meanwhile, so that it delays them by one part only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from slipway.core.images import BadImage
from slipway.serving import instances
from slipway.serving.instances import ModelFailed
from slipway.serving.kinds import BadRequest, image_size
from slipway.serving.model import Arrays, Model
from slipway.serving.settings import Limits

POLL_SECONDS = 0.01
MEGAPIXEL = 1_000_000
Answer: TypeAlias = list[Any] | Exception

logger = logging.getLogger(__name__)


class Busy(Exception):
    """The queue is full."""


class Stopping(Exception):
    """The server is stopping."""


@dataclass(eq=False)
class _Part:
    """Some examples of a request, of which `offset` precede them in it; `following` is the request's next part."""

    model: Model
    arrays: Arrays
    examples: int
    weight: int
    offset: int
    future: asyncio.Future[list[Any]]
    deadline: float
    following: _Part | None = None
    kind: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Only arrays for one model and of the same shapes can be concatenated.
        self.kind = (id(self.model), *(array.shape[1:] for array in self.arrays.values()))


class Batcher:
    """Predicts for concurrent requests; all methods belong to one event loop.

    Args:
        limits: How requests are batched.
        observe: Called after each batch, in the model's thread, with its number of examples and its seconds.
    """

    def __init__(
        self, limits: Limits, observe: Callable[[int, float], None] = lambda _examples, _seconds: None
    ) -> None:
        self.limits = limits
        self.waiting = 0  # weight of the parts in the queue, which has one part of each request
        self._observe = observe
        self._queue: deque[_Part] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._last_parts = 1
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the model's thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Refuse new requests, finish the waiting ones, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        while self._thread is not None and self._thread.is_alive():
            await asyncio.sleep(POLL_SECONDS)

    async def predict(self, model: Model, arrays: Arrays) -> list[Any]:
        """Return the predictions for a request's arrays.

        Raises:
            Busy: The queue is full.
            Stopping: The server is stopping.
            TimeoutError: The request waited for too long.
            BadRequest: An image of the request cannot be decoded.
            ModelFailed: The model failed.
        """
        parts = self._parts(model, arrays)
        first = parts[0]
        with self._changed:
            if self._stopping:
                raise Stopping
            if self.waiting and self.waiting + first.weight > self.limits.max_queue:
                raise Busy
            self._append(first)
            self._changed.notify()
        if len(parts) == 1:
            return await first.future
        answers = await asyncio.gather(*(part.future for part in parts), return_exceptions=True)
        predictions = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            predictions += answer
        return predictions

    def _parts(self, model: Model, arrays: Arrays) -> list[_Part]:
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + self.limits.timeout
        weights = _weights(model, arrays)
        bounds, weight = [0], 0
        for index, example_weight in enumerate(weights):
            if weight and weight + example_weight > self.limits.max_batch:
                bounds.append(index)
                weight = 0
            weight += example_weight
        bounds.append(len(weights))
        parts = [
            _Part(
                model,
                {name: array[start:end] for name, array in arrays.items()},
                end - start,
                sum(weights[start:end]),
                start,
                loop.create_future(),
                deadline,
            )
            for start, end in itertools.pairwise(bounds)
        ]
        for part, following in itertools.pairwise(parts):
            part.following = following
        return parts

    def _append(self, part: _Part) -> None:
        self._queue.append(part)
        self.waiting += part.weight

    def _work(self) -> None:
        while batch := self._next():
            started = time.monotonic()
            answers = _answers(batch)
            self._observe(sum(part.examples for part in batch), time.monotonic() - started)
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_deliver, batch, answers)

    def _next(self) -> list[_Part]:
        """Wait for requests and return a batch of them; [] to stop."""
        limits = self.limits
        with self._changed:
            while not self._queue and not self._stopping:
                self._changed.wait()
            if self._last_parts > 1:
                until = time.monotonic() + limits.max_delay
                while len(self._queue) < self._last_parts and self.waiting < limits.max_batch and not self._stopping:
                    left = until - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
            batch: list[_Part] = []
            weight = 0
            while self._queue:
                part = self._queue[0]
                if batch and (part.kind != batch[0].kind or weight + part.weight > limits.max_batch):
                    break
                self._queue.popleft()
                weight += part.weight
                batch.append(part)
            self.waiting -= weight
            for part in batch:
                if part.following is not None:
                    self._append(part.following)
            self._last_parts = len(batch)
            return batch


def _weights(model: Model, arrays: Arrays) -> list[int]:
    """Return how many examples each example counts as: one for each megapixel of its images, at least one."""
    weights = [1] * len(next(iter(arrays.values())))
    for name, input_field in model.inputs.items():
        if input_field.is_image:
            for index, data in enumerate(arrays[name]):
                with contextlib.suppress(BadImage):  # fails when it is decoded
                    width, height = image_size(data)
                    weights[index] = max(weights[index], width * height // MEGAPIXEL)
    return weights


def _answers(batch: list[_Part]) -> list[Answer]:
    """Return each part's predictions, or its error."""
    now = time.monotonic()
    if all(part.deadline >= now for part in batch):
        return _predicted(batch)
    alive = [part for part in batch if part.deadline >= now]
    rest = iter(_predicted(alive) if alive else ())
    return [next(rest) if part.deadline >= now else TimeoutError() for part in batch]


def _predicted(parts: list[_Part]) -> list[Answer]:
    """Predict parts together; if the model fails, each alone, since one may be the cause, such as by its values."""
    model, arrays = parts[0].model, parts[0].arrays
    if len(parts) > 1:
        arrays = {name: np.concatenate([part.arrays[name] for part in parts]) for name in arrays}
    try:
        predictions = iter(instances.answers(model, arrays, sum(part.examples for part in parts), model.predict_padded))
    except Exception as error:  # a failing model may raise anything
        if len(parts) > 1:
            return [_predicted([part])[0] for part in parts]
        return [_failed(model, ModelFailed(instances.sentence(error)))]
    return [_of_part(part, list(itertools.islice(predictions, part.examples))) for part in parts]


def _of_part(part: _Part, predictions: list[Any]) -> Answer:
    """Return the predictions of a part's examples, or the first error among them."""
    for index, prediction in enumerate(predictions):
        if isinstance(prediction, BadRequest):
            return BadRequest(prediction.problem, part.offset + index, prediction.field)
        if isinstance(prediction, ModelFailed):
            return _failed(part.model, prediction)
    return predictions


def _failed(model: Model, error: ModelFailed) -> ModelFailed:
    logger.error("the model in %s failed: %s", model.folder, error)
    return error


def _deliver(batch: list[_Part], answers: list[Answer]) -> None:
    for part, answer in zip(batch, answers, strict=True):
        if part.future.done():  # its request was cancelled
            continue
        if isinstance(answer, Exception):
            part.future.set_exception(answer)
        else:
            part.future.set_result(answer)
