"""The gate: decide whether a model is promoted, and say why; the settings of the gate and of the evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
# Whether a condition of the gate holds, None if nothing depends on it; and a sentence, "" for none.
Judged = tuple[bool | None, str]

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
    trivial = (baseline or {}).get(gate.name)
    judged = [
        *_against_limit(gate, metrics[gate.name], champion, trivial, measured),
        *_against_champion(gate, metrics, champion, without_champion, measured),
        *_against_baseline(gate, metrics[gate.name], trivial),
    ]
    passed = [holds for holds, _ in judged if holds is not None]
    decision: Decision = "promote"
    if champion is not None and (champion.identical or champion.incomparable):
        decision = "unchanged" if champion.identical else "not comparable"
    if not all(passed):
        decision = "reject"
    return Verdict(decision, [reason for _, reason in judged if reason], bool(passed) or decision != "promote")


def _against_limit(
    gate: GateSettings, value: float, champion: Opponent | None, trivial: float | None, measured: str
) -> Iterator[Judged]:
    if gate.limit is not None:
        shown, limit_shown = _told_apart(value, gate.limit)
        if gate.minimized:
            holds = value <= gate.limit + ROUNDING
            relation = f"is {'within' if holds else 'above'} the maximum of {limit_shown}"
        else:
            holds = value >= gate.limit - ROUNDING
            relation = f"{'meets' if holds else 'is below'} the minimum of {limit_shown}"
        yield holds, f"The {gate.label} {measured}, {shown}, {relation}."
    elif champion is None:
        beating = f" better than the baseline's, {trivial:.4f}," if gate.baseline and trivial is not None else ""
        setting = f"evaluate.gate.{gate.limit_name}"
        yield None, f"No {gate.limit_name} is set ({setting}): any {gate.label}{beating} passes."


def _against_champion(
    gate: GateSettings, metrics: Mapping[str, float], champion: Opponent | None, without: str, measured: str
) -> Iterator[Judged]:
    if champion is None:
        yield None, without
    elif champion.identical:
        yield None, f"The model has the same weights as the champion, {champion.name}: there is nothing to promote."
    elif champion.incomparable:
        yield (
            None,
            f"The champion, {champion.name}, {champion.incomparable}: the models are not comparable, and the champion "
            "stays. To register this model apart from it: --set register.model=NAME; to replace it: "
            "--set evaluate.champion=none.",
        )
    else:
        yield None, champion.basis
        yield _comparison(gate, (metrics if champion.ours is None else champion.ours)[gate.name], champion)
        if champion.comparison is not None:
            yield _significance(gate, champion.comparison)
        elif gate.significance is not None:
            raise no_test(f"the difference of the {gate.label} cannot be tested {measured}", gate.significance)
        if champion.unknown:
            yield None, f"The champion does not have {_listed(champion.unknown)}: it is wrong on such examples."
        if champion.foreign:
            yield (
                None,
                f"The champion also has {_listed(champion.foreign)}, which this data set does not have: "
                "predicting one counts as wrong.",
            )
        yield None, champion.caveat


def _against_baseline(gate: GateSettings, value: float, trivial: float | None) -> Iterator[Judged]:
    if trivial is None:
        return
    better, reason = (trivial - value if gate.minimized else value - trivial) > ROUNDING, ""
    if not better:
        ours, theirs = _told_apart(value, trivial)
        reason = (
            f"The {gate.label}, {ours}, is no better than the baseline's, {theirs}: that of a constant prediction, "
            "learned from the targets of the training split alone."
        )
    yield (better if gate.baseline else None), reason


def _comparison(gate: GateSettings, value: float, champion: Opponent) -> Judged:
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
    relation = "equals"
    if abs(gain) > ROUNDING:  # with enough decimals to distinguish the difference from the margin
        difference = _told_apart(abs(gain), abs(gate.margin))[0]
        relation = f"is {'better' if gain > 0 else 'worse'} by {difference} than"
    margin = "at least as good"
    if gate.margin:
        margin = f"at least {gate.margin:g} better" if gate.margin > 0 else f"at most {-gate.margin:g} worse"
    return beaten, (
        f"The {gate.label}, {ours_shown}, {relation} the champion's ({champion.name}), {theirs_shown}. "
        f"This {'meets' if beaten else 'does not meet'} the gate: {margin}."
    )


def _significance(gate: GateSettings, comparison: Comparison) -> Judged:
    value = "below 0.0001" if comparison.p_value < 1e-4 else f"{comparison.p_value:.4g}"
    basis = f"({comparison.test}: {comparison.counts})"
    if gate.significance is None:
        return None, f"The p-value of the difference is {value} {basis}."
    holds = comparison.p_value <= gate.significance
    relation = "at most" if holds else "above"
    return holds, (
        f"The difference is {'' if holds else 'not '}significant: its p-value, {value}, is {relation} "
        f"{gate.significance:g} {basis}."
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
