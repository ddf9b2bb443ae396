"""Examples without an image whose inputs are equal and whose labels differ: at most one of these can be right."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slipway.components.prepare_data.encoding.messages import features_of, field, values
from slipway.components.prepare_data.encoding.records import Label, read_entries
from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.listing.repeats import Repeats
from slipway.core.formatting import brief
from slipway.core.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The first examples of the splits that are compared, of which hashes are held in memory (8 bytes each, twice while they
# are sorted); fewer if they have more bytes.
MAX_EXAMPLES, MAX_BYTES = 4_000_000, 1 << 30
LABEL = "label"
INPUTS_SHOWN, CHARACTERS_SHOWN = 4, 40


class Conflicts(NamedTuple):
    """Examples that have the inputs of one with another label.

    Attributes:
        examples: Their number.
        wrong: The number of those of which any model is wrong at least.
        first: The index of the first one.
        labels: The different labels of the examples with its inputs, as entries.
    """

    examples: int
    wrong: int
    first: int
    labels: list[bytes]


def conflict_notes(folder: Path, manifest: Manifest, item: str, text_of: Callable[[Label], str]) -> list[str]:
    """Return a note on equal inputs with different labels, if there are any.

    There is none on inputs of so few different values that equal ones are separate observations; see `Repeats`.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.
        item: What an example is called.
        text_of: Returns a stored label as text.
    """
    if manifest.has_image or manifest.task == "regression" or not manifest.inputs:
        return []
    import numpy as np

    shards = [folder / shard.file for split in manifest.splits.values() for shard in split.shards]
    read = functools.partial(read_entries, shards, count=MAX_EXAMPLES, most=MAX_BYTES)
    hashes = np.concatenate([np.fromiter(map(hash, inputs), np.int64, len(inputs)) for inputs in read(manifest.inputs)])
    conflicts = find_conflicts(hashes, itertools.chain.from_iterable(read([LABEL])))
    if conflicts is None:
        return []
    inputs = itertools.chain.from_iterable(read(manifest.inputs))
    features = _features(next(itertools.islice(inputs, conflicts.first, None)))
    pairs = [f"{name} {_shown(features[name.encode()])}" for name in [*manifest.inputs][:INPUTS_SHOWN]]
    shown = ", ".join([*pairs, *(["…"] if len(manifest.inputs) > INPUTS_SHOWN else [])])
    labels = [_features(label)[LABEL.encode()] for label in conflicts.labels]
    named = ", ".join(sorted(text_of(tuple(values(label))) for label in labels))
    total = sum(split.examples for split in manifest.splits.values())
    compared = f"{len(hashes):,} {item}s compared" + (f" (of {total:,})" if len(hashes) < total else "")
    return [
        f"{conflicts.examples:,} of {compared} have the inputs of one with another label, such as {shown} ({named}): "
        f"any model is wrong on at least {conflicts.wrong:,}. Correct the labels, or add an input that tells them "
        "apart."
    ]


def find_conflicts(hashes: NDArray[np.int64], entries: Iterable[bytes]) -> Conflicts | None:
    """Return the conflicts between examples, if there are any that are no separate observations.

    Args:
        hashes: The hash of each example's inputs.
        entries: The label of each example, as an entry; read only if inputs are equal.
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
    is_repeated = repeated[sets] == hashes
    sets = sets[is_repeated]
    numbers: dict[bytes, int] = {}
    labels = np.array([numbers.setdefault(entry, len(numbers)) for entry in itertools.compress(entries, is_repeated)])
    pairs, counts = np.unique(sets * len(numbers) + labels, return_counts=True)
    starts = np.flatnonzero(np.diff(pairs // len(numbers), prepend=-1))
    is_conflict = np.diff(starts, append=len(pairs)) > 1
    if not is_conflict.any():
        return None
    examples = int(sizes[is_conflict].sum())
    right = int(np.maximum.reduceat(counts, starts)[is_conflict].sum())
    first = int(is_conflict[sets].argmax())
    of_first = [[*numbers][number] for number in np.unique(labels[sets == sets[first]]).tolist()]
    return Conflicts(examples, examples - right, int(np.flatnonzero(is_repeated)[first]), of_first)


def _features(entries: bytes) -> dict[bytes, bytes]:
    return features_of(field(1, len(entries)) + entries)


def _shown(feature: bytes) -> str:
    """Return an input's values for people, shortened."""
    text = " ".join(readable(value) if isinstance(value, bytes) else brief(value) for value in values(feature))
    return (text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}…") or "(empty)"
