"""What a worker reads of a prepared data set: its own shards, as batches of uint8 pixels, in an order of steps.

Each worker takes every n-th shard. A training split whose decoded pixels fit in memory is decoded once
(`MemoryTraining`), and an epoch's order is a permutation drawn from seed and epoch; a larger one is streamed
(`StreamTraining`) through a shuffle buffer seeded the same way. Either way the batch of any step follows from the seed
and the step's number alone, so a resumed run sees what an undisturbed one would have seen.

Records are parsed and decoded in groups, one group a core at a time. How large a group is changes nothing in the order.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.manifest import Manifest
from slipway.trainer.data.assignment import Share
from slipway.trainer.data.images import decode_prepared
from slipway.trainer.data.tracing import as_it_is

# Decoded pixels of one split that a worker may keep, in bytes. A constant and not a share of the memory at hand, so
# that a run resumed on another machine reads in the same order.
MEMORY_BUDGET = 2 * 1024**3
# The shuffle buffer of a streamed split: encoded examples, and their bytes, whichever is reached first.
SHUFFLE_EXAMPLES = 16_384
SHUFFLE_BYTES = 256 * 1024**2
_SHARDS_TOGETHER = 8
# A group's examples and the bytes of their pixels: few enough to stay in the processor's caches and to be made anew in
# memory that the last one left.
_GROUP_EXAMPLES = 128
_GROUP_BYTES = 8 * 1024**2
# What TensorFlow asks of an array that it is to use in place.
_ALIGNMENT = 64
_PROGRESS_SECONDS = 0.5

logger = logging.getLogger(__name__)

Images = NDArray[np.uint8]
Labels = NDArray[np.int32]
# Receives how many more examples have been decoded.
Tick = Callable[[int], None]


@dataclass(frozen=True)
class MemoryTraining:
    """A training split in memory: `images` uint8 [examples, height, width, channels], `labels` int32 [examples]."""

    images: Images
    labels: Labels
    batch: int
    steps_per_epoch: int
    seed: int
    rank: int

    def tensors(self) -> tuple[Any, Any]:
        """Images and labels as tensors on the CPU; the images' is the same memory, not a copy."""
        with tf.device("CPU:0"):
            return tf.experimental.dlpack.from_dlpack(self.images.__dlpack__()), tf.constant(self.labels)

    def order(self, step: int, count: int) -> NDArray[np.int32]:
        """The examples of `count` steps from `step` (from 0) on, as indices [count, batch]."""
        rows = []
        while count > 0:
            epoch, position = divmod(step, self.steps_per_epoch)
            taken = min(count, self.steps_per_epoch - position)
            rows.append(self._epoch_order(epoch)[position : position + taken])
            step, count = step + taken, count - taken
        return np.concatenate(rows)

    def _epoch_order(self, epoch: int) -> NDArray[np.int32]:
        """One epoch's indices [steps_per_epoch, batch].

        Shards differ by a few examples, so a worker may have fewer than its share of the epoch; it then begins its
        examples anew, in another order.
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
    """A training split read from its shards, epoch after epoch."""

    share: Share
    batch: int
    steps_per_epoch: int
    seed: int

    def batches(self, step: int) -> Any:
        """An endless tf.data.Dataset of the batches from `step` (from 0) on.

        Its elements are images uint8 [batch, height, width, channels] and labels int32 [batch]. What lies before
        `step` in its epoch is read and skipped, but not decoded.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        records = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max).flat_map(as_it_is(self._epoch))
        shape = self.share.manifest.image_shape
        group = _group(shape, self.batch)
        batches = _decoded(records.skip(position * self.batch), self.share.manifest, group)
        if group != self.batch:
            batches = batches.rebatch(self.batch, drop_remainder=True)

        def shaped(images: Any, labels: Any) -> tuple[Any, Any]:
            return tf.ensure_shape(images, (self.batch, *shape)), tf.ensure_shape(labels, (self.batch,))

        return batches.map(as_it_is(shaped)).prefetch(2)

    def _epoch(self, epoch: Any) -> Any:
        """One epoch's encoded records, exactly as many as its steps take."""
        needed = self.steps_per_epoch * self.batch
        passes = -(-needed // self.share.examples("train"))

        def one_pass(number: Any) -> Any:
            return self._pass(epoch * passes + number)

        return tf.data.Dataset.range(passes).flat_map(as_it_is(one_pass)).take(needed)

    def _pass(self, number: Any) -> Any:
        """All of the worker's encoded records once, shuffled; `number` counts the passes since the run began."""
        paths = self.share.paths("train")
        # This runs while a graph is traced, whose own seed this sets: the order is to follow from ours alone, and
        # TensorFlow cannot compare a seed that it is given as a tensor with the graph's where that one is 0.
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
    """The training split's batches, `batch` examples each on this worker; says in the log how they are read and why."""
    size = share.decoded_bytes("train")
    shards = len(share.shards("train"))
    what = f"{share.examples('train')} training examples in {shards} shard{'s' if shards > 1 else ''}"
    if size > budget:
        logger.info(
            "streaming %s: decoded they would take %s, more than the %s kept in memory; shuffled among %d, decoded %s",
            what, _megabytes(size), _megabytes(budget), shuffled_together(share), _at_a_time(share, batch),
        )  # fmt: skip
        return StreamTraining(share, batch, steps_per_epoch, seed)
    logger.info(
        "keeping %s decoded in memory: they take %s of at most %s; decoded once, %s",
        what, _megabytes(size), _megabytes(budget), _at_a_time(share),
    )  # fmt: skip
    images, labels = _decode_all(share, "train", tick)
    return MemoryTraining(images, labels, batch, steps_per_epoch, seed, share.rank)


def shuffled_together(share: Share) -> int:
    """How many examples are in a streamed training split's shuffle buffer; follows from the manifest alone."""
    written = sum(shard.bytes for shard in share.shards("train"))
    return max(1, min(SHUFFLE_EXAMPLES, SHUFFLE_BYTES * share.examples("train") // max(1, written)))


def _at_a_time(share: Share, batch: int | None = None) -> str:
    group, cores = _group(share.manifest.image_shape, batch), _cores()
    return f"{group} at a time on {'each of ' if cores > 1 else ''}{cores} core{'s' if cores > 1 else ''}"


Batch = tuple[Images, Labels, NDArray[np.float32]]


@dataclass(frozen=True)
class Evaluation:
    """A split to be measured: every worker gets the same number of batches, each of the same size.

    What is missing to that is filled with examples of weight 0, so every example of the split counts once.
    """

    share: Share
    split: str
    batch: int
    decoded: tuple[Images, Labels] | None

    @property
    def steps(self) -> int:
        """How many batches every worker goes through."""
        most = max(self.share.examples(self.split, rank) for rank in range(self.share.workers))
        return -(-most // self.batch)

    def batches(self) -> Iterator[Batch]:
        """Images uint8 [batch, height, width, channels], labels int32 [batch], weights float32 [batch] (1 or 0)."""
        shape = self.share.manifest.image_shape
        given = 0
        for images, labels in self._decoded_batches():
            yield _padded(images, labels, self.batch)
            given += 1
        nothing = np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32)
        for _ in range(self.steps - given):
            yield _padded(*nothing, self.batch)

    def _decoded_batches(self) -> Iterator[tuple[Images, Labels]]:
        if self.decoded is None:
            yield from _read(self.share, self.split, self.batch)
            return
        images, labels = self.decoded
        for start in range(0, len(labels), self.batch):
            yield images[start : start + self.batch], labels[start : start + self.batch]


def evaluation(
    share: Share, split: str, batch: int, *, budget: int = MEMORY_BUDGET, tick: Tick = lambda _: None
) -> Evaluation:
    """The batches by which `split` is measured, `batch` examples each on this worker; kept decoded where they fit."""
    fits = share.decoded_bytes(split) <= budget
    return Evaluation(share, split, batch, _decode_all(share, split, tick) if fits else None)


class Reading:
    """A job's training and validation data, decoded in a thread while the main thread builds the network.

    Args:
        share: The part of the data set that this worker reads.
        batch: Examples per step on this worker.
        steps_per_epoch: The plan's.
        seed: Of the order of the examples.
    """

    def __init__(self, share: Share, batch: int, steps_per_epoch: int, seed: int) -> None:
        splits = [split for split in ("train", "validation") if share.has(split)]
        self._total = sum(share.examples(split) for split in splits if share.decoded_bytes(split) <= MEMORY_BUDGET)
        self._done = 0
        self._started = time.monotonic()

        def read() -> tuple[TrainingData, Evaluation | None]:
            trained = training(share, batch, steps_per_epoch, seed, tick=self._tick)
            measured = evaluation(share, "validation", batch, tick=self._tick) if "validation" in splits else None
            return trained, measured

        executor = futures.ThreadPoolExecutor(1, "reading")
        self._read = executor.submit(read)
        executor.shutdown(wait=False)

    def wait(self) -> tuple[TrainingData, Evaluation | None]:
        """Return the training data and the validation data, which may be None; report progress until then."""
        if not self._read.done():
            events.phase(f"decoding {self._total:,} images")
        while not futures.wait([self._read], _PROGRESS_SECONDS).done:
            rate = self._done / (time.monotonic() - self._started)
            events.progress(self._done, self._total, "images decoded", images_per_second=rate)
        return self._read.result()

    def _tick(self, count: int) -> None:
        self._done += count


def _padded(images: Images, labels: Labels, batch: int) -> Batch:
    missing = batch - len(labels)
    weights = np.concatenate([np.ones(len(labels), np.float32), np.zeros(missing, np.float32)])
    if missing:
        images = np.concatenate([images, np.zeros((missing, *images.shape[1:]), np.uint8)])
        labels = np.concatenate([labels, np.zeros(missing, np.int32)])
    return images, labels, weights


def _decode_all(share: Share, split: str, tick: Tick = lambda _: None) -> tuple[Images, Labels]:
    """All of the worker's examples of `split`, in the shards' order."""
    count = share.examples(split)
    images = _aligned((count, *share.manifest.image_shape))
    labels = np.empty(count, np.int32)
    position = 0
    for some_images, some_labels in _read(share, split):
        end = position + len(some_labels)
        images[position:end], labels[position:end] = some_images, some_labels
        position = end
        tick(len(some_labels))
    return images, labels


def _aligned(shape: tuple[int, ...]) -> Images:
    """An array that TensorFlow can use in place."""
    size = math.prod(shape)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].reshape(shape)


def _read(share: Share, split: str, batch: int | None = None) -> Iterator[tuple[Images, Labels]]:
    """The worker's examples of `split` in order, `batch` (or as many as suits) at a time, the last time fewer."""
    left = share.examples(split)
    if not left:
        return
    group = min(left, _group(share.manifest.image_shape, batch))
    # Each group has the same size: the last is filled up with examples from the beginning, which are dropped again.
    records = tf.data.TFRecordDataset(share.paths(split)).repeat().take(-(-left // group) * group)
    decoded = _decoded(records, share.manifest, group)
    if batch is not None and group != batch:
        decoded = decoded.rebatch(batch)
    for images, labels in decoded.prefetch(2).as_numpy_iterator():
        yield images[:left], labels[:left]
        left -= len(labels)
        if left <= 0:
            return


def _decoded(records: Any, manifest: Manifest, group: int) -> Any:
    """Serialized examples as images uint8 [group, height, width, channels] and labels int32 [group], in their order."""
    # A call for each core from the start, and one that is ready when one ends; tuned automatically it would be one call
    # for the first seconds.
    parse = as_it_is(lambda raw: _parse(raw, manifest))
    return records.batch(group, drop_remainder=True).map(parse, num_parallel_calls=_cores() + 1, deterministic=True)


def _parse(raw: Any, manifest: Manifest) -> tuple[Any, Any]:
    """Serialized examples, string [n], as images uint8 [n, height, width, channels] and labels int32 [n]."""
    features = tf.io.parse_example(
        raw, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    )
    return decode_prepared(features["image"], manifest), tf.cast(features["label"], tf.int32)


def _group(shape: tuple[int, int, int], batch: int | None = None) -> int:
    """How many examples are parsed and decoded together: a whole batch of them where it is not too large."""
    most = max(1, min(_GROUP_EXAMPLES, _GROUP_BYTES // math.prod(shape)))
    return most if batch is None else min(batch, most)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
