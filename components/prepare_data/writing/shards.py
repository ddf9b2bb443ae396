"""Write one shard in one process: read, validate, count, encode and write its examples."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from pydantic import BaseModel

from slipway.components.prepare_data import remote
from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.image import ImageInfo, Inspector, check_bytes
from slipway.components.prepare_data.encoding.inputs import InputCounter, Statistics
from slipway.components.prepare_data.encoding.messages import bytes_feature, integer_feature, values
from slipway.components.prepare_data.encoding.records import RecordEncoder
from slipway.components.prepare_data.encoding.stored import is_changed, store, stored_info
from slipway.components.prepare_data.examples import Damaged, Example, Unusable
from slipway.components.prepare_data.listing.conflicts import InputHashes
from slipway.components.prepare_data.listing.lists import batches, read_all, read_contents, read_list
from slipway.components.prepare_data.settings import ResizeSettings
from slipway.components.prepare_data.sources.source import Reader, RowReader, Source
from slipway.components.prepare_data.validation.duplicates import image_hash
from slipway.components.prepare_data.validation.sampling import is_decoded
from slipway.components.prepare_data.validation.tally import Tally, TallyCounter
from slipway.components.prepare_data.validation.thumbnails import Thumbnails
from slipway.components.prepare_data.workers import Tick
from slipway.core.manifest import Shard
from slipway.core.seen import key_hash, key_hashes

BUFFER_BYTES = 1 << 19
EXAMPLES_BETWEEN_TICKS = 256
SECONDS_BETWEEN_TICKS = 0.2


# Names and serialized Features.
Additional: TypeAlias = list[tuple[bytes, bytes]]
# A usable example: its image in the source and as it is stored, its key, class, and additional features in the source
# and as they are stored.
Usable = tuple[bytes, bytes, bytes, int, Additional, Additional]
# An example's hash, its record, and if an image is stored otherwise than in the source, the record with the source's.
Record: TypeAlias = "tuple[int, bytes, bytes | None]"
# The hashes of examples and the offsets of their records.
Hashed: TypeAlias = "tuple[array[int], array[int]]"
# The hashes of rows, the lengths of their records, and the records.
Block: TypeAlias = "tuple[array[int], array[int], bytes]"
# The name under which the label is stored.
LABEL = "label"


class ShardResult(BaseModel):
    """The result of a task: the images' tally, the inputs' statistics, the shard, and `ShardTask`'s other files.

    `shard` and `hashes` are None if the examples were only validated, `thumbnails` if images are not compared,
    `input_hashes` if no conflicts are looked for. `content` is the SHA-256 (hex) of the shard's records with the images
    as they are in the source: the shard's own, unless images were converted or resized.
    """

    tally: Tally
    inputs: Statistics = {}
    shard: Shard | None = None
    content: str = ""
    hashes: Shard | None = None
    thumbnails: Shard | None = None
    input_hashes: Shard | None = None


@dataclass(frozen=True)
class ShardTask:
    """A worker's task: one shard.

    Attributes:
        path: The shard's file; None if its examples are only validated.
        examples: The list of its examples; see `lists.read_list`.
        result: The file for the `ShardResult`, which marks the task as finished.
        decoded_below: The threshold for images to decode in full, see `sampling`; only headers of others are checked.
        refuse_damaged: Whether images that decoders accept with warnings are unusable.
        resize: How images are resized before they are stored; None if they keep their size.
        images: The additional features that are images.
        max_skipped_named: The maximum number of unusable images to name.
        gaps: Whether inputs that are numbers may be missing, as NaN.
        compared: Whether thumbnails of the images are collected, see `near_duplicates`.
        by_content: Whether the hash of an example without an image is that of its content rather than of its key.
        hashes_inputs: Whether hashes of inputs and labels are collected, see `conflicts`.
    """

    path: Path | None
    examples: Path
    result: Path
    decoded_below: int
    refuse_damaged: bool
    resize: ResizeSettings | None
    images: list[bytes]
    max_skipped_named: int
    gaps: bool
    compared: bool = False
    by_content: bool = False
    hashes_inputs: bool = False

    @property
    def hashes(self) -> Path:
        """The file for the examples' hashes (see `slipway.core.seen`), followed by the offsets of their records."""
        return self.result.with_suffix(".u64")

    @property
    def thumbnails(self) -> Path:
        """The file for the images' thumbnails."""
        return self.result.with_suffix(".thumbnails")

    @property
    def input_hashes(self) -> Path:
        """The file for the hashes of the examples' inputs and labels."""
        return self.result.with_suffix(".inputs")


class ShardWriter:
    """Validates and writes shards in one process; each call handles one task and writes its result.

    Args:
        source: The source of the examples.
        scratch: The folder in which the source was listed, or a remote one with the files that it spooled.
        classes: The classes or labels, in the order of the network's outputs.
    """

    def __init__(self, source: Source, scratch: Path, classes: Sequence[str]) -> None:
        self._source = source
        self._scratch = scratch
        self._has_class = source.task == "classification"
        self._has_additional = bool(source.features) or not self._has_class
        self._labels = {name.encode(): index for index, name in enumerate(classes)} if not self._has_class else {}
        self._counted = dict(source.inputs)
        if source.task == "multilabel":
            self._counted[LABEL] = Kind("integer", shape=(len(classes),))
        elif source.task == "regression":
            self._counted[LABEL] = Kind("number")
        self._reader: Reader | None = None
        self._encoder = RecordEncoder()

    def __call__(self, task: ShardTask, tick: Tick) -> ShardResult:
        """Write one shard. The file is renamed to its final name when it is complete; `Store.publish` syncs it to disk.

        Raises:
            UserError: The source changed.
            OSError: The shard cannot be written.
        """
        counter, inputs, reader = *self._counters(task), self._opened()
        thumbnails = Thumbnails() if task.compared else None
        hashes = InputHashes(self._source.inputs) if task.hashes_inputs else None
        output: Iterator[object]
        if isinstance(reader, RowReader):
            output = blocks = self._rows(reader, task, counter, inputs, tick, hashes)
            write = functools.partial(_write_blocks, blocks)
        else:
            contents = read_contents(task.examples) if task.by_content and not self._source.has_image else {}
            examples = self._usable(task, read_list(task.examples), counter, inputs, tick, thumbnails, hashes)
            output = records = self._records(task, examples, contents)
            write = functools.partial(_write_records, records)
        if task.path is None:
            collections.deque(output, maxlen=0)
            result = ShardResult(tally=counter.tally(), inputs=inputs.statistics)
        else:
            writing = task.path.with_name(f".{task.path.name}.{os.getpid()}")
            hashed: Hashed = (array("Q"), array("Q"))
            size, digest, content = write(writing, hashed)
            writing.replace(task.path)
            tally = counter.tally()
            columns = b"".join(column.tobytes() for column in hashed)
            result = ShardResult(
                shard=Shard(file=task.path.name, examples=tally.examples, bytes=size, sha256=digest),
                content=content,
                tally=tally,
                inputs=inputs.statistics,
                hashes=_written(task.hashes, columns, tally.examples),
            )
        if thumbnails:
            result.thumbnails = _written(task.thumbnails, thumbnails.encoded(), result.tally.examples)
        if hashes:
            result.input_hashes = _written(task.input_hashes, hashes.encoded(), result.tally.examples)
        task.result.write_text(result.model_dump_json())
        return result

    def encoded(self, task: ShardTask) -> Iterator[bytes]:
        """Yield the records of a shard of a table that was validated, many at a time."""
        reader = self._opened()
        assert isinstance(reader, RowReader)
        counter, inputs = self._counters(task)
        for _, _, data in self._rows(reader, dataclasses.replace(task, path=Path()), counter, inputs, lambda _: None):
            yield data

    def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = self._source.reader(remote.local_copies(self._scratch, self._source.spooled))
        return self._reader

    def _counters(self, task: ShardTask) -> tuple[TallyCounter, InputCounter]:
        inputs = InputCounter(self._counted, gaps=self._source.inputs if task.gaps else ())
        return TallyCounter(max_skipped_named=task.max_skipped_named), inputs

    def _usable(
        self,
        task: ShardTask,
        examples: Iterable[Example],
        counter: TallyCounter,
        inputs: InputCounter,
        tick: Tick,
        thumbnails: Thumbnails | None = None,
        hashes: InputHashes | None = None,
    ) -> Iterator[Usable]:
        """Read, validate and count examples; yield the usable ones."""
        see = thumbnails.see if thumbnails else None
        assert self._reader is not None
        reader, read, below = self._reader, self._reader.read, task.decoded_below
        headers, whole, additional_whole = Inspector(whole=False), Inspector(whole=True, see=see), Inspector(whole=True)
        count, has_image, counted = counter.add, self._source.has_image, bool(self._counted)
        has_additional, seen, last_info, changed = self._has_additional, None, None, False
        additional: Additional = []
        stored_additional: Additional = []
        done, reported, last = 0, 0, time.monotonic()
        for key, label, listed_size, offset in reader.ahead(examples):
            done += 1
            if (task.resize or done % EXAMPLES_BETWEEN_TICKS == 0) and time.monotonic() - last > SECONDS_BETWEEN_TICKS:
                tick(done - reported)
                reported, last = done, time.monotonic()
            try:
                check_bytes(listed_size)
                image = stored = read(key, offset, listed_size)
                decoded = is_decoded(key, below)
                inspector = whole if decoded else headers
                if has_image:
                    info = headers.header(image)
                    if info is not last_info:  # which most PNG files of a data set share
                        last_info, changed = info, is_changed(info, task.resize)
                    if not changed:
                        seen = inspector.validate(image, info)
                    elif task.path:
                        stored, seen = store(image, info, task.resize, see)
                    else:
                        seen = stored_info(whole.validate(image, info), task.resize)
                damage = seen.damage if seen else ""
                if has_additional:
                    additional = self._with_labels(reader.additional(offset))
                    stored_additional, feature_damage = store_additional(
                        additional, task.images, additional_whole if decoded else headers
                    )
                    damage = feature_damage or damage
                if damage and decoded and task.refuse_damaged:
                    raise Damaged(f"it is damaged: {damage}")
                if counted:
                    inputs.add(stored_additional)
                count(key, label, seen, damage, decoded=decoded)
            except Unusable as reason:
                counter.skip(key, reason)
                if thumbnails:
                    thumbnails.forget()
                continue
            if thumbnails:
                thumbnails.take(key)
            if hashes:
                hashes.add(stored_additional, label if self._has_class else None)
            yield image, stored, key, label, additional, stored_additional
        tick(done - reported)

    def _with_labels(self, features: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return an example's features, with 0 or 1 for each label in place of the labels' names."""
        if not self._labels:
            return list(features)
        by_name = dict(features)
        by_name[LABEL.encode()] = self._indicators(by_name[LABEL.encode()])
        return list(by_name.items())

    def _indicators(self, names: bytes) -> bytes:
        """Return the Feature with 0 or 1 for each label, from that of an example's labels."""
        indicators = [0] * len(self._labels)
        for name in values(names):
            assert isinstance(name, bytes)
            indicators[self._labels[name]] = 1
        return integer_feature(indicators)

    def _record(self, image: bytes, key: bytes, label: int, additional: Additional) -> bytes:
        if self._has_additional:
            stored_image = image if self._source.has_image else None
            return self._encoder.encode_with(stored_image, key, label if self._has_class else None, additional)
        return self._encoder.encode(image, key, label)

    def _records(
        self, task: ShardTask, examples: Iterable[Usable], contents: Mapping[bytes, bytes]
    ) -> Iterator[Record]:
        """Encode the examples; nothing is encoded if they are only validated."""
        encode, has_additional, has_image = self._encoder.encode, self._has_additional, self._source.has_image
        for image, stored, key, label, additional, changed in examples:
            if task.path is None:
                continue
            is_original = stored is image and changed is additional
            original = None if is_original else self._record(image, key, label, additional)
            record = self._record(stored, key, label, changed) if has_additional else encode(stored, key, label)
            yield image_hash(image) if has_image else key_hash(contents.get(key, key)), record, original

    def _rows(
        self,
        reader: RowReader,
        task: ShardTask,
        counter: TallyCounter,
        inputs: InputCounter,
        tick: Tick,
        hashes: InputHashes | None = None,
    ) -> Iterator[Block]:
        """Read, validate, count and encode a table's rows, many at a time; nothing is encoded without a path."""
        import numpy as np

        from slipway.components.prepare_data.encoding.table_rows import records

        shard = read_all(task.examples)
        entries = reader.entries(shard.rows["offset"].astype("i8"))
        for chosen in batches(shard, reader.layout.entry_bytes):
            part = shard[chosen]
            listed = part.rows
            rows = reader.rows(entries[chosen])
            if self._labels:
                rows.coded[LABEL] = rows.coded[LABEL].changed(self._indicators)
            labels = listed["group"] if self._has_class else None
            compared = hashes.of_rows(rows, labels) if hashes else None
            try:
                check_bytes(int(listed["size"].max()))
                inputs.add_rows(rows)
            except Unusable:  # some cannot be used
                keys = part.key_list()
                contents = dict(zip(keys, part.contents(), strict=True)) if task.by_content else {}
                usable = [*self._usable(task, part.examples(), counter, inputs, tick)]
                if hashes and compared:
                    are_usable = np.isin(np.array(keys, object), [key for _, _, key, *_ in usable])
                    hashes.add_all((compared[0][are_usable], compared[1][are_usable]))
                hashed = [*self._records(task, usable, contents)]
                encoded = [record[1] for record in hashed]
                yield array("Q", [record[0] for record in hashed]), array("Q", map(len, encoded)), b"".join(encoded)
                continue
            if hashes and compared:
                hashes.add_all(compared)
            counter.add_classes(part.classes())
            tick(len(part))
            if task.path is not None:
                keys = part.key_list()
                data, lengths = records(reader.layout, rows, keys, labels)
                row_hashes = key_hashes(part.contents() if task.by_content else keys)
                yield row_hashes, array("Q", lengths.tobytes()), data


class ShardHasher(ShardWriter):
    """Reads the examples of a task without validating them; each call returns `ShardResult.content`, or "".

    The content is "" if an example cannot be read.
    """

    def __call__(self, task: ShardTask, tick: Tick) -> str:  # type: ignore[override]
        reader = self._reader = self._reader or self._source.reader(self._scratch)
        digest = hashlib.sha256()
        for number, (key, label, size, offset) in enumerate(read_list(task.examples), 1):
            if number % EXAMPLES_BETWEEN_TICKS == 0:
                tick(EXAMPLES_BETWEEN_TICKS)
            try:
                check_bytes(size)
                image = reader.read(key, offset, size)
                additional = self._with_labels(reader.additional(offset)) if self._has_additional else []
            except Unusable:
                return ""
            digest.update(self._record(image, key, label, additional))
        return digest.hexdigest()


def store_additional(additional: Additional, images: list[bytes], inspector: Inspector) -> tuple[Additional, str]:
    """Validate the images among an example's additional features.

    Returns:
        The features as they are stored: the same list, if no image has to be converted; and how one of the images is
        damaged, or "".

    Raises:
        Unusable: Readers cannot decode one of them.
    """
    damage, converted = "", {}
    for name, feature in additional:
        if name not in images:
            continue
        try:
            validated = [_stored(image if isinstance(image, bytes) else b"", inspector) for image in values(feature)]
        except Unusable as reason:
            raise type(reason)(f"its {name.decode()}: {reason}") from None
        for _, info in validated:
            damage = f"its {name.decode()}: {info.damage}" if info.damage else damage
        if any(info.is_converted for _, info in validated):
            converted[name] = bytes_feature([image for image, _ in validated])
    return [(name, converted.get(name, feature)) for name, feature in additional] if converted else additional, damage


def _stored(image: bytes, inspector: Inspector) -> tuple[bytes, ImageInfo]:
    info = inspector.header(image)
    return store(image, info, None) if info.is_converted else (image, inspector.validate(image, info))


def _write_blocks(blocks: Iterable[Block], path: Path, hashed: Hashed) -> tuple[int, str, str]:
    """Write blocks of records as `_write_records` does."""
    import numpy as np  # as what reads tables does

    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for hashes, lengths, data in blocks:
            file.write(data)
            digest.update(data)
            hashed[0].extend(hashes)
            hashed[1].frombytes((size + np.cumsum(lengths) - lengths).astype(np.uint64).tobytes())
            size += len(data)
    return size, digest.hexdigest(), digest.hexdigest()


def _write_records(records: Iterable[Record], path: Path, hashed: Hashed) -> tuple[int, str, str]:
    """Write the records to `path`; return their size, their SHA-256 and their content's.

    Appends the examples' hashes and the offsets of their records to `hashed`.
    """
    digest, originals = hashlib.sha256(), None
    add_hash, add_offset = (column.append for column in hashed)
    waiting: list[bytes] = []
    size, waiting_bytes = 0, 0
    with path.open("wb") as file:
        for hash_of, record, original in records:
            if original is not None and originals is None:  # so far, both digests are the same
                size += _flush(waiting, file, digest)
                waiting_bytes = 0
                originals = digest.copy()
            if originals is not None:
                originals.update(record if original is None else original)
            add_hash(hash_of)
            add_offset(size + waiting_bytes)
            waiting.append(record)
            waiting_bytes += len(record)
            if waiting_bytes > BUFFER_BYTES:
                size += _flush(waiting, file, digest)
                waiting_bytes = 0
        size += _flush(waiting, file, digest)
    return size, digest.hexdigest(), (originals or digest).hexdigest()


def _written(file: Path, content: bytes, examples: int) -> Shard:
    """Write a file beside a shard; return its record."""
    file.write_bytes(content)
    return Shard(file=file.name, examples=examples, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _flush(records: list[bytes], file: BinaryIO, digest: hashlib._Hash) -> int:
    data = b"".join(records)
    records.clear()
    file.write(data)
    digest.update(data)
    return len(data)
