"""Decoding a split into memory by threads, in the order in which training needs its examples.

Each thread decodes groups of examples. Training waits only for the groups that its next steps need (`wait`).

JPEG files are decoded without TensorFlow (`images.decode_jpeg`): the same pixels in about half the time. Each call has
to get the interpreter's lock back. While another thread holds on to that, as when a network is traced, TensorFlow
decodes whole groups instead, which needs the lock once per group, unless it would resize them, to slightly different
pixels. Its graph takes a tenth of a second to trace, which does not pay off for what is decoded within a second.
"""

from __future__ import annotations

import functools
import itertools
import math
import mmap
import threading
import time
from array import array
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.cores import available_cores
from slipway.core.manifest import Manifest, damaged
from slipway.core.tfrecord import CHECKSUM, HEADER_BYTES, masked_crc32c, record_length
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.data.features import Features, Inputs, Labels, as_image, blank, each
from slipway.trainer.data.images import decode_jpeg, decodes_jpeg, traced

# Maximum examples of a group, and bytes, encoded or decoded: small enough to stay in the CPU's caches, to reuse the
# previous group's memory, and for the few files of a first step to be decoded by all threads.
_GROUP_EXAMPLES = 128
_GROUP_BYTES = 8 * 1024**2
# Alignment that TensorFlow requires to use an array without a copy.
_ALIGNMENT = 64
_PROGRESS_SECONDS = 0.5
# A thread waits for the interpreter's lock if decoding takes this many times its CPU time and this much longer; then
# TensorFlow decodes for this long, if the rest takes libjpeg-turbo longer than `_WORTH_SECONDS`.
_WAITING_RATIO = 4.0
_WAITING_SECONDS = 0.005
_WORTH_SECONDS = 1.0
_TENSORFLOW_SECONDS = 0.1


def group_of(manifest: Manifest, batch: int | None = None) -> int:
    """Return the group size: the number of examples parsed and decoded together, at most `batch`."""
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    encoded_bytes = sum(shard.bytes for shard in shards) // max(1, sum(shard.examples for shard in shards))
    most = max(1, min(_GROUP_EXAMPLES, _GROUP_BYTES // max(manifest.decoded_bytes, encoded_bytes)))
    return most if batch is None else min(batch, most)


class Decoder:
    """Threads that decode one split of a data set after the other, one for each core, and their functions."""

    def __init__(self, manifest: Manifest) -> None:
        self.threads = futures.ThreadPoolExecutor(available_cores(), "decoding")
        # By the size of a group: most splits have the same one, and tracing costs time.
        self.functions = functools.cache(functools.partial(_Functions, manifest))

    def close(self) -> None:
        """Let the threads end once they have decoded everything."""
        self.threads.shutdown(wait=False)


class Decoding:
    """The examples of a split that a worker decodes into memory, in the order of its shards.

    `inputs` and `labels` are complete after `wait()`; before that, only the examples that were waited for are valid.

    Args:
        assignment: The worker's shard assignment.
        split: The split.
        order: All example indices in the order in which they are needed; None for the order of the shards.
        decoder: What decodes; by default, a new one.
    """

    def __init__(
        self,
        assignment: ShardAssignment,
        split: str,
        order: NDArray[Any] | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self._manifest = assignment.manifest
        self._what = "images" if self._manifest.has_image else "examples"
        self._records = Records([Path(path) for path in assignment.paths(split)])
        count = len(self._records)
        like, label = blank(self._manifest, 1)
        self.inputs: Inputs = each(lambda array: aligned((count, *array.shape[1:]), array.dtype), like)
        self.labels: Labels = aligned((count, *label.shape[1:]), label.dtype)
        order = np.arange(count) if order is None else order
        self._position = np.empty(count, np.int64)  # of each example in the order
        self._position[order] = np.arange(count)
        self._group = max(1, min(count, group_of(self._manifest)))
        self._groups = [order[start : start + self._group] for start in range(0, count, self._group)]
        self._decoded = [False] * len(self._groups)
        self._complete = 0  # groups, all before which are decoded too
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._next = itertools.count()
        used = decoder or Decoder(self._manifest)
        self._functions = used.functions(self._group)
        self._slow_until = -math.inf
        self._started = time.monotonic()
        for _ in range(available_cores()):
            used.threads.submit(self._work)
        if decoder is None:
            used.close()

    def wait(self, indices: NDArray[Any] | None = None) -> None:
        """Wait until the examples of `indices` are decoded, or all; report progress if that takes long.

        Raises:
            tf.errors.InvalidArgumentError: An image cannot be decoded.
            UserError: A record is damaged.
        """
        total = len(self._groups)
        if self._complete == total and self._error is None:
            return
        needed = total if indices is None else int(self._position[indices].max(initial=-1)) // self._group + 1

        def decoded() -> bool:
            return self._complete >= needed or self._error is not None

        with self._changed:
            if not self._changed.wait_for(decoded, _PROGRESS_SECONDS):
                events.phase(f"decoding {len(self.labels):,} {self._what}")
                while not self._changed.wait_for(decoded, _PROGRESS_SECONDS):
                    done = min(sum(self._decoded) * self._group, len(self.labels))
                    rate = done / (time.monotonic() - self._started)
                    values = {f"{self._what}_per_second": rate}
                    events.progress(done, len(self.labels), f"{self._what} decoded", **values)
            if self._error is not None:
                raise self._error

    def _work(self) -> None:
        for number in self._next:
            if number >= len(self._groups) or self._error is not None:
                return
            try:
                self._decode(self._groups[number])
            except BaseException as error:  # raised again by `wait`
                self._error = error
            with self._changed:
                self._decoded[number] = True
                while self._complete < len(self._groups) and self._decoded[self._complete]:
                    self._complete += 1
                if self._complete == len(self._groups):
                    self._records.close()
                self._changed.notify_all()

    def _decode(self, chosen: NDArray[Any]) -> None:
        raw = [self._records[number] for number in chosen.tolist()]
        raw += raw[:1] * (self._group - len(raw))
        jpeg = self._functions.jpeg if time.monotonic() >= self._slow_until else []
        decoded, labels = (self._functions.encoded if jpeg else self._functions.decoded)(raw)
        for name, values in _by_name(decoded).items():
            into = _by_name(self.inputs)[name]
            if name in jpeg:
                files = values.numpy()[: len(chosen)]
                left = self._decode_jpegs(files, into, chosen)
                if left:
                    into[chosen[left]] = self._functions.pixels(name, files[left])
            else:
                into[chosen] = values.numpy()[: len(chosen)]
        self.labels[chosen] = labels.numpy()[: len(chosen)]

    def _decode_jpegs(self, files: NDArray[Any], into: NDArray[Any], chosen: NDArray[Any]) -> list[int]:
        """Decode the JPEG `files` into the rows `chosen`; return which are left to TensorFlow."""
        started, cpu = time.perf_counter(), time.thread_time()
        left: list[int] = []
        for index, (file, number) in enumerate(zip(files, chosen, strict=True)):
            waited = time.perf_counter() - started - _WAITING_SECONDS
            if waited > 0 and self._is_tensorflow_faster(waited, time.thread_time() - cpu, index):
                self._slow_until = time.monotonic() + _TENSORFLOW_SECONDS
                return [*left, *range(index, len(chosen))]
            if not decode_jpeg(file, into[number], self._manifest.resize_mode):
                left.append(index)
        return left

    def _is_tensorflow_faster(self, waited: float, used: float, decoded: int) -> bool:
        """Whether TensorFlow should decode, after a thread waited and `used` CPU seconds for `decoded` images."""
        if not self._functions.equal:
            return False
        rest = len(self.labels) - self._complete * self._group
        rest_seconds = rest * used / max(decoded, 1) / available_cores()
        return waited > _WAITING_RATIO * used and rest_seconds > _WORTH_SECONDS


class _Functions:
    """TensorFlow's part: parsing a group of records, with all images decoded or with those of `jpeg` still encoded.

    `jpeg` are the names of the inputs that libjpeg-turbo may decode, and `equal` whether to TensorFlow's pixels.
    """

    def __init__(self, manifest: Manifest, group: int) -> None:
        features = Features(manifest)
        images = [name for name, feature in manifest.all_inputs.items() if feature.kind == "image"]
        self.jpeg = [name for name in images if decodes_jpeg(as_image(manifest, name))]
        self.equal = not any(as_image(manifest, name).resize for name in self.jpeg)
        self.decoded = _on_cpu(features.parse, group)
        self.encoded = _on_cpu(functools.partial(features.parse, encoded=self.jpeg), group)
        self._pixels = {name: _on_cpu(functools.partial(features.pixels, name), None) for name in self.jpeg}

    def pixels(self, name: str, files: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the pixels of any number of image files of the input `name`."""
        pixels: NDArray[np.uint8] = self._pixels[name](tf.constant(files, tf.string)).numpy()
        return pixels


def _on_cpu(function: Callable[[tf.Tensor], Any], count: int | None) -> Callable[[Any], Any]:
    """Trace a function of `count` strings whose operations run on the CPU."""

    @traced(input_signature=[tf.TensorSpec([count], tf.string)])
    def run(strings: tf.Tensor) -> Any:
        with tf.device("CPU:0"):
            return function(strings)

    return run


def _by_name(inputs: Any) -> dict[str, Any]:
    return inputs if isinstance(inputs, dict) else {"image": inputs}


class Records:
    """The records of TFRecord shards by number, in the files' memory maps: they need no memory of their own.

    Raises:
        UserError: The checksum of a record, or of its length, is wrong.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._shards: list[tuple[Path, mmap.mmap]] = []
        shards, starts, ends = array("q"), array("q"), array("q")
        for path in paths:
            if not path.stat().st_size:
                continue
            with path.open("rb") as file:
                # Reads the file once in order: later reads are in random order, which is slow on a mounted bucket.
                flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
                content = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ)
            position = 0
            while position < len(content):
                length = record_length(content[position : position + HEADER_BYTES])
                if length is None:
                    raise damaged(path, f"the length of the record at byte {position:,} has a wrong checksum")
                shards.append(len(self._shards))
                starts.append(position + HEADER_BYTES)
                ends.append(position + HEADER_BYTES + length)
                position += HEADER_BYTES + length + CHECKSUM.size
            self._shards.append((path, content))
        self._offsets = (shards, starts, ends)

    def __len__(self) -> int:
        return len(self._offsets[0])

    def __getitem__(self, number: int) -> bytes:
        shard, start, end = (values[number] for values in self._offsets)
        path, content = self._shards[shard]
        record = content[start:end]
        if content[end : end + CHECKSUM.size] != CHECKSUM.pack(masked_crc32c(record)):
            raise damaged(path, f"the record at byte {start - HEADER_BYTES:,} has a wrong checksum")
        return record

    def close(self) -> None:
        """Close the shards; no record can be read any more."""
        for _, content in self._shards:
            content.close()


def aligned(shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that TensorFlow can use without a copy."""
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)
