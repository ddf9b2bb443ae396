"""Categories and texts that a model's training data does not have: counted over all inputs, said, and limited."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.prediction.prediction import Answers

# What is said of unknown values of a column, by whether they are texts.
UNKNOWN = {
    False: "are none of the training's",
    True: "are empty, or mostly of words that the training data does not have",
}

Limit = Annotated[
    float,
    typer.Option(
        "--max-unknown",
        min=0,
        max=1,
        metavar="FRACTION",
        help="Fail if more of a column's values are categories, or texts, that the training data does not have.",
    ),
]


@dataclass
class UnknownValues:
    """The number of inputs, and by column the number of values that are unknown and the first; which are `texts`."""

    inputs: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def add(self, answers: Answers) -> None:
        """Count the unknown values of the inputs of some answers."""
        self.inputs += len(answers)
        for column, values in answers.unknown.items():
            self._count(column, len(values), values[0], is_text=column in answers.texts)

    def merge(self, other: JsonObject) -> None:
        """Count what `as_dict` returned of others."""
        self.inputs += other["inputs"]
        for column, count in other["counts"].items():
            self._count(column, count, other["first"][column], is_text=column in other.get("texts", ()))

    def _count(self, column: str, count: int, first: str, *, is_text: bool) -> None:
        if is_text and column not in self.texts:
            self.texts.append(column)
        self.counts[column] = self.counts.get(column, 0) + count
        self.first.setdefault(column, first)

    def as_dict(self) -> JsonObject:
        """Return the counts for JSON."""
        return {"inputs": self.inputs, "counts": self.counts, "first": self.first, "texts": self.texts}

    def lines(self) -> list[str]:
        """Return a line for each column."""
        return [
            f"{column}: {count:,} of {self.inputs:,} values {UNKNOWN[column in self.texts]}: "
            f"{self.first[column]!r:.80} …"
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
