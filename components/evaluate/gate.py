"""The gate: decide whether a model is promoted, and say why; the settings of the gate and of the evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.core.values import JsonObject
from slipway.trainer.hooks import FUNCTION_PATTERN
from slipway.trainer.settings import Settings
from slipway.trainer.tasks import TASKS, Metric

# "unchanged": the weights are the champion's; "not comparable": the champion cannot be measured on this test split.
Decision = Literal["promote", "reject", "unchanged", "not comparable"]

# Tolerance for floating-point error: 0.98 - 0.97 is not exactly 0.01.
ROUNDING = 1e-9
# Metadata key of the metrics and the registry: why a promoted model was not checked against anything.
UNCHECKED = "unchecked"
# Metadata key of the metrics and the registry: the metrics' 95% confidence intervals, [low, high] by name.
INTERVALS = "intervals"
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
    prefix = next((each for each in PREFIXES if name.startswith(each)), "")
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
    significance: float | None = Field(
        default=None,
        ge=SMALLEST_P_VALUE,
        le=0.5,
        description="Largest p-value of the difference from the champion, such as 0.05: a model that is not "
        "significantly better is rejected. The test is two-sided and paired: McNemar's exact test for accuracy, "
        "DeLong's for AUC, a t-test for other metrics of Slipway's evaluation. null: any difference counts.",
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
        self._check_range()
        return self

    def _check_range(self) -> None:
        """Raise UserError if limit or margin is outside of the known metric's range, unless it has a direction."""
        metric = known(self.name)
        if self.direction is not None or metric is None:
            return
        lowest, highest = metric.lowest, metric.highest
        between = (
            f"{lowest:g} to {highest:g}"
            if math.isfinite(highest - lowest)
            else (f"at least {lowest:g}" if math.isfinite(lowest) else f"at most {highest:g}")
        )
        if self.limit is not None and not lowest <= self.limit <= highest:
            percent = self.limit / 100 if 10 <= self.limit <= 100 and highest == 1 else None
            raise self._outside(self.limit_name, self.limit, between, between, "null" if percent is None else percent)
        if (width := highest - lowest) < abs(self.margin):
            percent = self.margin / 100 if abs(self.margin) <= 100 and highest == 1 else 0
            raise self._outside("margin", self.margin, between, f"-{width:g} to {width:g}", percent)

    def _outside(self, name: str, value: float, between: str, allowed: str, fixed: float | str) -> UserError:
        fixed = fixed if isinstance(fixed, str) else f"{fixed:g}"
        direction = "minimize" if self.minimized else "maximize"
        return UserError(
            f"The gate's {name} is {value:g}, and the {self.label} is {between}.",
            setting=f"evaluate.gate.{name}",
            value=value,
            allowed=allowed,
            nearest=None if fixed == "null" else fixed,
            fix=f"--set evaluate.gate.{name}={fixed}; "
            f"or, for a metric on another scale, --set evaluate.gate.direction={direction}",
        )

    @model_validator(mode="after")
    def _significantly_better(self) -> GateSettings:
        if self.significance is not None and self.margin < 0:
            raise UserError(
                "A gate with a significance promotes only models that are better; its margin accepts worse ones.",
                setting="evaluate.gate.margin",
                value=self.margin,
                allowed="0 or more, with evaluate.gate.significance",
                fix="--set evaluate.gate.margin=0; or --set evaluate.gate.significance=null",
            )
        return self

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

    @model_validator(mode="after")
    def _of_module(self) -> EvaluateSettings:
        if self.module is not None and self.gate.significance is not None:
            raise no_test(f"{self.module} returns metrics", self.gate.significance)
        for name in self.changed() if self.module is not None else ():
            if name in ("batch_size", "worst_examples"):
                raise UserError(
                    f"evaluate.{name} applies only to Slipway's evaluation; {self.module} evaluates here.",
                    setting=f"evaluate.{name}",
                    value=getattr(self, name),
                    allowed="evaluate.module, evaluate.gate and evaluate.champion only",
                    fix=f"remove evaluate.{name}",
                )
        return self


@dataclass(frozen=True)
class Comparison:
    """A paired test of the difference of a metric between a model and the champion on the same examples.

    `test` names it, `p_value` is two-sided, `counts` says on what it is based.
    """

    test: str
    p_value: float
    counts: str


@dataclass(frozen=True)
class Opponent:
    """The champion that a model is compared with.

    `name` identifies it ("version 3"). `identical` is true if it has the same weights as the evaluated model. `unknown`
    are the data set's classes that it does not have, `foreign` its classes that the data set does not have.
    `comparison` tests the difference of the gate's metric, None if it cannot be tested. `incomparable` says why it was
    not measured, after "The champion, version 3, ". `basis` says on which of the examples both are compared, if not
    on all, and `ours` are the model's metrics there. `caveat` says so if it may have seen some of them.
    """

    name: str
    metrics: Mapping[str, float]
    identical: bool = False
    comparison: Comparison | None = None
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    incomparable: str = ""
    basis: str = ""
    caveat: str = ""
    ours: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Verdict:
    """The gate's decision and the reasons for it, one sentence each.

    `checked` is false if there was nothing to compare with: no limit is set, and no champion or baseline was there.
    """

    decision: Decision
    reasons: list[str]
    checked: bool = True

    def as_dict(self) -> JsonObject:
        return asdict(self)

    def unless(self, fault: str | None) -> Verdict:
        """Return a rejection for the reason `fault`, or this verdict if it is None."""
        return self if fault is None else Verdict("reject", [*self.reasons, fault])


def decide(
    gate: GateSettings,
    metrics: Mapping[str, float],
    champion: Opponent | None,
    without_champion: str,
    measured: str = "on the test split",
    baseline: Mapping[str, float] | None = None,
) -> Verdict:
    """Return the verdict on a model.

    Args:
        gate: The thresholds.
        metrics: The model's metrics.
        champion: The registered model to beat, measured in the same way, or None.
        without_champion: The sentence that says why there is no champion.
        measured: How the metrics were measured, after "The accuracy".
        baseline: The metrics of a constant prediction, if there are any.

    Raises:
        UserError: The model or the champion does not have the gate's metric.
    """
    if gate.name not in metrics:
        near = nearest(gate.name, metrics) or next(iter(metrics), None)
        fix = None if near is None else f"--set evaluate.gate.metric={near}"
        if near is not None and known(near) is None:
            fix = f"{fix} --set evaluate.gate.direction=maximize (or minimize)"
        raise UserError.unknown("metric", gate.name, metrics, setting="evaluate.gate.metric", fix=fix)
    passed, reasons = [], []
    trivial = (baseline or {}).get(gate.name)
    if gate.limit is not None:
        holds, reason = _against_limit(gate, metrics[gate.name], gate.limit, measured)
        passed.append(holds)
        reasons.append(reason)
    elif champion is None:
        beating = f" better than the baseline's, {trivial:.4f}," if gate.baseline and trivial is not None else ""
        setting = f"evaluate.gate.{gate.limit_name}"
        reasons.append(f"No {gate.limit_name} is set ({setting}): any {gate.label}{beating} passes.")
    if champion is None:
        reasons.append(without_champion)
    elif champion.identical:
        reasons.append(f"The model has the same weights as the champion, {champion.name}: there is nothing to promote.")
    elif champion.incomparable:
        reasons.append(_not_comparable(champion))
    else:
        if champion.basis:
            reasons.append(champion.basis)
        compared = metrics if champion.ours is None else champion.ours
        beaten, reason = _against_champion(gate, compared[gate.name], champion)
        passed.append(beaten)
        reasons.append(reason)
        if champion.comparison is not None:
            significant, reason = _significance(gate, champion.comparison)
            passed.append(significant)
            reasons.append(reason)
        elif gate.significance is not None:
            raise no_test(f"the difference of the {gate.label} cannot be tested {measured}", gate.significance)
        reasons += [*_other_classes(champion), *filter(None, [champion.caveat])]
    decision: Decision = "promote"
    if champion is not None and (champion.identical or champion.incomparable):
        decision = "unchanged" if champion.identical else "not comparable"
    if trivial is not None:
        better = _is_better(gate, metrics[gate.name], trivial)
        if not better:
            ours, theirs = _told_apart(metrics[gate.name], trivial)
            reasons.append(
                f"The {gate.label}, {ours}, is no better than the baseline's, {theirs}: that of a constant prediction, "
                "learned from the targets of the training split alone."
            )
        passed += [better] if gate.baseline else []
    if not all(passed):
        decision = "reject"
    return Verdict(decision, reasons, bool(passed) or decision != "promote")


def _not_comparable(champion: Opponent) -> str:
    return (
        f"The champion, {champion.name}, {champion.incomparable}: the models are not comparable, and the champion "
        "stays. To register this model apart from it: --set register.model=NAME; to replace it: "
        "--set evaluate.champion=none."
    )


def _is_better(gate: GateSettings, value: float, other: float) -> bool:
    return (other - value if gate.minimized else value - other) > ROUNDING


def _against_limit(gate: GateSettings, value: float, limit: float, measured: str) -> tuple[bool, str]:
    shown, limit_shown = _told_apart(value, limit)
    if gate.minimized:
        holds = value <= limit + ROUNDING
        relation = f"is {'within' if holds else 'above'} the maximum of {limit_shown}"
    else:
        holds = value >= limit - ROUNDING
        relation = f"{'meets' if holds else 'is below'} the minimum of {limit_shown}"
    return holds, f"The {gate.label} {measured}, {shown}, {relation}."


def _against_champion(gate: GateSettings, value: float, champion: Opponent) -> tuple[bool, str]:
    if gate.name not in champion.metrics:
        raise UserError(
            f"The champion, {champion.name}, has no metric {gate.name} to compare with.",
            setting="evaluate.gate.metric",
            value=gate.name,
            allowed=", ".join(champion.metrics) or "none: evaluate.module measures both models in the same way",
            nearest=nearest(gate.name, champion.metrics),
            fix="--set evaluate.champion=none, for this run",
        )
    theirs = champion.metrics[gate.name]
    gain = theirs - value if gate.minimized else value - theirs
    beaten = gain >= gate.margin - ROUNDING
    ours_shown, theirs_shown = _told_apart(value, theirs)
    if abs(gain) <= ROUNDING:
        relation = "equals"
    else:  # with enough decimals to distinguish the difference from the margin
        difference = _told_apart(abs(gain), abs(gate.margin))[0]
        relation = f"is {'better' if gain > 0 else 'worse'} by {difference} than"
    return beaten, (
        f"The {gate.label}, {ours_shown}, {relation} the champion's ({champion.name}), {theirs_shown}. "
        f"This {'meets' if beaten else 'does not meet'} the gate: {_margin(gate.margin)}."
    )


def no_test(why: str, significance: float) -> UserError:
    """Return the error for a gate with a significance where nothing can be tested."""
    return UserError(
        f"evaluate.gate.significance needs the predictions of both models, but {why}.",
        setting="evaluate.gate.significance",
        value=significance,
        allowed="null; or Slipway's evaluation of a prepared test split, with a metric that it can resample",
        fix="--set evaluate.gate.significance=null, and a margin: --set evaluate.gate.margin=0.01",
    )


def _significance(gate: GateSettings, comparison: Comparison) -> tuple[bool, str]:
    value = "below 0.0001" if comparison.p_value < 1e-4 else f"{comparison.p_value:.4g}"
    basis = f"({comparison.test}: {comparison.counts})"
    if gate.significance is None:
        return True, f"The p-value of the difference is {value} {basis}."
    holds = comparison.p_value <= gate.significance
    relation = "at most" if holds else "above"
    return holds, (
        f"The difference is {'' if holds else 'not '}significant: its p-value, {value}, is {relation} "
        f"{gate.significance:g} {basis}."
    )


def _margin(margin: float) -> str:
    if margin > 0:
        return f"at least {margin:g} better"
    if margin < 0:
        return f"at most {-margin:g} worse"
    return "at least as good"


def _other_classes(champion: Opponent) -> list[str]:
    reasons = []
    if champion.unknown:
        reasons.append(f"The champion does not have {_listed(champion.unknown)}: it is wrong on such examples.")
    if champion.foreign:
        reasons.append(
            f"The champion also has {_listed(champion.foreign)}, which this data set does not have: "
            "predicting one counts as wrong."
        )
    return reasons


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"the class{'es' if len(names) > 1 else ''} {shown}{more}"


def _told_apart(first: float, second: float) -> tuple[str, str]:
    """Format two numbers with four decimals, or with as many more as show that they differ."""
    for decimals in range(4, 10):
        texts = (f"{first:.{decimals}f}", f"{second:.{decimals}f}")
        if texts[0] != texts[1] or abs(first - second) <= ROUNDING:
            break
    return texts
