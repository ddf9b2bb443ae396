"""How the jax engine's steps get their examples: from a device's own memory, or streamed to it ahead of the steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.trainer.data.inputs import MEMORY_BUDGET, MemoryTraining, TrainingData
from slipway.trainer.engines.jax.devices import Devices
from slipway.trainer.engines.jax.step import Step, Variables

# The part of a device's memory that the training split may take.
DEVICE_SHARE = 0.25
# About as many bytes of pixels go to the devices at once.
CHUNK_BYTES = 64 * 1024**2


def fits(data: MemoryTraining, devices: Devices) -> bool:
    """Whether each device can keep all of its process's training examples."""
    if devices.memory is None:
        return data.images.nbytes * len(devices.local) <= MEMORY_BUDGET
    return data.images.nbytes <= devices.memory * DEVICE_SHARE


class Feed(Protocol):
    """Runs steps on what it reads; at most `most` in a call."""

    most: int

    def run(self, variables: Variables, step: int, rates: NDArray[np.float32]) -> tuple[Variables, list[Any]]:
        """The variables after len(rates) steps from `step` on, and their figures (see Steps); before they are done."""

    def take_waited(self) -> float:
        """The seconds that the devices waited for input since this was asked last."""


class MemoryFeed:
    """The training split is on every device; a call sends the order of its examples."""

    def __init__(self, data: MemoryTraining, step: Step, most: int, examples: int) -> None:
        """`examples` is the most that any process has: the others fill up with zeros, which no order names."""
        self._data, self._devices, self.most = data, step.devices, most
        missing = examples - len(data.labels)
        images, labels = data.images, data.labels
        if missing:
            images = np.concatenate([images, np.zeros((missing, *images.shape[1:]), images.dtype)])
            labels = np.concatenate([labels, np.zeros(missing, labels.dtype)])
        self._images, self._labels = step.devices.on_each(images), step.devices.on_each(labels)
        self._steps = step.from_memory()

    def run(self, variables: Variables, step: int, rates: NDArray[np.float32]) -> tuple[Variables, list[Any]]:
        order = _filled(self._data.order(step, len(rates)), self.most)
        inputs = (self._images, self._labels, self._devices.split(order, axis=1))
        return self._steps(variables, inputs, step, _filled(rates, self.most), len(rates))

    def take_waited(self) -> float:
        return 0.0


class StreamFeed:
    """Batches are read while the devices compute: a call returns at once, and the next one reads."""

    def __init__(self, data: TrainingData, step: Step, most: int, first: int) -> None:
        self._batches = _batches(data, first)
        self._devices, self._position = step.devices, first
        self._steps = step.from_stream()
        shape = data.images.shape[1:] if isinstance(data, MemoryTraining) else data.share.manifest.image_shape
        self.most = max(1, min(most, CHUNK_BYTES // (data.batch * int(np.prod(shape)))))
        self._waited = 0.0
        self._running: Any = None

    def run(self, variables: Variables, step: int, rates: NDArray[np.float32]) -> tuple[Variables, list[Any]]:
        if step != self._position:
            raise ValueError(f"the stream is at step {self._position}, not {step}")
        self._position += len(rates)
        started = time.perf_counter()
        images, labels = zip(*(next(self._batches) for _ in rates), strict=True)
        # Whether the devices have waited is known only where they had nothing left to do when the reading was over.
        if self._running is None or self._running.is_ready():
            self._waited += time.perf_counter() - started
        both = [self._devices.split(_filled(np.stack(each), self.most), axis=1) for each in (images, labels)]
        variables, figures = self._steps(variables, both, step, _filled(rates, self.most), len(rates))
        self._running = figures[-1]
        return variables, figures

    def take_waited(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited


def _batches(data: TrainingData, step: int) -> Iterator[tuple[Any, Any]]:
    """Every step's images uint8 [batch, height, width, channels] and labels int32 [batch], from `step` on."""
    if not isinstance(data, MemoryTraining):
        yield from data.batches(step).as_numpy_iterator()
        return
    while True:
        (order,) = data.order(step, 1)
        yield data.images[order], data.labels[order]
        step += 1


def _filled(array: NDArray[Any], length: int) -> NDArray[Any]:
    """`array` with zeros at its end, `length` long: every call has the same shapes."""
    if len(array) == length:
        return array
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])
