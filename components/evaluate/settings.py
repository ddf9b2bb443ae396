"""Settings of the evaluation and its gate, and the metrics whose direction and range are known."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.trainer.hooks import FUNCTION_PATTERN
from slipway.trainer.settings import Settings
from slipway.trainer.tasks import TASKS, Metric

SMALLEST_P_VALUE = 0.001  # the t-test is an approximation, and says little of smaller ones
# All metrics of Slipway's evaluation, and two usual ones of other evaluations, by name.
KNOWN: Mapping[str, Metric] = {
    "auc": Metric("AUC", "maximize", "area under the ROC curve"),
    "f1": Metric("F1", "maximize", "harmonic mean of precision and recall"),
    **{name: metric for task in TASKS.values() for name, metric in task.metrics.items()},
}
# Prefixes with which Hugging Face's Trainer and Keras name the metrics of a split.
PREFIXES = ("eval_", "test_", "val_")
MINIMIZED = tuple(name for name, metric in KNOWN.items() if metric.direction == "minimize")
MAXIMIZED = tuple(name for name, metric in KNOWN.items() if metric.direction == "maximize")


def known(name: str) -> Metric | None:
    """Return the known metric of a name with or without one of `PREFIXES`, or None."""
    prefix = next((candidate for candidate in PREFIXES if name.startswith(candidate)), "")
    return KNOWN.get(name.removeprefix(prefix))


class GateSettings(Settings):
    """When a model is promoted: `metric` reaches its limit and beats the champion's value by at least `margin`.

    The limit is `minimum` for a metric that is maximized, and `maximum` for one that is minimized.
    """

    metric: str | None = Field(
        default=None,
        min_length=1,
        description="Metric that decides. Slipway's evaluation has, by task: "
        + "; ".join(f"{name}: {', '.join(task.metrics)}" for name, task in TASKS.items())
        + ". `evaluate.module` and custom programs have their own, also with the prefix eval_, test_ or val_. "
        "null: the task's first one.",
    )
    direction: Literal["maximize", "minimize"] | None = Field(
        default=None,
        description="Whether a higher or a lower value of `metric` is better. null: as usual for a known metric "
        f"({', '.join(MINIMIZED)} are minimized; {', '.join(MAXIMIZED)} maximized); required for others.",
    )
    minimum: float | None = Field(
        default=None, description="Smallest value accepted of a metric that is maximized; null: any value."
    )
    maximum: float | None = Field(
        default=None, description="Largest value accepted of a metric that is minimized; null: any value."
    )
    margin: float = Field(
        default=0.0,
        description="Smallest improvement over the champion; a negative value accepts a slightly worse model.",
    )
    significance: Annotated[float, Field(ge=SMALLEST_P_VALUE, le=0.5)] | Literal["auto"] | None = Field(
        default="auto",
        description="Largest p-value of the difference from the champion, such as 0.05: a model that is not "
        "significantly better is rejected. The test is two-sided and paired: McNemar's exact test for accuracy, "
        "DeLong's for AUC, a t-test for other metrics of Slipway's evaluation. The test split's ledger counts the "
        "models that were compared on it, and the level shrinks so that all comparisons together reach this one. With "
        "`slipway run --repeat`, the mean over all seeds has to be significantly better, too (a t-test, in which the "
        "champion is one more training). auto: 0.1 on a test split on which the champion was evaluated before; on new "
        "examples, and where nothing can be tested, any difference counts. null: any difference counts.",
    )
    slice_limit: float | None = Field(
        default=None,
        description="Worst value of `metric` accepted on each of `evaluate.slices`, a minimum or a maximum as its "
        "direction says; null: any value.",
    )
    slice_margin: float | None = Field(
        default=None,
        description="Smallest improvement over the champion on each of `evaluate.slices`; a negative value accepts "
        "slices that are slightly worse. A model is rejected if it is significantly below on a slice (at "
        "`significance`, or 0.05, for all slices together). null: slices are not compared.",
    )
    slice_examples: PositiveInt = Field(
        default=30,
        description="Number of examples from which on a slice counts for the gate, for `slice_margin` of those that "
        "neither model has seen; all are in the report.",
    )
    baseline: bool = Field(
        default=True,
        description="Whether to reject a model that is no better than a baseline, which predicts the training split's "
        "class frequencies, or its mean target, for every example; for F1 and precision of labels, all labels if that "
        "is better. Only in Slipway's evaluation.",
    )

    @model_validator(mode="after")
    def _limit_of_direction(self) -> GateSettings:
        if self.metric is None:  # checked by `of`, once the task is known
            return self
        if self.direction is None and known(self.metric) is None:
            near = nearest(self.metric, KNOWN)
            raise UserError(
                f"The gate does not know whether a higher or a lower {self.metric} is better.",
                setting="evaluate.gate.metric",
                value=self.metric,
                allowed=f"{', '.join(KNOWN)}; any other with evaluate.gate.direction",
                nearest=near,
                fix="--set evaluate.gate.direction=minimize, or maximize"
                + (f"; or --set evaluate.gate.metric={near}" if near else ""),
            )
        wrong, right = ("minimum", "maximum") if self.minimized else ("maximum", "minimum")
        if (value := getattr(self, wrong)) is not None:
            raise UserError(
                f"The gate has a {wrong} for {self.metric}, which is {'minimized' if self.minimized else 'maximized'}.",
                setting=f"evaluate.gate.{wrong}",
                value=value,
                allowed=f"evaluate.gate.{right}, the {'largest' if self.minimized else 'smallest'} value accepted",
                nearest=f"evaluate.gate.{right}={value:g}",
                fix=f"write {right} instead of {wrong}; or set evaluate.gate.direction",
            )
        return self

    @model_validator(mode="after")
    def _within_range(self) -> GateSettings:
        """Reject a limit or margin outside of the known metric's range, unless there is a direction."""
        metric = known(self.name)
        if self.metric is None or self.direction is not None or metric is None:
            return self
        lowest, highest = metric.lowest, metric.highest
        between = f"at least {lowest:g}" if math.isfinite(lowest) else f"at most {highest:g}"
        if math.isfinite(width := highest - lowest):
            between = f"{lowest:g} to {highest:g}"
        if self.limit is not None and not lowest <= self.limit <= highest:
            name, value, allowed = self.limit_name, self.limit, between
            fixed = f"{value / 100:g}" if 10 <= value <= 100 and highest == 1 else None
        elif width < abs(self.margin):
            name, value, allowed = "margin", self.margin, f"-{width:g} to {width:g}"
            fixed = f"{value / 100 if abs(value) <= 100 and highest == 1 else 0:g}"
        else:
            return self
        direction = "minimize" if self.minimized else "maximize"
        raise UserError(
            f"The gate's {name} is {value:g}, and the {self.label} is {between}.",
            setting=f"evaluate.gate.{name}",
            value=value,
            allowed=allowed,
            nearest=fixed,
            fix=f"--set evaluate.gate.{name}={fixed or 'null'}; "
            f"or, for a metric on another scale, --set evaluate.gate.direction={direction}",
        )

    @model_validator(mode="after")
    def _significantly_better(self) -> GateSettings:
        if self.tested is not None and self.margin < 0:
            raise UserError(
                "A gate with a significance promotes only models that are better; its margin accepts worse ones.",
                setting="evaluate.gate.margin",
                value=self.margin,
                allowed="0 or more, with evaluate.gate.significance",
                fix="--set evaluate.gate.margin=0; or --set evaluate.gate.significance=null",
            )
        return self

    @property
    def tested(self) -> float | None:
        """The significance that the user requires of the difference from the champion."""
        return None if self.significance == "auto" else self.significance

    def of(self, task: TaskName) -> GateSettings:
        """Return the gate with the task's first metric if none is set.

        Raises:
            UserError: Its limit is for a metric of the other direction.
        """
        if self.metric is not None:
            return self
        return GateSettings.model_validate({**self.model_dump(), "metric": next(iter(TASKS[task].metrics))})

    def among(self, metrics: Mapping[str, float]) -> GateSettings:
        """Return the gate with its metric under the name that it has in `metrics`, which may have a prefix."""
        name = next((prefix + self.name for prefix in ("", *PREFIXES) if prefix + self.name in metrics), self.name)
        return self.model_copy(update={"metric": name})

    @property
    def name(self) -> str:
        """The metric; see `of`."""
        return self.metric or next(iter(TASKS["classification"].metrics))

    @property
    def minimized(self) -> bool:
        """Whether a lower value of the metric is better."""
        metric = known(self.name)
        return (self.direction or (metric.direction if metric else None)) == "minimize"

    @property
    def limit(self) -> float | None:
        """The worst value accepted; None for any."""
        return self.maximum if self.minimized else self.minimum

    @property
    def limit_name(self) -> str:
        """The name of the setting of the limit."""
        return "maximum" if self.minimized else "minimum"

    @property
    def label(self) -> str:
        """The metric's name in sentences."""
        return KNOWN[self.name].title if self.name in KNOWN else self.name


class EvaluateSettings(Settings):
    """How to evaluate the model on the test split."""

    module: str | None = Field(
        default=None,
        pattern=f"^{FUNCTION_PATTERN}$",
        description="Function that evaluates instead of Slipway, as module:function. It receives a model's folder and "
        "the data, and returns its metrics; champion and challenger are measured by the same function. null: "
        "metrics.json in the model's folder if the program wrote it, else Slipway's evaluation on the test split.",
    )
    batch_size: PositiveInt = Field(default=256, description="Examples per batch. Does not affect the metrics.")
    gate: GateSettings = Field(default=GateSettings(), description="When a model is promoted.")
    slices: list[str] = Field(
        default=[],
        description="Parts of the test split on which all metrics are measured, too: a column (a slice for each "
        "category or integer, or for each quarter of the numbers), a condition such as `age>65` or `city==Bern`, "
        "or module:function, which receives an example's inputs as a dict and returns the name of its slice, or None. "
        "`width` and `height` are those of the image.",
    )
    champion: Literal["registered", "none"] = Field(
        default="registered",
        description="Model to compare with: the registered champion, or none (only the gate's limit decides).",
    )
    worst_examples: int = Field(
        default=24,
        ge=0,
        le=200,
        description="Number of examples in the report on which the model is worst: misclassified ones, most confident "
        "first; or those with the highest loss (multilabel) or the largest residual (regression).",
    )

    importance: bool = Field(
        default=True,
        description="Whether to measure which inputs matter: by how much the gate's metric gets worse on the "
        "validation split if the values of one input are exchanged among the examples (permutation importance), also "
        "on `evaluate.slices`; and of the most confident errors on images, which parts of the image they are due to.",
    )

    @property
    def slice_functions(self) -> list[str]:
        """The entries of `slices` that are functions of the user, as module:function."""
        return [entry for entry in self.slices if re.fullmatch(FUNCTION_PATTERN, entry)]

    @property
    def slice_columns(self) -> list[str]:
        """The other entries of `slices`: columns, and conditions on columns."""
        return [entry for entry in self.slices if entry not in self.slice_functions]

    @model_validator(mode="after")
    def _gate_of_slices(self) -> EvaluateSettings:
        name = next((name for name in ("slice_limit", "slice_margin") if getattr(self.gate, name) is not None), None)
        if name is not None and not self.slices:
            raise UserError(
                f"evaluate.gate.{name} is about slices, and evaluate.slices names none.",
                setting=f"evaluate.gate.{name}",
                value=getattr(self.gate, name),
                allowed="null without evaluate.slices",
                fix="--set evaluate.slices='[COLUMN]'; or remove it",
            )
        return self

    @model_validator(mode="after")
    def _of_module(self) -> EvaluateSettings:
        if self.module is not None and self.gate.tested is not None:
            raise no_test(f"{self.module} returns metrics", self.gate.tested)
        for name in self.changed() if self.module is not None else ():
            if name in ("batch_size", "worst_examples", "slices", "importance"):
                raise UserError(
                    f"evaluate.{name} applies only to Slipway's evaluation; {self.module} evaluates here.",
                    setting=f"evaluate.{name}",
                    value=getattr(self, name),
                    allowed="evaluate.module, evaluate.gate and evaluate.champion only",
                    fix=f"remove evaluate.{name}",
                )
        return self


def no_test(why: str, significance: float) -> UserError:
    """Return the error for a gate with a significance where nothing can be tested."""
    return UserError(
        f"evaluate.gate.significance needs the predictions of both models, but {why}.",
        setting="evaluate.gate.significance",
        value=significance,
        allowed="null; or Slipway's evaluation of a prepared test split, with a metric that it can resample",
        fix="--set evaluate.gate.significance=null, and a margin: --set evaluate.gate.margin=0.01",
    )
