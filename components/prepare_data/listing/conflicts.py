"""Examples without an image whose inputs are equal and whose labels differ: at most one of these can be right."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.records import Label, ShardFile, read_at
from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.listing.repeats import Repeats
from slipway.core.formatting import brief
from slipway.core.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slipway.components.prepare_data.encoding.table_rows import Rows

# The first examples of the splits that are compared, of which hashes are held in memory (16 bytes each, and 8 bytes
# once more while they are sorted).
MAX_EXAMPLES = 4_000_000
HASH_BYTES = 8
LABEL = "label"
INPUTS_SHOWN, CHARACTERS_SHOWN = 4, 40
# Odd, with irregular bits: the fractional part of the golden ratio.
FACTOR, SHIFT = 0x9E3779B97F4A7C15, 32


class Conflicts(NamedTuple):
    """Examples that have the inputs of one with another label.

    Attributes:
        examples: Their number.
        wrong: The number of those of which any model is wrong at least.
        first: The indexes of the first one, and of one with each other label of the examples with its inputs.
    """

    examples: int
    wrong: int
    first: list[int]


class InputHashes:
    """Collects the hashes of the inputs of a shard's examples, and of their labels.

    Args:
        inputs: The names of the inputs.
    """

    def __init__(self, inputs: Collection[str]) -> None:
        self._inputs = sorted(inputs)
        self._columns = array("Q"), array("Q")

    def add(self, features: Iterable[tuple[bytes, bytes]], label: int | None) -> None:
        """Add an example with these Features; `label` is its class, None if the label is one of them."""
        by_name = dict(features)
        hashes, labels = self._columns
        hashes.append(_hash(b"".join([by_name[name.encode()] for name in self._inputs])))
        labels.append(_hash(by_name[LABEL.encode()]) if label is None else label)

    def add_all(self, columns: tuple[NDArray[np.uint64], NDArray[np.uint64]]) -> None:
        """Add the columns that `of_rows` has returned."""
        for column, added in zip(self._columns, columns, strict=True):
            column.frombytes(added.tobytes())

    def of_rows(self, rows: Rows, labels: NDArray[np.uint32] | None) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the hashes of the inputs and of the labels of a table's rows.

        Those of the inputs are other ones than `add` adds: numbers are hashed many at a time.
        """
        import numpy as np

        def column_of(name: str) -> NDArray[np.uint64]:
            if name in rows.numbers:
                return rows.numbers[name].view(np.uint32).astype(np.uint64)
            features, index = rows.coded[name]
            return np.array([*map(_hash, features)], np.uint64)[index]

        label = column_of(LABEL) if labels is None else labels.astype(np.uint64)
        hashes = np.zeros(len(label), np.uint64)
        for name in self._inputs:
            hashes ^= column_of(name)
            hashes *= np.uint64(FACTOR)
            hashes ^= hashes >> np.uint64(SHIFT)
        return hashes, label

    def encoded(self) -> bytes:
        """Return the hashes of the inputs, followed by those of the labels."""
        return b"".join(column.tobytes() for column in self._columns)


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=HASH_BYTES).digest())


def are_compared(kinds: Mapping[str, Kind], task: str, *, has_image: bool) -> bool:
    """Return whether conflicts between examples with inputs of these kinds are looked for."""
    return bool(kinds) and not has_image and task != "regression"


def conflict_notes(
    shards: Sequence[ShardFile], hashes: Sequence[Path], manifest: Manifest, item: str, text_of: Callable[[Label], str]
) -> list[str]:
    """Return a note on equal inputs with different labels, if there are any.

    There is none on inputs of so few different values that equal ones are separate observations; see `Repeats`.

    Args:
        shards: The files of the shards.
        hashes: The files that `InputHashes` has encoded, of each shard.
        manifest: The data set's manifest.
        item: What an example is called.
        text_of: Returns a stored label as text.
    """
    import numpy as np

    columns, counts = [], []
    for path in hashes:
        columns.append(np.frombuffer(path.read_bytes(), np.uint64).reshape(2, -1))
        counts.append(columns[-1].shape[1])
        if sum(counts) >= MAX_EXAMPLES:
            break
    inputs, labels = np.concatenate(columns, axis=1)[:, :MAX_EXAMPLES]
    conflicts = find_conflicts(inputs, labels)
    if conflicts is None:
        return []
    examples: dict[int, dict[bytes, bytes]] = {}
    start = 0
    for shard, count in zip(shards, counts, strict=False):
        numbers = {index - start for index in conflicts.first if start <= index < start + count}
        if numbers:
            examples |= {start + number: features for number, features in read_at(shard, numbers).items()}
        start += count
    features = examples[conflicts.first[0]]
    pairs = [f"{name} {_shown(features[name.encode()])}" for name in [*manifest.inputs][:INPUTS_SHOWN]]
    shown = ", ".join([*pairs, *(["…"] if len(manifest.inputs) > INPUTS_SHOWN else [])])
    named = ", ".join(sorted(text_of(tuple(values(example[LABEL.encode()]))) for example in examples.values()))
    total = sum(split.examples for split in manifest.splits.values())
    compared = f"{len(inputs):,} {item}s compared" + (f" (of {total:,})" if len(inputs) < total else "")
    return [
        f"{conflicts.examples:,} of {compared} have the inputs of one with another label, such as {shown} ({named}): "
        f"any model is wrong on at least {conflicts.wrong:,}. Correct the labels, or add an input that tells them "
        "apart."
    ]


def find_conflicts(hashes: NDArray[np.uint64], labels: NDArray[np.uint64]) -> Conflicts | None:
    """Return the conflicts between examples, if there are any that are no separate observations.

    Args:
        hashes: The hash of each example's inputs.
        labels: The hash of each example's label.
    """
    import numpy as np

    ordered = np.sort(hashes)
    repeated, sizes = np.unique(ordered[1:][ordered[1:] == ordered[:-1]], return_counts=True)
    sizes += 1
    single = len(hashes) - int(sizes.sum())
    repeats = Repeats(total=single, squares=single)
    repeats.add(sizes, np.ones_like(sizes))
    if not len(repeated) or repeats.are_observations:
        return None
    sets = np.searchsorted(repeated, hashes).clip(max=len(repeated) - 1)
    index = np.flatnonzero(repeated[sets] == hashes)
    sets = sets[index]
    different, codes = np.unique(labels[index], return_inverse=True)
    pairs, counts = np.unique(sets * len(different) + codes, return_counts=True)
    starts = np.flatnonzero(np.diff(pairs // len(different), prepend=-1))
    is_conflict = np.diff(starts, append=len(pairs)) > 1
    if not is_conflict.any():
        return None
    examples = int(sizes[is_conflict].sum())
    right = int(np.maximum.reduceat(counts, starts)[is_conflict].sum())
    of_first = np.flatnonzero(sets == sets[is_conflict[sets].argmax()])
    _, firsts = np.unique(codes[of_first], return_index=True)
    return Conflicts(examples, examples - right, index[of_first[np.sort(firsts)]].tolist())


def _shown(feature: bytes) -> str:
    """Return an input's values for people, shortened."""
    text = " ".join(readable(value) if isinstance(value, bytes) else brief(value) for value in values(feature))
    return (text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}…") or "(empty)"
