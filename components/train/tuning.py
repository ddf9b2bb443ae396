"""The section `tune`: which settings are tuned, in which ranges, by which metric, and how many trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from slipway.core.errors import UserError
from slipway.trainer.settings import Settings, Untyped

# Sections whose settings a trial can change: the data are prepared once, and the gate judges the best trial.
SECTIONS = ("train", "model", "hardware")


class ParameterSettings(Settings):
    """A parameter: a range from `low` to `high`, or `choices`. A range of two whole numbers has whole numbers only."""

    low: int | float | None = Field(default=None, description="Lowest value.")
    high: int | float | None = Field(default=None, description="Highest value.")
    step: int | float | None = Field(default=None, gt=0, description="Distance between values; null: any value.")
    scale: Literal["linear", "log", "reverse_log"] = Field(
        default="linear",
        description="Whether values are drawn uniformly, or their logarithms; reverse_log: more finely near `high`, as "
        "log does near `low`.",
    )
    choices: list[Untyped] | None = Field(default=None, min_length=1, description="The values, in place of a range.")
    when: dict[str, Annotated[list[Untyped], Field(min_length=1)]] = Field(
        default={},
        description="Choices of parameters before this one with which this one is tuned, such as "
        "{train.optimizer: [sgd]}. With others, its setting keeps its value.",
    )

    @model_validator(mode="after")
    def _is_range_or_choices(self) -> ParameterSettings:
        if self.choices is not None:
            if set(self.changed()) - {"choices", "when"}:
                raise ValueError("has choices, so low, high, step and scale do not apply")
            return self
        if self.low is None or self.high is None:
            raise ValueError("needs low and high, or choices")
        if self.low >= self.high:
            raise ValueError(f"low must be below high; got {self.low:g} and {self.high:g}")
        if self.scale != "linear" and (self.low <= 0 or self.step is not None):
            raise ValueError(f"with scale {self.scale} needs a low above 0, and no step")
        return self

    def applies(self, values: Mapping[str, object]) -> bool:
        """Return whether it is tuned with these values of the parameters before it."""
        return all(values.get(name) in allowed for name, allowed in self.when.items())

    @property
    def ends(self) -> tuple[object, object]:
        """The lowest and the highest value, or the first and the last choice."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)

    @property
    def is_whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def steps(self) -> Iterator[int | float]:
        """Yield the values of a range with a step, or of whole numbers."""
        assert self.low is not None and self.high is not None
        step = self.step or 1
        for number in range(math.floor((self.high - self.low) / step + 1e-9) + 1):
            value = self.low + number * step
            yield value if isinstance(value, int) else round(value, 12)

    def mirrored(self, value: float) -> float:
        """Return the value at the same distance from the other end of the range."""
        assert self.low is not None and self.high is not None
        return self.low + self.high - value


class TuneSettings(Settings):
    """How `slipway tune` searches for better settings."""

    parameters: dict[str, ParameterSettings] = Field(
        min_length=1,
        description="The parameters by the dotted name of a setting of train or model, such as train.learning_rate or "
        "model.arguments.width, or `hardware`; or by an option of a custom program, such as --learning-rate, which is "
        "added to train.arguments.",
    )
    metric: str | None = Field(
        default=None,
        description="Metric on the validation split that decides, such as accuracy or loss, or one that a custom "
        "program reports (slipway.training.report, kind validation). null: the task's own, of a program the loss.",
    )
    direction: Literal["maximize", "minimize"] | None = Field(
        default=None, description="Which values of `metric` are better. null: as usual for a known metric."
    )
    trials: PositiveInt = Field(default=20, description="Number of trials.")
    hours: PositiveFloat | None = Field(default=None, description="Time after which no trial starts; null: no limit.")
    trial_hours: PositiveFloat | None = Field(
        default=None,
        description="Time after which a trial on this machine is stopped and has failed, as one that hangs; null: five "
        "times the median of the completed ones, and at least ten minutes.",
    )
    parallel: PositiveInt = Field(default=1, description="Number of trials at once.")
    failures: NonNegativeInt = Field(default=3, description="Number of trials that may fail before the search stops.")
    pruning: Literal["none", "median", "halving"] = Field(
        default="none",
        description="Which trials stop early: none, those worse than the median of the others at the same epoch, or by "
        "successive halving.",
    )

    @field_validator("parameters")
    @classmethod
    def _are_of_the_training(cls, parameters: dict[str, ParameterSettings]) -> dict[str, ParameterSettings]:
        for name in parameters:
            if not name.startswith("--") and name.partition(".")[0] not in SECTIONS:
                raise UserError(
                    f"{name} cannot be tuned: trials share the prepared data, and only the best one is evaluated.",
                    setting="tune.parameters",
                    value=name,
                    allowed="train.*, model.*, hardware, or an option of a custom program, such as --learning-rate",
                )
        return parameters

    @field_validator("parameters")
    @classmethod
    def _depend_on_choices(cls, parameters: dict[str, ParameterSettings]) -> dict[str, ParameterSettings]:
        before: dict[str, list[Untyped]] = {}
        for name, parameter in parameters.items():
            for other, values in parameter.when.items():
                if other not in before or any(value not in before[other] for value in values):
                    raise UserError(
                        f"{name} is tuned when {other} is {' or '.join(map(str, values))}, which it never is.",
                        setting=f"tune.parameters.{name}.when",
                        value=other,
                        allowed="choices of a parameter before it: "
                        + (
                            "; ".join(f"{key}: {', '.join(map(str, choices))}" for key, choices in before.items())
                            or "none"
                        ),
                    )
            if parameter.choices is not None:
                before[name] = parameter.choices
        return parameters


class SearchSettings(TuneSettings):
    """A search that is executed: the section `tune`, with what it leaves to the rest of the configuration."""

    metric: str
    direction: Literal["maximize", "minimize"]
    seed: int = Field(description="Seed of the values that are drawn.")
