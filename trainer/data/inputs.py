"""Input pipeline: a worker's shards of a prepared data set as batches of decoded inputs in a deterministic order.

Each worker reads every n-th shard. A training split whose decoded inputs fit in memory is decoded once
(`MemoryTraining`), in the order of the first epoch while that is being trained, and each epoch uses a permutation drawn
from seed and epoch. A larger one is streamed
(`StreamTraining`) through a shuffle buffer that is seeded the same way. Either way, the batch of a step depends only on
the seed and the step's number, so a resumed run sees the same batches as an uninterrupted one.

Records are parsed and decoded in groups, one group per core at a time. The group size does not affect the order.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core.cores import available_cores
from slipway.core.manifest import Manifest
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.data.decoding import Decoder, Decoding, group_of
from slipway.trainer.data.features import Features, Inputs, Labels, Tensors, blank, each
from slipway.trainer.data.images import as_it_is, decode_stream

# Maximum decoded size of a split that a worker keeps in memory, in bytes. A constant rather than a fraction of the
# available memory, so that a run resumed on another machine reads in the same order.
MEMORY_BUDGET = 2 * 1024**3
# The fraction of a device's memory that the training split may use.
DEVICE_MEMORY_FRACTION = 0.25
# Size of the shuffle buffer of a streamed split, in encoded examples and in bytes; the lower limit applies.
SHUFFLE_EXAMPLES = 16_384
SHUFFLE_BYTES = 256 * 1024**2
_SHARDS_TOGETHER = 8

Number = TypeVar("Number", bound=np.generic)

logger = logging.getLogger(__name__)


class Waiting:
    """Whether this process is waiting for training data; a context, or two calls for a graph, which return the time."""

    def __init__(self) -> None:
        self.is_on = False

    def begin(self) -> np.float64:
        self.is_on = True
        return np.float64(time.perf_counter())

    def end(self) -> np.float64:
        self.is_on = False
        return np.float64(time.perf_counter())

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


class Decoded(Protocol):
    """A split's decoded inputs and labels; `wait` returns once those of a step, by default all, are valid."""

    @property
    def inputs(self) -> Inputs: ...

    @property
    def labels(self) -> Labels: ...

    def wait(self, order: NDArray[np.int32] | None = None) -> None: ...


@dataclass(frozen=True)
class MemoryTraining:
    """A training split in memory, which may still be being decoded.

    `order` waits for the examples of its steps, `inputs` and `labels` for all: see `slipway.trainer.data.features`.
    """

    decoding: Decoded
    batch: int
    steps_per_epoch: int
    seed: int
    rank: int
    waiting: Waiting = field(default_factory=Waiting)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self.decoding.labels)

    @property
    def decoded_bytes(self) -> int:
        """Size of the inputs."""
        return sum(array.nbytes for array in tf.nest.flatten(self.decoding.inputs))

    @property
    def example_bytes(self) -> int:
        """Size of one example's inputs."""
        return self.decoded_bytes // self.examples

    @property
    def inputs(self) -> Inputs:
        """The inputs of all examples."""
        return self.arrays()[0]

    @property
    def labels(self) -> Labels:
        """The labels of all examples."""
        return self.arrays()[1]

    def arrays(self, *, whole: bool = True) -> tuple[Inputs, Labels]:
        """Return inputs and labels; unless `whole`, only those of steps that `order` has returned are valid."""
        if whole:
            self.decoding.wait()
        return self.decoding.inputs, self.decoding.labels

    def tensors(self, *, whole: bool = True) -> tuple[Tensors, tf.Tensor]:
        """Return the arrays as CPU tensors that share their memory."""

        def shared(array: NDArray[Any]) -> tf.Tensor:
            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

        inputs, labels = self.arrays(whole=whole)
        with tf.device("CPU:0"):
            return each(shared, inputs), shared(labels)

    def order(self, step: int, count: int) -> NDArray[np.int32]:
        """Return the example indices of `count` steps starting at `step` (from 0), [count, batch]; wait for these."""
        rows = []
        while count > 0:
            epoch, position = divmod(step, self.steps_per_epoch)
            taken = min(count, self.steps_per_epoch - position)
            epoch_order = _epoch_order(self.seed, epoch, self.rank, self.examples, self.steps_per_epoch, self.batch)
            rows.append(epoch_order[position : position + taken])
            step, count = step + taken, count - taken
        order = np.concatenate(rows)
        with self.waiting:
            self.decoding.wait(order)
        return order


@functools.lru_cache(maxsize=1)  # drawing it takes 1.4 ms for 60,000 examples, longer than a small network's step
def _epoch_order(seed: int, epoch: int, rank: int, examples: int, steps: int, batch: int) -> NDArray[np.int32]:
    """Return the indices of a worker's `examples` in one epoch, [steps, batch].

    Shards differ by a few examples, so a worker may have fewer examples than an epoch needs; it then repeats them in
    another order.
    """
    needed = steps * batch
    passes = -(-needed // examples)
    orders = [_permutation(seed, epoch, rank, number, examples) for number in range(passes)]
    return np.concatenate(orders)[:needed].astype(np.int32).reshape(steps, batch)


def _permutation(seed: int, epoch: int, rank: int, number: int, examples: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch, rank, number]).permutation(examples)


@dataclass(frozen=True)
class StreamTraining:
    """A training split that is streamed from its shards in every epoch."""

    assignment: ShardAssignment
    batch: int
    steps_per_epoch: int
    seed: int
    waiting: Waiting = field(default_factory=Waiting)

    @property
    def example_bytes(self) -> int:
        """Size of one example's decoded inputs."""
        return self.assignment.manifest.decoded_bytes

    def batches(self, step: int) -> tf.data.Dataset:
        """Return an infinite tf.data.Dataset of batches starting at `step` (from 0).

        Elements are decoded inputs and labels. Earlier records of the same epoch are read and skipped without being
        decoded.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        records = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max).flat_map(as_it_is(self._epoch))
        group = group_of(self.assignment.manifest, self.batch)
        batches = _decoded(records.skip(position * self.batch), self.assignment.manifest, group)
        if group != self.batch:
            batches = batches.rebatch(self.batch, drop_remainder=True)

        def shaped(*elements: Tensors) -> tuple[Tensors, ...]:
            return tf.nest.map_structure(lambda part: tf.ensure_shape(part, (self.batch, *part.shape[1:])), elements)

        return batches.map(as_it_is(shaped)).prefetch(2)

    def arrays_from(self, step: int) -> Iterator[tuple[Inputs, Labels]]:
        """Yield the elements of `batches` as NumPy arrays."""
        batches = self.batches(step).as_numpy_iterator()
        while True:
            with self.waiting:
                batch = next(batches)
            yield batch

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Return one epoch's encoded records, exactly as many as its steps need."""
        needed = self.steps_per_epoch * self.batch
        passes = -(-needed // self.assignment.examples("train"))

        def one_pass(number: tf.Tensor) -> tf.data.Dataset:
            return self._pass(epoch * passes + number)

        return tf.data.Dataset.range(passes).flat_map(as_it_is(one_pass)).take(needed)

    def _pass(self, number: tf.Tensor) -> tf.data.Dataset:
        """Return all of the worker's encoded records once, shuffled; `number` counts passes since the run began."""
        paths = self.assignment.paths("train")
        order = (number * self.assignment.workers + self.assignment.rank) * 2
        shards = tf.data.Dataset.from_tensor_slices(paths)
        records = self._shuffled(shards, len(paths), order).interleave(
            tf.data.TFRecordDataset,
            cycle_length=min(len(paths), _SHARDS_TOGETHER),
            block_length=16,
            num_parallel_calls=min(len(paths), _SHARDS_TOGETHER),
            deterministic=True,
        )
        return self._shuffled(records, shuffled_together(self.assignment), order + 1)

    def _shuffled(self, strings: tf.data.Dataset, together: int, order: tf.Tensor) -> tf.data.Dataset:
        """Return a dataset of strings through a shuffle buffer of `together` elements, in the order of this number.

        `Dataset.shuffle` has a resource, because of which TensorFlow runs all of the pipeline in one thread where its
        operations have to be deterministic.
        """
        shuffled = tf.raw_ops.ShuffleDataset(
            input_dataset=tf.data.experimental.to_variant(strings),
            buffer_size=together,
            seed=self.seed + 1,  # both 0 would be a random order
            seed2=order,
            output_types=[tf.string],
            output_shapes=[()],
            reshuffle_each_iteration=False,
        )
        return tf.data.experimental.from_variant(shuffled, strings.element_spec)


TrainingData = MemoryTraining | StreamTraining


def training(
    assignment: ShardAssignment,
    batch: int,
    steps_per_epoch: int,
    seed: int,
    *,
    budget: int = MEMORY_BUDGET,
    decoder: Decoder | None = None,
) -> TrainingData:
    """Return the training data, with `batch` examples per step on this worker; log how it is read and why.

    `decoder` decodes a split that is kept in memory; see `Decoding`.
    """
    size = assignment.decoded_bytes("train")
    shards = len(assignment.shards("train"))
    content = f"{assignment.examples('train')} training examples in {shards} shard{'s' if shards > 1 else ''}"
    if size > budget:
        logger.info(
            "streaming %s: decoded size %s exceeds the limit of %s in memory; shuffle buffer of %d, decoding %s",
            content, _megabytes(size), _megabytes(budget), shuffled_together(assignment), _at_a_time(assignment, batch),
        )  # fmt: skip
        return StreamTraining(assignment, batch, steps_per_epoch, seed)
    logger.info(
        "keeping %s decoded in memory: %s of at most %s; decoding during the first epoch, %s",
        content, _megabytes(size), _megabytes(budget), _at_a_time(assignment),
    )  # fmt: skip
    order = _permutation(seed, 0, assignment.rank, 0, assignment.examples("train"))
    return MemoryTraining(Decoding(assignment, "train", order, decoder), batch, steps_per_epoch, seed, assignment.rank)


def shuffled_together(assignment: ShardAssignment) -> int:
    """Return the shuffle buffer's size in examples for a streamed training split; depends only on the manifest."""
    written = sum(shard.bytes for shard in assignment.shards("train"))
    return max(1, min(SHUFFLE_EXAMPLES, SHUFFLE_BYTES * assignment.examples("train") // max(1, written)))


def _at_a_time(assignment: ShardAssignment, batch: int | None = None) -> str:
    group, cores = group_of(assignment.manifest, batch), available_cores()
    return f"{group} at a time on {'each of ' if cores > 1 else ''}{cores} core{'s' if cores > 1 else ''}"


Batch = tuple[Inputs, Labels, NDArray[np.float32]]


@dataclass(frozen=True)
class Evaluation:
    """A split for evaluation: every worker processes the same number of batches of the same size.

    Batches are padded with examples of weight 0, so every example of the split counts once.
    """

    assignment: ShardAssignment
    split: str
    batch: int
    decoding: Decoding | None

    @property
    def steps(self) -> int:
        """Number of batches per worker."""
        most = max(self.assignment.examples(self.split, rank) for rank in range(self.assignment.workers))
        return -(-most // self.batch)

    def batches(self) -> Iterator[Batch]:
        """Decoded inputs [batch, …], labels [batch, …], weights float32 [batch] (1 or 0)."""
        manifest, count = self.assignment.manifest, 0
        for inputs, labels in self._decoded_batches():
            yield _whole_batch(manifest, inputs, labels, self.batch)
            count += 1
        for _ in range(self.steps - count):
            yield _whole_batch(manifest, *blank(manifest, 0), self.batch)

    @property
    def decoded(self) -> tuple[Inputs, Labels] | None:
        """Inputs and labels of all examples, if they are kept in memory."""
        if self.decoding is None:
            return None
        self.decoding.wait()
        return self.decoding.inputs, self.decoding.labels

    def _decoded_batches(self) -> Iterator[tuple[Inputs, Labels]]:
        if self.decoded is None:
            yield from _read(self.assignment, self.split, self.batch)
            return
        inputs, labels = self.decoded
        for start in range(0, len(labels), self.batch):
            chosen = slice(start, start + self.batch)
            yield each(lambda array, chosen=chosen: array[chosen], inputs), labels[chosen]


def evaluation(
    assignment: ShardAssignment,
    split: str,
    batch: int,
    *,
    budget: int = MEMORY_BUDGET,
    decoder: Decoder | None = None,
) -> Evaluation:
    """Return the evaluation data of `split`, `batch` examples per step on this worker; kept decoded if it fits."""
    fits = assignment.decoded_bytes(split) <= budget
    return Evaluation(assignment, split, batch, Decoding(assignment, split, decoder=decoder) if fits else None)


def start_reading(
    assignment: ShardAssignment, batch: int, steps_per_epoch: int, seed: int
) -> futures.Future[tuple[TrainingData, Evaluation | None]]:
    """Open training and validation data (None if there is none) in a thread, while the main one builds the network.

    The arguments are those of `training`. What the future returns may still be being decoded.
    """

    def read() -> tuple[TrainingData, Evaluation | None]:
        decoder = Decoder(assignment.manifest)
        trained = training(assignment, batch, steps_per_epoch, seed, decoder=decoder)
        has = assignment.has("validation")
        measured = evaluation(assignment, "validation", batch, decoder=decoder) if has else None
        decoder.close()
        return trained, measured

    executor = futures.ThreadPoolExecutor(1, "reading")
    reading = executor.submit(read)
    executor.shutdown(wait=False)
    return reading


def _whole_batch(manifest: Manifest, inputs: Inputs, labels: Labels, batch: int) -> Batch:
    missing = batch - len(labels)
    weights = np.concatenate([np.ones(len(labels), np.float32), np.zeros(missing, np.float32)])
    if missing:
        more, nothing = blank(manifest, missing)
        inputs = each(lambda array, zeros: np.concatenate([array, zeros]), inputs, more)
        labels = np.concatenate([labels, nothing])
    return inputs, labels, weights


def padded(values: NDArray[Number], rows: int) -> NDArray[Number]:
    """Pad `values` with zeros to `rows` rows, so that every call of a compiled function has the same shapes."""
    if len(values) == rows:
        return values
    return np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]), values.dtype)])


def _read(assignment: ShardAssignment, split: str, batch: int | None = None) -> Iterator[tuple[Inputs, Labels]]:
    """Yield the worker's examples of `split` in order, `batch` (default: a group) at a time; the last may be less."""
    left = assignment.examples(split)
    if not left:
        return
    group = min(left, group_of(assignment.manifest, batch))
    # All groups have the same size: the last is padded with examples from the beginning, which are dropped again.
    records = tf.data.TFRecordDataset(assignment.paths(split)).repeat().take(-(-left // group) * group)
    decoded = _decoded(records, assignment.manifest, group)
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
    parse = as_it_is(functools.partial(Features(manifest).parse, decode=decode_stream))
    calls = available_cores() + 1
    return records.batch(group, drop_remainder=True).map(parse, num_parallel_calls=calls, deterministic=True)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
