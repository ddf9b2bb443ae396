"""Input pipeline: a worker's shards of a prepared data set as batches of decoded inputs in a deterministic order.

Each worker reads every n-th shard. A training split whose decoded inputs fit in memory is decoded once
(`MemoryTraining`), and each epoch uses a permutation drawn from seed and epoch. A larger one is streamed
(`StreamTraining`) through a shuffle buffer that is seeded the same way. Either way, the batch of a step depends only on
the seed and the step's number, so a resumed run sees the same batches as an uninterrupted one.

Records are parsed and decoded in groups, one group per core at a time. The group size does not affect the order.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.cores import available_cores
from slipway.core.manifest import Manifest
from slipway.trainer.data.assignment import Share
from slipway.trainer.data.features import Features, Inputs, Labels, Tensors, blank, each
from slipway.trainer.data.images import as_it_is

# Maximum decoded size of a split that a worker keeps in memory, in bytes. A constant rather than a fraction of the
# available memory, so that a run resumed on another machine reads in the same order.
MEMORY_BUDGET = 2 * 1024**3
# Size of the shuffle buffer of a streamed split, in encoded examples and in bytes; the lower limit applies.
SHUFFLE_EXAMPLES = 16_384
SHUFFLE_BYTES = 256 * 1024**2
_SHARDS_TOGETHER = 8
# Maximum examples and decoded bytes of a group: small enough to stay in the CPU's caches and to reuse the previous
# group's memory.
_GROUP_EXAMPLES = 128
_GROUP_BYTES = 8 * 1024**2
# Alignment that TensorFlow requires to use an array without a copy.
_ALIGNMENT = 64
_PROGRESS_SECONDS = 0.5

logger = logging.getLogger(__name__)

# Receives how many more examples have been decoded.
Tick = Callable[[int], None]


@dataclass(frozen=True)
class MemoryTraining:
    """A training split in memory: `inputs` and `labels` of all examples, see `slipway.trainer.data.features`."""

    inputs: Inputs
    labels: Labels
    batch: int
    steps_per_epoch: int
    seed: int
    rank: int

    @property
    def decoded_bytes(self) -> int:
        """Size of the inputs."""
        return sum(array.nbytes for array in tf.nest.flatten(self.inputs))

    @property
    def example_bytes(self) -> int:
        """Size of one example's inputs."""
        return self.decoded_bytes // len(self.labels)

    def tensors(self) -> tuple[Tensors, tf.Tensor]:
        """Return inputs and labels as CPU tensors; the inputs share memory with the arrays."""
        with tf.device("CPU:0"):
            inputs = each(lambda array: tf.experimental.dlpack.from_dlpack(array.__dlpack__()), self.inputs)
            return inputs, tf.constant(self.labels)

    def order(self, step: int, count: int) -> NDArray[np.int32]:
        """Return the example indices of `count` steps starting at `step` (from 0), [count, batch]."""
        rows = []
        while count > 0:
            epoch, position = divmod(step, self.steps_per_epoch)
            taken = min(count, self.steps_per_epoch - position)
            rows.append(self._epoch_order(epoch)[position : position + taken])
            step, count = step + taken, count - taken
        return np.concatenate(rows)

    def _epoch_order(self, epoch: int) -> NDArray[np.int32]:
        """Return one epoch's indices, [steps_per_epoch, batch].

        Shards differ by a few examples, so a worker may have fewer examples than an epoch needs; it then repeats them
        in another order.
        """
        needed = self.steps_per_epoch * self.batch
        passes = -(-needed // len(self.labels))
        orders = [
            np.random.default_rng([self.seed, epoch, self.rank, number]).permutation(len(self.labels))
            for number in range(passes)
        ]
        return np.concatenate(orders)[:needed].astype(np.int32).reshape(self.steps_per_epoch, self.batch)


@dataclass(frozen=True)
class StreamTraining:
    """A training split that is streamed from its shards in every epoch."""

    share: Share
    batch: int
    steps_per_epoch: int
    seed: int

    @property
    def example_bytes(self) -> int:
        """Size of one example's decoded inputs."""
        return self.share.manifest.decoded_bytes

    def batches(self, step: int) -> tf.data.Dataset:
        """Return an infinite tf.data.Dataset of batches starting at `step` (from 0).

        Elements are decoded inputs and labels. Earlier records of the same epoch are read and skipped without being
        decoded.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        records = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max).flat_map(as_it_is(self._epoch))
        group = _group(self.share.manifest, self.batch)
        batches = _decoded(records.skip(position * self.batch), self.share.manifest, group)
        if group != self.batch:
            batches = batches.rebatch(self.batch, drop_remainder=True)

        def shaped(*elements: Tensors) -> tuple[Tensors, ...]:
            return tf.nest.map_structure(lambda part: tf.ensure_shape(part, (self.batch, *part.shape[1:])), elements)

        return batches.map(as_it_is(shaped)).prefetch(2)

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Return one epoch's encoded records, exactly as many as its steps need."""
        needed = self.steps_per_epoch * self.batch
        passes = -(-needed // self.share.examples("train"))

        def one_pass(number: tf.Tensor) -> tf.data.Dataset:
            return self._pass(epoch * passes + number)

        return tf.data.Dataset.range(passes).flat_map(as_it_is(one_pass)).take(needed)

    def _pass(self, number: tf.Tensor) -> tf.data.Dataset:
        """Return all of the worker's encoded records once, shuffled; `number` counts passes since the run began."""
        paths = self.share.paths("train")
        # Sets the seed of the graph that is being traced, so that the order depends only on the run's seed. It must not
        # be 0: TensorFlow cannot compare an operation seed given as a tensor with a graph seed of 0.
        tf.random.set_seed(self.seed + 1)
        seed = (number * self.share.workers + self.share.rank) * 2
        records = (
            tf.data.Dataset.from_tensor_slices(paths)
            .shuffle(len(paths), seed=seed)
            .interleave(
                tf.data.TFRecordDataset,
                cycle_length=min(len(paths), _SHARDS_TOGETHER),
                block_length=16,
                num_parallel_calls=min(len(paths), _SHARDS_TOGETHER),
                deterministic=True,
            )
        )
        return records.shuffle(shuffled_together(self.share), seed=seed + 1)


TrainingData = MemoryTraining | StreamTraining


def training(
    share: Share,
    batch: int,
    steps_per_epoch: int,
    seed: int,
    *,
    budget: int = MEMORY_BUDGET,
    tick: Tick = lambda _: None,
) -> TrainingData:
    """Return the training data, with `batch` examples per step on this worker; log how it is read and why."""
    size = share.decoded_bytes("train")
    shards = len(share.shards("train"))
    what = f"{share.examples('train')} training examples in {shards} shard{'s' if shards > 1 else ''}"
    if size > budget:
        logger.info(
            "streaming %s: decoded size %s exceeds the limit of %s in memory; shuffle buffer of %d, decoding %s",
            what, _megabytes(size), _megabytes(budget), shuffled_together(share), _at_a_time(share, batch),
        )  # fmt: skip
        return StreamTraining(share, batch, steps_per_epoch, seed)
    logger.info(
        "keeping %s decoded in memory: %s of at most %s; decoding once, %s",
        what, _megabytes(size), _megabytes(budget), _at_a_time(share),
    )  # fmt: skip
    inputs, labels = _decode_all(share, "train", tick)
    return MemoryTraining(inputs, labels, batch, steps_per_epoch, seed, share.rank)


def shuffled_together(share: Share) -> int:
    """Return the shuffle buffer's size in examples for a streamed training split; depends only on the manifest."""
    written = sum(shard.bytes for shard in share.shards("train"))
    return max(1, min(SHUFFLE_EXAMPLES, SHUFFLE_BYTES * share.examples("train") // max(1, written)))


def _at_a_time(share: Share, batch: int | None = None) -> str:
    group, cores = _group(share.manifest, batch), available_cores()
    return f"{group} at a time on {'each of ' if cores > 1 else ''}{cores} core{'s' if cores > 1 else ''}"


Batch = tuple[Inputs, Labels, NDArray[np.float32]]


@dataclass(frozen=True)
class Evaluation:
    """A split for evaluation: every worker processes the same number of batches of the same size.

    Batches are padded with examples of weight 0, so every example of the split counts once.
    """

    share: Share
    split: str
    batch: int
    decoded: tuple[Inputs, Labels] | None

    @property
    def steps(self) -> int:
        """Number of batches per worker."""
        most = max(self.share.examples(self.split, rank) for rank in range(self.share.workers))
        return -(-most // self.batch)

    def batches(self) -> Iterator[Batch]:
        """Decoded inputs [batch, …], labels [batch, …], weights float32 [batch] (1 or 0)."""
        manifest, given = self.share.manifest, 0
        for inputs, labels in self._decoded_batches():
            yield _padded(manifest, inputs, labels, self.batch)
            given += 1
        for _ in range(self.steps - given):
            yield _padded(manifest, *blank(manifest, 0), self.batch)

    def _decoded_batches(self) -> Iterator[tuple[Inputs, Labels]]:
        if self.decoded is None:
            yield from _read(self.share, self.split, self.batch)
            return
        inputs, labels = self.decoded
        for start in range(0, len(labels), self.batch):
            chosen = slice(start, start + self.batch)
            yield each(lambda array, chosen=chosen: array[chosen], inputs), labels[chosen]


def evaluation(
    share: Share, split: str, batch: int, *, budget: int = MEMORY_BUDGET, tick: Tick = lambda _: None
) -> Evaluation:
    """Return the evaluation data of `split`, `batch` examples per step on this worker; kept decoded if it fits."""
    fits = share.decoded_bytes(split) <= budget
    return Evaluation(share, split, batch, _decode_all(share, split, tick) if fits else None)


class Reading:
    """Training and validation data, decoded in a thread while the main thread builds the network.

    Args:
        share: This worker's shard assignment.
        batch: Examples per step on this worker.
        steps_per_epoch: Steps per epoch of the plan.
        seed: Seed for the order of the examples.
    """

    def __init__(self, share: Share, batch: int, steps_per_epoch: int, seed: int) -> None:
        splits = [split for split in ("train", "validation") if share.has(split)]
        self._total = sum(share.examples(split) for split in splits if share.decoded_bytes(split) <= MEMORY_BUDGET)
        self._done, self._what = 0, "images" if share.manifest.has_image else "examples"
        self._started = time.monotonic()

        def read() -> tuple[TrainingData, Evaluation | None]:
            trained = training(share, batch, steps_per_epoch, seed, tick=self._tick)
            measured = evaluation(share, "validation", batch, tick=self._tick) if "validation" in splits else None
            return trained, measured

        executor = futures.ThreadPoolExecutor(1, "reading")
        self._read = executor.submit(read)
        executor.shutdown(wait=False)

    def wait(self) -> tuple[TrainingData, Evaluation | None]:
        """Wait, reporting progress, and return the training data and the validation data (None if there is none)."""
        if not self._read.done():
            events.phase(f"decoding {self._total:,} {self._what}")
        while not futures.wait([self._read], _PROGRESS_SECONDS).done:
            rate = self._done / (time.monotonic() - self._started)
            events.progress(self._done, self._total, f"{self._what} decoded", **{f"{self._what}_per_second": rate})
        return self._read.result()

    def _tick(self, count: int) -> None:
        self._done += count


def _padded(manifest: Manifest, inputs: Inputs, labels: Labels, batch: int) -> Batch:
    missing = batch - len(labels)
    weights = np.concatenate([np.ones(len(labels), np.float32), np.zeros(missing, np.float32)])
    if missing:
        more, nothing = blank(manifest, missing)
        inputs = each(lambda array, zeros: np.concatenate([array, zeros]), inputs, more)
        labels = np.concatenate([labels, nothing])
    return inputs, labels, weights


def _decode_all(share: Share, split: str, tick: Tick = lambda _: None) -> tuple[Inputs, Labels]:
    """Decode all of the worker's examples of `split`, in the order of its shards."""
    count = share.examples(split)
    like, label = blank(share.manifest, 1)
    inputs = each(lambda array: _aligned((count, *array.shape[1:]), array.dtype), like)
    labels = np.empty((count, *label.shape[1:]), label.dtype)
    position = 0
    for some, some_labels in _read(share, split):
        chosen = slice(position, position + len(some_labels))
        for array, part in zip(tf.nest.flatten(inputs), tf.nest.flatten(some), strict=True):
            array[chosen] = part
        labels[chosen] = some_labels
        position = chosen.stop
        tick(len(some_labels))
    return inputs, labels


def _aligned(shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that TensorFlow can use without a copy."""
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)


def _read(share: Share, split: str, batch: int | None = None) -> Iterator[tuple[Inputs, Labels]]:
    """Yield the worker's examples of `split` in order, `batch` (default: a group) at a time; the last may be less."""
    left = share.examples(split)
    if not left:
        return
    group = min(left, _group(share.manifest, batch))
    # All groups have the same size: the last is padded with examples from the beginning, which are dropped again.
    records = tf.data.TFRecordDataset(share.paths(split)).repeat().take(-(-left // group) * group)
    decoded = _decoded(records, share.manifest, group)
    if batch is not None and group != batch:
        decoded = decoded.rebatch(batch)
    for inputs, labels in decoded.prefetch(2).as_numpy_iterator():
        yield each(lambda array, left=left: array[:left], inputs), labels[:left]
        left -= len(labels)
        if left <= 0:
            return


def _decoded(records: tf.data.Dataset, manifest: Manifest, group: int) -> tf.data.Dataset:
    """Decode serialized examples, in order, to batches of inputs and labels of `group` examples."""
    # One call per core and one in reserve, from the start. AUTOTUNE would use a single call for the first seconds.
    parse = as_it_is(Features(manifest).parse)
    calls = available_cores() + 1
    return records.batch(group, drop_remainder=True).map(parse, num_parallel_calls=calls, deterministic=True)


def _group(manifest: Manifest, batch: int | None = None) -> int:
    """Return the group size: the number of examples parsed and decoded together, at most `batch`."""
    most = max(1, min(_GROUP_EXAMPLES, _GROUP_BYTES // manifest.decoded_bytes))
    return most if batch is None else min(batch, most)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
