"""Time a job's step and its input on the CPUs of this machine: `python -m slipway.trainer.engines.measured JSON`.

The JSON is a `Request`; the last line of the output is a `Rates` as JSON. The step runs on examples in memory, so that
its time is that of the computation; the input is read and decoded as a streamed split is.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from slipway.core.cores import available_cores, take_part
from slipway.core.paths import local_path
from slipway.trainer.config import JobConfig

# Examples of the smaller step, and of the larger one and the input at most.
FEW_EXAMPLES, READ_EXAMPLES = 2, 512
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}


class Request(BaseModel):
    """What to time, for at least `seconds` each: steps of `job` with few and with more examples, and its input.

    The process takes one of so many `parts` of this machine's cores, as one of several replicas does.
    """

    job: JobConfig
    seconds: float = 1.0
    parts: int = 1


class Rates(BaseModel):
    """What was measured on `cores` cores.

    Attributes:
        cores: The cores that the process could use.
        steps: Seconds of a step by its batch, the smaller one first.
        peaks: The most memory that the process had in use until then, in bytes, by the batch.
        examples: Examples that were read and decoded per second; None for a split that is decoded once, into memory.
        trainable: The size of the trainable variables in bytes, of which the gradients have as many.
        files: The SHA-256 of the project's files that were imported, by path.
        unknown: Why nothing was measured, as a phrase; "" if it was.
    """

    cores: int
    steps: dict[int, float] = {}
    peaks: dict[int, int] = {}
    examples: float | None = None
    trainable: int = 0
    files: dict[str, str] = {}
    unknown: str = ""

    def step(self, batch: float) -> float:
        """Return the seconds of a step of `batch` examples on these cores."""
        (few, short), *_, (many, long) = [*self.steps.items(), *self.steps.items()]
        slope = (long - short) / (many - few) if many > few else long / many
        return max(0.0, long - slope * many) + slope * batch


def rates(request: Request) -> Rates:
    """Return what was measured."""
    from slipway.core import manifest as manifests
    from slipway.trainer.data import inputs
    from slipway.trainer.data.assignment import ShardAssignment
    from slipway.trainer.distributed import cluster as clusters
    from slipway.trainer.engines import base, user_modules

    job, data = request.job, local_path(request.job.data)
    assignment = ShardAssignment(data, manifests.read(data), 0, 1)
    engine = base.load(job.train.engine)
    engine.open(clusters.read({}))
    result = Rates(cores=available_cores())
    stream = inputs.StreamTraining(assignment, min(job.train.batch_size, READ_EXAMPLES), 1, 0)
    batches = stream.arrays_from(0)
    examples, labels = _copied(next(batches))
    if assignment.decoded_bytes("train") > inputs.MEMORY_BUDGET:
        seconds = _seconds(lambda count: list(islice(batches, count)), request.seconds, most=1)
        result.examples = stream.batch / seconds

    def timed(batch: int) -> float:
        plan = job.plan.model_copy(update={"replicas": 1, "processes": 1, "batch_per_replica": batch})
        train = job.train.model_copy(update={"batch_size": batch, "accumulation": 1, "stages": ()})
        engine.build(job.model_copy(update={"train": train, "plan": plan}), assignment.manifest)
        engine.begin(0)
        held = inputs.MemoryTraining(Held(examples, labels), batch, max(1, len(labels) // batch), 0, 0)

        def run(count: int) -> None:
            engine.run(held, 0, np.full(count, 1e-6, np.float32))

        most = min(job.train.steps_per_call, job.plan.steps_per_epoch)  # a call ends with the epoch
        result.steps[batch] = _seconds(run, request.seconds, most)
        result.peaks[batch] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return result.steps[batch]

    few = min(len(labels), FEW_EXAMPLES)
    many = min(len(labels), int(few * request.seconds / timed(few) / 4))
    if many > few:  # otherwise, what does not grow with the batch is too little to measure
        timed(many)
    result.trainable, result.files = engine.size().trainable, user_modules.digests()
    return result


@dataclass(frozen=True)
class Held:
    """Decoded examples in memory, as `slipway.trainer.data.decoding.Decoding` has them once it has ended."""

    inputs: Any
    labels: Any

    def wait(self, *_: object) -> None:
        """Return at once: all examples are there."""


def _copied(batch: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return a batch in memory that engines may share."""
    from slipway.trainer.data.decoding import aligned
    from slipway.trainer.data.features import each

    def copied(array: NDArray[Any]) -> NDArray[Any]:
        copy = aligned(array.shape, array.dtype)
        copy[:] = array
        return copy

    inputs, labels = batch
    return each(copied, inputs), copied(labels)


def _seconds(run: Callable[[int], object], at_least: float, most: int) -> float:
    """Return the seconds of one of many steps, in calls of up to `most`; the first traces and compiles."""
    run(1)
    start = time.perf_counter()
    run(1)
    if (one := time.perf_counter() - start) >= at_least:
        return one
    most = max(1, min(most, int(at_least / one)))
    run(most)
    done, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < at_least:
        run(most)
        done += most
    return taken / done


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    asked = Request.model_validate_json(sys.argv[1])
    if asked.parts > 1:
        take_part(0, asked.parts)  # before libraries start threads
    from slipway.trainer.engines.quick_import import import_tensorflow

    import_tensorflow(asked.job.train.engine)
    print(rates(asked).model_dump_json(), flush=True)
