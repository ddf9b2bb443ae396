"""Outliers: a few numbers whose squares make most of the sum of squares, so that a squared error is mostly theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slipway.components.prepare_data.encoding.inputs import InputStatistics
from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.records import ShardFile, read_columns
from slipway.core.formatting import brief
from slipway.core.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# So few of the numbers are named if they make so much of the sum.
SMALL_FRACTION, LEAST_SHARE = 0.02, 0.5
MAX_NAMED = 3


def outliers(squares: NDArray[np.float64]) -> tuple[int, float]:
    """Return how few of the squares [n] make most of their sum, and their share of it; (0, 0.0) if many make it.

    Few are at most the fraction `SMALL_FRACTION`, which make at least `LEAST_SHARE` of the sum.
    """
    import numpy as np

    ordered, total = np.sort(squares)[::-1], float(squares.sum())
    shares = np.cumsum(ordered[: _few(len(ordered))]) / total if total else np.zeros(0)
    count = int(np.searchsorted(shares, LEAST_SHARE)) + 1
    return (count, float(shares[count - 1])) if count <= len(shares) else (0, 0.0)


def _few(count: int) -> int:
    return max(1, int(SMALL_FRACTION * count))


def outlier_notes(shards: Sequence[ShardFile], manifest: Manifest, targets: InputStatistics) -> list[str]:
    """Return a note if a few of the training targets make most of the squared deviation from their mean.

    Args:
        shards: The files of the training split.
        manifest: The data set's manifest.
        targets: The statistics of the training targets.
    """
    train, target = manifest.splits["train"], manifest.target
    if target is None or target.logarithmic or targets.minimum is None or targets.maximum is None:
        return []
    mean, largest = target.mean[0], max(abs(target.mean[0] - end) for end in (targets.minimum, targets.maximum))
    # The largest square is at least the mean of the few: without such a one, the targets are not read again.
    if largest**2 * _few(train.examples) < LEAST_SHARE * train.examples * target.deviation[0] ** 2:
        return []
    import numpy as np

    columns = (read_columns([shard], ["label"], train.examples) for shard in shards)
    values = np.array([value for column in columns for value in all_values(column["label"])], np.float64)
    squares = (values - mean) ** 2
    count, share = outliers(squares)
    if not count:
        return []
    named = ", ".join(brief(values[index]) for index in np.argsort(-squares, kind="stable")[: min(count, MAX_NAMED)])
    makes = f"{count:,} of {train.examples:,} training targets {'makes' if count == 1 else 'make'}"
    return [
        f"{makes} {share:.0%} of the squared deviation from the mean ({named}{', …' if count > MAX_NAMED else ''}): a "
        "network mostly learns these. Correct them if they are wrong; train.loss=huber or mae, and data.target=log of "
        "positive targets, learn less from large errors."
    ]
