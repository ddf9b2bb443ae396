"""The interface of data sources: listed part by part, in any order, and read by example in worker processes."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.examples import LABEL_SEPARATOR, Example, Group, readable
from slipway.components.prepare_data.sources.precision import Precision
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slipway.components.prepare_data.encoding.table_rows import Rows, TableLayout

T = TypeVar("T")
# A part of a source; each source has its own type.
Part = Any
MAX_IGNORED, MAX_IGNORED_NOTED = 20, 3
MAX_UNUSABLE_NAMED = 100
# Reasons that are counted; in reasons, what differs between examples: the line, the image of which one is a copy.
MAX_REASONS = 1000
OF_ONE_EXAMPLE = re.compile(r"(?<=the same image as) .*(?= in the split )| on (line|row) \d+$", re.DOTALL)


# A listed example: its key (its unique name in the source), its class ("" for regression; for multilabel, its labels,
# separated by LABEL_SEPARATOR), the source's split (None if it defines none),
# its size in bytes, a stamp that changes with the content (see `Source.stamps_are_times`), the
# position for the source's reader (unused if the key suffices), and its group in the source with data.group_by, else a
# hash of its inputs and label if it has no image, by which equal ones are recognized. If data.order_by names a column,
# also the text of its value. A plain tuple, because there are many.
Entry = tuple[bytes, str, str | None, int, int, int, *tuple[bytes, ...]]


@dataclass
class Ignored:
    """What was ignored while listing a source.

    Attributes:
        count: The number of files that are not examples.
        names: The names of the first of these files.
        unusable_count: The number of examples that are too damaged to be listed. They count towards
            data.skip_corrupt, like those that turn out to be unusable when they are read.
        unusable: The keys of the first of these examples, with reasons.
        unusable_digest: A digest of all their keys and reasons.
        reasons: Their number by reason, of the first reasons.
        precision: The rounding of numbers that are inputs or targets.
        missing: The cells without a value of the columns of numbers of a table of which only the first rows were read
            to infer their kinds, by column.
    """

    count: int = 0
    names: list[str] = field(default_factory=list)
    unusable_count: int = 0
    unusable: list[tuple[bytes, str]] = field(default_factory=list)
    unusable_digest: bytes = b""
    reasons: Counter[str] = field(default_factory=Counter)
    precision: Precision = field(default_factory=Precision)
    missing: Counter[str] = field(default_factory=Counter)

    def add(self, key: bytes) -> None:
        self.count += 1
        self.names = sorted((*self.names, readable(key)))[:MAX_IGNORED]

    def notes(self) -> list[str]:
        """Return a note on the files that are not examples, if there are any."""
        if not self.count:
            return []
        named = ", ".join(self.names[:MAX_IGNORED_NOTED]) + (", …" if self.count > MAX_IGNORED_NOTED else "")
        return [f"{self.count:,} file{'s are' * (self.count > 1) or ' is'} not used, as not images: {named}."]

    def skip(self, key: bytes, reason: str) -> None:
        """Record an example that cannot be listed."""
        self.unusable_count += 1
        if len(self.unusable) < MAX_UNUSABLE_NAMED:
            self.unusable.append((key, reason))
        if (common := common_reason(reason)) in self.reasons or len(self.reasons) < MAX_REASONS:
            self.reasons[common] += 1
        self.unusable_digest = hashlib.sha256(self.unusable_digest + repr((key, reason)).encode()).digest()

    def merge(self, other: Ignored) -> None:
        self.count += other.count
        self.names = sorted(self.names + other.names)[:MAX_IGNORED]
        self.unusable_count += other.unusable_count
        self.unusable = sorted(self.unusable + other.unusable)[:MAX_UNUSABLE_NAMED]
        self.unusable_digest += other.unusable_digest
        self.reasons += other.reasons
        self.precision.merge(other.precision)
        self.missing += other.missing


def common_reason(reason: str) -> str:
    """Return a reason without what differs between examples, to count by it."""
    return OF_ONE_EXAMPLE.sub("", reason).replace("the same image as in", "the same image as one in")


class Misjudged(UserError):
    """The kind of a feature, which was inferred from the first examples, is not that of all."""


class Reader(Protocol):
    """Reads examples in one process."""

    def ahead(self, examples: Iterable[Example]) -> Iterable[Example]:
        """Return the examples in their order; a reader of objects in buckets starts to read those that follow."""
        return examples

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        """Return the example's encoded image; b"" if the source has no images.

        Raises:
            Unusable: The image cannot be read.
            UserError: The source changed since it was listed.
        """
        ...

    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:
        """Yield the additional features of the last example read: names and serialized tf.train.Features.

        For tasks other than classification, `label` is one of them: the target (a float), or the labels' names.
        """
        ...


class RowReader(Reader, ABC):
    """Base class of readers of tables, which read many rows at a time, too.

    Attributes:
        layout: What a row consists of.
    """

    layout: TableLayout

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        return b""

    @abstractmethod
    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:
        """Return the features of the row at this offset."""

    @abstractmethod
    def entries(self, offsets: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the stored entries of the rows at these offsets, such as all of a shard."""

    @abstractmethod
    def rows(self, entries: NDArray[np.void]) -> Rows:
        """Return the rows of some entries."""


class ListedRows(NamedTuple):
    """Rows of a table as their source lists them.

    Attributes:
        digests: A hash of each row's values, big-endian.
        groups: The different groups.
        group: The index of each row's group.
        sizes: The size of each row's Features.
        offsets: The position of each row for the source's reader.
        bundles: The different values of the column of data.group_by.
        bundle: The index of each row's value.
        labels: The names of labels of the task multilabel.
        contents: A hash of each row's inputs and label; None if these are all its values. 0: it is not compared.
        keys: The keys that the source gave the rows, whose digests are then stamps; None if keys are made of digests.
        order: The different texts of the column of data.order_by, and the index of each row's; None without one.
    """

    digests: NDArray[np.uint64]
    groups: Sequence[Group]
    group: NDArray[np.int64]
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64] | NDArray[np.uint64]
    bundles: Sequence[bytes]
    bundle: NDArray[np.int64]
    labels: AbstractSet[str]
    contents: NDArray[np.uint64] | None = None
    keys: Sequence[bytes] | None = None
    order: tuple[Sequence[bytes], NDArray[np.int64]] | None = None

    def take(self, index: NDArray[np.int64]) -> ListedRows:
        """Return the rows at these positions."""
        return self._replace(
            digests=self.digests[index], group=self.group[index], sizes=self.sizes[index], offsets=self.offsets[index],
            bundle=self.bundle[index], contents=None if self.contents is None else self.contents[index],
            keys=None if self.keys is None else [self.keys[position] for position in index.tolist()],
            order=self.order and (self.order[0], self.order[1][index]),
        )  # fmt: skip


def coded(values: Iterable[T]) -> tuple[list[T], NDArray[np.int64]]:
    """Return the different values, and the index of each value among them."""
    import numpy as np

    codes: dict[T, int] = {}
    index = np.array([codes.setdefault(value, len(codes)) for value in values], np.int64)
    return [*codes], index


def coded_groups(
    splits: Iterable[str | None], labels: Sequence[str], *, several: bool
) -> tuple[list[Group], NDArray[np.int64], set[str]]:
    """Return the different groups of examples, the index of each example's, and the names of all labels.

    Examples with `several` labels each, of the task multilabel, are in one group of each split; else no name is
    returned.
    """
    names: set[str] = set()
    if several:
        names.update(*(label.split(LABEL_SEPARATOR) for label in {*labels}))
        labels = ("",) * len(labels)
    return *coded(zip(splits, labels, strict=True)), names - {""}


class Source(ABC):
    """A source of examples; by default without additional features, with classes sorted by name.

    Attributes:
        name: The default name of a data set from this source.
        reference: The source as the user wrote it.
        task: What is learned from the examples.
        has_image: Whether the examples have images, which are then an input of the network.
        stamps_are_times: Whether the stamps of entries depend on modification times, which change if a file is copied;
            other stamps depend on content alone.
        may_convert: Whether images may have to be converted before they are stored, such as those with an orientation.
        inputs: The kinds of the other inputs of the network, by the names under which they are stored, in order.
        features: The additional features by name, in the format of `features.json`.
        class_names: The class names of the additional features that are labels, by feature name.
        notes: Sentences for the user about how the source is read.
        has_ids: Whether the keys are the values of the column data.id.
        is_table: Whether `rows` lists it, and its readers are `RowReader`s.
        revision: The revision that was opened, such as a commit or a time, of a source that has several; part of the
            data set's fingerprint.
    """

    name: str
    reference: str
    task: TaskName = "classification"
    has_image: bool = True
    stamps_are_times: bool = False
    may_convert: bool = True
    inputs: Mapping[str, Kind] = {}
    features: dict[str, JsonObject] = {}  # noqa: RUF012
    class_names: dict[str, list[str]] = {}  # noqa: RUF012
    notes: Sequence[str] = ()
    has_ids: bool = False
    is_table: bool = False
    revision: str = ""

    @property
    def files(self) -> Sequence[Path]:
        """The files that are read to be listed; none if names and sizes suffice."""
        return ()

    @property
    def spooled(self) -> Sequence[str]:
        """The files that listing leaves in its folder for the readers."""
        return ()

    @property
    def item(self) -> str:
        """What an example is called in messages."""
        return "image" if self.has_image else "example"

    def classes(self, listed: Iterable[str]) -> list[str]:
        """Return all classes in the order of their labels; `listed` are the classes of the listed examples."""
        return sorted(listed)

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the parts, in a fixed order. Each can be pickled and is listed independently, in any process."""

    @abstractmethod
    def entries(self, part: Part, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        """Yield the examples of one part in any order, without holding all in memory; record others in `ignored`.

        Sources that can only be read sequentially spool their content to the folder `scratch` for the readers.
        """

    def rows(self, part: Part, ignored: Ignored, scratch: Path) -> Iterator[ListedRows] | None:  # noqa: ARG002
        """Yield the rows of a table as `entries` does, many at a time; None if the source has no such rows."""
        return None

    def infer_again(self) -> None:  # noqa: B027 (only tables infer kinds)
        """Infer the kinds of the features from all examples, after listing raised `Misjudged`."""

    def inferred(self, listed: Ignored) -> dict[str, Any]:  # noqa: ARG002
        """Return the columns of a table whose kinds were inferred, as `InferredColumn`, after rows were `listed`."""
        return {}

    def groups(self, listed: Iterable[Group]) -> dict[Group, Group]:
        """Map the listed groups to their final split and class, which may depend on all listed groups.

        Raises:
            UserError: The splits are invalid.
        """
        return {group: group for group in listed}

    def stamp(self) -> str | None:
        """Return a value that changes with the content of the source, or None if that requires listing it."""
        return None

    @abstractmethod
    def reader(self, scratch: Path) -> Reader:
        """Return a reader for the calling process."""


class PlainReader(Reader):
    """Base class of readers without additional features."""

    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:  # noqa: ARG002
        return ()
