"""Examples without an image whose inputs and label are equal, which data.duplicates keeps in one split or drops."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from slipway.components.prepare_data.examples import Group

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Equal examples are separate observations, as of a few categories, if there are so few different ones, or so many equal
# ones: fewer, larger sets of them would be a split of a few different examples.
MIN_DIFFERENT, MAX_EQUAL = 20, 20
# The order in which equal examples are numbered; the first one is kept if the others are dropped.
SPLIT_ORDER = (None, "test", "train", "validation")
# The blocks of examples of a group that are in one split, in their order, and their sizes.
Blocks = Sequence[tuple[str, int]]


@dataclass
class Repeats:
    """Counts of examples that are equal to another one.

    Attributes:
        duplicates: The setting data.duplicates.
        divided_by: The setting that decides the split of an example; "" if a hash does.
        total: The number of all examples.
        examples: The number of examples that have an equal one.
        different: The number of different ones among these.
        across: The number of those that the source has in several splits.
        squares: The sum of the squares of the numbers of equal examples; one that has no equal one counts as 1.
    """

    duplicates: Literal["keep", "refuse", "drop"] = "refuse"
    divided_by: str = ""
    total: int = 0
    examples: int = 0
    different: int = 0
    across: int = 0
    squares: int = 0

    def add(self, counts: NDArray[np.int64], splits: NDArray[np.int64]) -> None:
        """Count sets of equal examples: their sizes, and in how many of the source's splits each is."""
        several = counts > 1
        self.total += int(counts.sum())
        self.examples += int(counts[several].sum())
        self.different += int(several.sum())
        self.across += int(counts[splits > 1].sum())
        self.squares += int((counts**2).sum())

    @property
    def are_observations(self) -> bool:
        """Whether equal examples are divided among splits as if they were different."""
        if self.duplicates == "keep" or not self.total:
            return True
        per_example = self.squares / self.total
        return per_example > MAX_EQUAL or self.total / per_example < MIN_DIFFERENT

    @property
    def are_together(self) -> bool:
        """Whether equal examples are kept in one split."""
        is_kept = self.duplicates == "refuse" and not self.divided_by
        return self.examples > 0 and is_kept and not self.are_observations

    @property
    def are_dropped(self) -> bool:
        """Whether only one of equal examples is used."""
        return self.examples > 0 and self.duplicates == "drop"

    def notes(self, item: str) -> list[str]:
        """Return a note on the equal examples, if there are any."""
        if not self.examples:
            return []
        equal = f"{self.examples:,} of {self.total:,} {item}s equal another one in all inputs and the label"
        if self.are_dropped:
            return [f"{equal}: of equal ones, one is used; {self.examples - self.different:,} are dropped."]
        if self.divided_by:
            return [f"{equal}: {self.divided_by} decides their splits."]
        if self.across:
            return [
                f"{equal}, {self.across:,} of them one in another split of the source: the model is evaluated on "
                f"{item}s that it was trained on. --set data.duplicates=drop uses only one of equal ones."
            ]
        if self.are_together:
            return [
                f"{equal}: equal ones are kept in one split. If they are copies by mistake, as of a join, use "
                "--set data.duplicates=drop."
            ]
        why = "" if self.duplicates == "keep" else ", since there are too few different ones to divide"
        return [
            f"{equal}: they are divided like different ones{why}, so the model is evaluated on {item}s that it was "
            "trained on."
        ]


def whole(
    blocks: Mapping[Group, Blocks], ends: Mapping[Group, NDArray[np.int64]], folds: int | None
) -> dict[Group, list[tuple[str, int]]]:
    """Return blocks whose bounds are between sets of equal examples, as near as possible to those of `blocks`.

    A group with fewer different examples than blocks keeps its blocks.

    Args:
        blocks: The blocks of each group.
        ends: The number of examples of each group up to the end of each set of equal ones, in the order of the blocks.
        folds: The number of folds, the bounds of which are the same for each fold; None without folds.
    """
    return {group: _whole(of_group, ends[group], folds) if of_group else [] for group, of_group in blocks.items()}


def _whole(blocks: Blocks, ends: NDArray[np.int64], folds: int | None) -> list[tuple[str, int]]:
    import numpy as np

    bounds = np.cumsum([size for _, size in blocks])
    total = int(bounds[-1])
    cuts = np.unique(bounds[(bounds > 0) & (bounds < total)])
    parts = folds or 1
    of_folds = np.unique(np.array([total * number // parts for number in range(1, parts)], np.int64))
    of_folds = of_folds[of_folds > 0]  # a group may have fewer examples than there are folds
    moved = {0: 0, **dict(zip(of_folds.tolist(), _moved(of_folds, ends), strict=True)), total: total}
    for start, stop in itertools.pairwise([*moved]):  # what the fold leaves is divided between its bounds
        inner_cuts = cuts[(cuts > start) & (cuts < stop)]
        inside = ends[(ends > moved[start]) & (ends <= moved[stop])]
        moved |= dict(zip(inner_cuts.tolist(), _moved(inner_cuts, inside), strict=True))
    new = [0, *(moved[bound] for bound in bounds.tolist())]
    sizes = np.diff(np.maximum.accumulate(new)).tolist()
    return [(split, size) for (split, _), size in zip(blocks, sizes, strict=True)]


def _moved(cuts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[int]:
    """Return the end of a set of equal examples for each cut, a different one for each; the cuts if these are more."""
    import numpy as np

    last = len(ends) - 1  # nothing is after the last end
    if len(cuts) > last or not len(cuts):
        return cuts.tolist()
    after = np.clip(np.searchsorted(ends, cuts), 0, last)
    before = np.maximum(after - 1, 0)
    index = np.where(cuts - ends[before] < ends[after] - cuts, before, after)
    steps = np.arange(len(cuts))
    index = np.maximum.accumulate(index - steps) + steps  # increasing
    index = np.minimum(index, last - len(cuts) + steps)
    return ends[index].tolist()
