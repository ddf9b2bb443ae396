"""Find columns of numbers whose differences float32 cannot represent, such as timestamps in milliseconds.

Inputs and targets are stored as float32 before they are standardized. Rounding must be small compared with a column's
standard deviation, else the digits in which its values differ are lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipway.components.prepare_data.examples import source_error
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The largest rounding error, as a fraction of the standard deviation.
MAX_ERROR = 0.01
# Values of a column that are held before they are counted together.
HELD = 4096
MAX_NAMED = 3


@dataclass
class Rounding:
    """The spread of one element of a column, and its largest rounding error as float32.

    Attributes:
        count: The number of values.
        mean: Their mean.
        squares: The sum of the squares of their differences from the mean.
        error: The largest absolute difference between a value and its float32.
        value: The value with this error.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    error: float = 0.0
    value: float = 0.0

    def merge(self, other: Rounding) -> None:
        """Add other values."""
        if not other.count:
            return
        count, apart = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + apart * apart * self.count * other.count / count
        self.mean += apart * other.count / count
        self.count = count
        if other.error > self.error:
            self.error, self.value = other.error, other.value

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.squares / max(self.count, 1))


@dataclass
class Precision:
    """The rounding of all columns. Columns may have several elements, always the same number."""

    columns: dict[str, list[Rounding]] = field(default_factory=dict)
    _held: dict[str, list[object]] = field(default_factory=dict)
    _most: dict[str, int] = field(default_factory=dict)

    def add(self, column: str, value: float | list[float]) -> None:
        """Add a value, or the list of its elements; values that are not finite are ignored."""
        held = self._held.get(column)
        if held is None:
            held = self._held[column] = []
            self._most[column] = HELD // len(value) if isinstance(value, list) and value else HELD
        held.append(value)
        if len(held) > self._most[column]:
            self._count(column)

    def merge(self, other: Precision) -> None:
        """Add the values of another part of the source."""
        for precision in (self, other):
            precision.close()
        for column, elements in other.columns.items():
            for rounding, other_rounding in zip(self._elements(column, len(elements)), elements, strict=False):
                rounding.merge(other_rounding)

    def close(self) -> None:
        """Count the values that are held."""
        for column in self._held:
            self._count(column)

    def problem(self, settings: DataSettings) -> UserError | None:
        """Return the error that names the columns that float32 cannot represent, or None."""
        self.close()
        lost = {
            column: worst
            for column, elements in self.columns.items()
            for worst in [max(elements, key=lambda rounding: rounding.error / (rounding.deviation or math.inf))]
            if worst.error > MAX_ERROR * worst.deviation > 0
        }
        if not lost:
            return None
        import numpy as np

        named = [
            f"{column} ({worst.value:.17g} becomes {float(np.float32(worst.value)):.17g}; the standard deviation is "
            f"{worst.deviation:.3g})"
            for column, worst in list(lost.items())[:MAX_NAMED]
        ]
        more = f", and {len(lost) - len(named):,} more" if len(lost) > len(named) else ""
        first, worst = next(iter(lost.items()))
        return source_error(
            settings.source,
            f"Rounding to float32 loses digits of the column{'s' if len(lost) > 1 else ''} {', '.join(named)}{more}.",
            allowed=f"numbers whose rounding error is at most {MAX_ERROR:.0%} of their standard deviation",
            fix=f"subtract a constant in the source, such as {first} - {worst.mean:.0f}, or use another unit",
        )

    def _elements(self, column: str, count: int) -> list[Rounding]:
        return self.columns.setdefault(column, [Rounding() for _ in range(count)])

    def add_all(self, column: str, values: NDArray[np.float64]) -> None:
        """Add the values of many examples: one each, or a row of elements; values that are not finite are ignored."""
        import numpy as np

        rows = values.reshape(len(values), -1)
        elements = self._elements(column, rows.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.abs(rows - rows.astype(np.float32))
        for rounding, numbers, error in zip(elements, rows.T, errors.T, strict=False):
            finite = np.isfinite(error)
            numbers, error = numbers[finite], error[finite]
            if len(numbers):
                mean, worst = float(numbers.mean()), int(error.argmax())
                squares = float(np.square(numbers - mean).sum())
                rounding.merge(Rounding(len(numbers), mean, squares, float(error[worst]), float(numbers[worst])))

    def _count(self, column: str) -> None:
        import numpy as np

        if held := self._held[column]:
            self.add_all(column, np.array(held, dtype=np.float64))
            held.clear()
