"""Categories that a model's training data does not have: counted over all inputs, said, and limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.core.values import JsonObject

Limit = Annotated[
    float,
    typer.Option(
        "--max-unknown",
        min=0,
        max=1,
        metavar="FRACTION",
        help="Fail if more of a column's values are categories that the training data does not have.",
    ),
]


@dataclass
class UnknownValues:
    """The number of inputs, and by column the number of values that are unknown and the first of them."""

    inputs: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, inputs: int, values: Mapping[str, Sequence[str]]) -> None:
        """Count the unknown values of some inputs, by column."""
        self.inputs += inputs
        for column, texts in values.items():
            self._count(column, len(texts), texts[0])

    def merge(self, other: JsonObject) -> None:
        """Count what `as_dict` returned of others."""
        self.inputs += other["inputs"]
        for column, count in other["counts"].items():
            self._count(column, count, other["first"][column])

    def _count(self, column: str, count: int, first: str) -> None:
        self.counts[column] = self.counts.get(column, 0) + count
        self.first.setdefault(column, first)

    def as_dict(self) -> JsonObject:
        """Return the counts for JSON."""
        return {"inputs": self.inputs, "counts": self.counts, "first": self.first}

    def lines(self) -> list[str]:
        """Return a line for each column."""
        return [
            f"{column}: {count:,} of {self.inputs:,} values are none of the training's: {self.first[column]!r:.80} …"
            for column, count in self.counts.items()
        ]

    def check(self, limit: float) -> None:
        """Refuse a column with more unknown values than `limit`, a fraction.

        Raises:
            UserError: A column has more.
        """
        for line, count in zip(self.lines(), self.counts.values(), strict=True):
            if count > limit * self.inputs:
                raise UserError(
                    line + ".",
                    setting="--max-unknown",
                    value=limit,
                    fix=f"--max-unknown {min(1.0, (count * 1000 // self.inputs + 1) / 1000):g}, or correct the column",
                )
