"""Examples without an image whose inputs are equal and whose labels differ: at most one of these can be right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.records import Label, read_sample
from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.listing.repeats import Repeats
from slipway.core.formatting import brief
from slipway.core.manifest import Manifest

# The first examples of the splits that are compared; fewer if they have many inputs, whose values are held in memory.
MAX_EXAMPLES, MAX_VALUES = 10_000, 2_000_000
INPUTS_SHOWN, CHARACTERS_SHOWN = 4, 40


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

    labels: defaultdict[tuple[bytes, ...], Counter[bytes]] = defaultdict(Counter)
    total, most = 0, min(MAX_EXAMPLES, MAX_VALUES // len(manifest.inputs))
    for split in manifest.splits.values():
        shards = (folder / shard.file for shard in split.shards)
        columns = read_sample(shards, ["label", *manifest.inputs], most - total)
        for label, *inputs in zip(*columns.values(), strict=True):
            labels[tuple(inputs)][label] += 1
        total += len(columns["label"])
    repeats = Repeats()
    repeats.add(np.array([counts.total() for counts in labels.values()]), np.ones(len(labels), np.int64))
    conflicts = {inputs: counts for inputs, counts in labels.items() if len(counts) > 1}
    if not conflicts or repeats.are_observations:
        return []
    count = sum(counts.total() for counts in conflicts.values())
    wrong = sum(counts.total() - max(counts.values()) for counts in conflicts.values())
    first = next(iter(conflicts))
    pairs = [f"{name} {_shown(feature)}" for name, feature in zip(manifest.inputs, first, strict=True)]
    shown = ", ".join([*pairs[:INPUTS_SHOWN], *(["…"] if len(pairs) > INPUTS_SHOWN else [])])
    named = ", ".join(sorted(text_of(tuple(values(label))) for label in conflicts[first]))
    return [
        f"{count:,} of {total:,} {item}s compared have the inputs of one with another label, such as {shown} "
        f"({named}): any model is wrong on at least {wrong:,}. Correct the labels, or add an input "
        "that tells them apart."
    ]


def _shown(feature: bytes) -> str:
    """Return an input's values for people, shortened."""
    text = " ".join(readable(value) if isinstance(value, bytes) else brief(value) for value in values(feature))
    return (text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}…") or "(empty)"
