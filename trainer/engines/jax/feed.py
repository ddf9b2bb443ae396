"""Input of the jax engine's steps: from device memory, or streamed to the devices ahead of the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.data.features import Inputs, Labels, blank, each
from slipway.trainer.data.inputs import DEVICE_MEMORY_FRACTION, MEMORY_BUDGET, MemoryTraining, TrainingData, padded
from slipway.trainer.engines.jax.devices import Devices
from slipway.trainer.engines.jax.step import Arrays, Program, Step, Variables

# Approximate bytes of inputs transferred to the devices at once.
CHUNK_BYTES = 64 * 1024**2


def fits(decoded_bytes: int, devices: Devices) -> bool:
    """Whether each device's memory can hold all of its process's training examples."""
    if devices.memory is None:
        return decoded_bytes * len(devices.local) <= MEMORY_BUDGET
    return decoded_bytes <= devices.memory * DEVICE_MEMORY_FRACTION


def rows_of(max_steps: int, batch: int, example_bytes: int) -> int:
    """Return the number of steps whose batches, `batch` examples of this process each, are streamed at once."""
    return max(1, min(max_steps, CHUNK_BYTES // (batch * example_bytes)))


def abstract(assignment: ShardAssignment, step: Step, max_steps: int, batch: int) -> tuple[Program, tuple[Any, ...]]:
    """Return what a feed compiles for devices that are not there, and the shapes of its inputs and rates.

    Args:
        assignment: The shards of the process that has the most examples.
        step: The step, on TopologyDevices.
        max_steps: The maximum number of steps in a call.
        batch: Examples of all processes in a step.
    """
    devices, size = step.devices, assignment.decoded_bytes("train")

    def shape(axis: int, *before: int) -> Callable[[NDArray[Any]], jax.ShapeDtypeStruct]:
        layout = devices.layout(axis)
        return lambda array: jax.ShapeDtypeStruct((*before, *array.shape[1:]), array.dtype, sharding=layout)

    example = blank(assignment.manifest, 1)
    if size <= MEMORY_BUDGET and fits(size, devices):
        copies = shape(0, assignment.examples("train") * len(devices.all))
        order = shape(1, max_steps, batch)(np.zeros(1, np.int32))
        inputs, program, rows = [*jax.tree.map(copies, example), order], step.memory_program(), max_steps
    else:
        rows = rows_of(max_steps, batch // assignment.workers, assignment.manifest.decoded_bytes)
        inputs, program = [*jax.tree.map(shape(1, rows, batch), example)], step.stream_program()
    return program, (inputs, np.int32(0), np.zeros(rows, np.float32), np.int32(1))


class Feed(Protocol):
    """Runs training steps on the data that it reads, at most `max_steps` per call."""

    max_steps: int

    def run(self, variables: Variables, step: int, rates: NDArray[np.float32]) -> tuple[Variables, Arrays]:
        """Run len(rates) steps from `step` on; return variables and metrics (see Steps) without waiting for them."""

    def take_waited(self) -> float:
        """Return the seconds that the devices waited for input since the last call."""


class MemoryFeed:
    """Holds the training split on every device; a call transfers only the order of the examples."""

    def __init__(self, data: MemoryTraining, step: Step, max_steps: int, examples: int) -> None:
        """`examples` is the maximum over all processes; the others pad with zeros, which are never used."""
        self._data, self._devices, self.max_steps = data, step.devices, max_steps
        whole = jax.tree.map(lambda array: step.devices.on_each(padded(array, examples)), (data.inputs, data.labels))
        self._inputs, self._labels = whole
        self._steps = step.from_memory()

    def run(self, variables: Variables, step: int, rates: NDArray[np.float32]) -> tuple[Variables, Arrays]:
        order = padded(self._data.order(step, len(rates)), self.max_steps)
        inputs = (self._inputs, self._labels, self._devices.split(order, axis=1))
        return self._steps(variables, inputs, step, padded(rates, self.max_steps), len(rates))

    def take_waited(self) -> float:
        return 0.0


class StreamFeed:
    """Reads batches while the devices compute: a call returns at once, and the next one reads."""

    def __init__(self, data: TrainingData, step: Step, max_steps: int, first: int) -> None:
        self._batches = _batches(data, first)
        self._devices, self._position = step.devices, first
        self._steps = step.from_stream()
        self.max_steps = rows_of(max_steps, data.batch, data.example_bytes)
        self._waited = 0.0
        self._running: jax.Array | None = None

    def run(self, variables: Variables, step: int, rates: NDArray[np.float32]) -> tuple[Variables, Arrays]:
        if step != self._position:
            raise ValueError(f"the stream is at step {self._position}, not {step}")
        self._position += len(rates)
        started = time.perf_counter()
        inputs, labels = zip(*(next(self._batches) for _ in rates), strict=True)
        # The devices waited for certain only if they were idle when reading finished.
        if self._running is None or self._running.is_ready():
            self._waited += time.perf_counter() - started

        def together(*batches: NDArray[np.generic]) -> jax.Array:
            return self._devices.split(padded(np.stack(batches), self.max_steps), axis=1)

        both = [each(together, *inputs), together(*labels)]
        variables, metrics = self._steps(variables, both, step, padded(rates, self.max_steps), len(rates))
        self._running = metrics[-1]
        return variables, metrics

    def take_waited(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited


def _batches(data: TrainingData, step: int) -> Iterator[tuple[Inputs, Labels]]:
    """Yield each step's decoded inputs and labels, from `step` on."""
    if not isinstance(data, MemoryTraining):
        yield from data.arrays_from(step)
        return
    inputs, labels = data.arrays(whole=False)
    while True:
        (order,) = data.order(step, 1)
        yield each(lambda array, order=order: array[order], inputs), labels[order]
        step += 1
