"""The gate: decide whether a model is promoted, and say why."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from slipway.components.evaluate.ledger import level as level_of
from slipway.components.evaluate.settings import GateSettings, known, no_test
from slipway.core.errors import UserError, nearest
from slipway.core.formatting import decimals, number, told_apart
from slipway.core.values import JsonObject

# "unchanged": the weights are the champion's; "not comparable": the champion cannot be measured on this test split.
Decision = Literal["promote", "reject", "unchanged", "not comparable"]
# Whether a condition of the gate holds, None if nothing depends on it; and a sentence, "" for none.
Judged = tuple[bool | None, str]

# Tolerance for floating-point error: 0.98 - 0.97 is not exactly 0.01.
ROUNDING = 1e-9
# Of the tests of slices, and of a difference that is in color, if the gate has none.
SIGNIFICANCE = 0.05
# The level, two-sided, of all comparisons on a test split on which the champion was evaluated before.
AUTOMATIC = 0.1
# Metadata key of the metrics and the registry: why a promoted model was not checked against anything.
UNCHECKED = "unchecked"
# Metadata key of the metrics and the registry: the metrics' 95% confidence intervals, [low, high] by name.
INTERVALS = "intervals"


@dataclass(frozen=True)
class Comparison:
    """A paired test of the difference of a metric between a model and the champion on the same examples.

    `test` names it, `p_value` is two-sided, None if there are too few examples or predictions for a test. `counts` says
    on what it is based, or why there is none.
    """

    test: str
    p_value: float | None
    counts: str

    def is_significant(self, largest: float) -> bool:
        """Return whether the difference can be tested, and its p-value is at most `largest`."""
        return self.p_value is not None and self.p_value <= largest


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
class Level:
    """The level at which the difference from the champion is tested on a test split that is used more than once.

    `whole` is that of all comparisons together, `number` which of them this is, from 1; see `ledger`.
    """

    whole: float
    number: int

    @property
    def value(self) -> float:
        """The level of this comparison."""
        return level_of(self.whole, self.number)

    @property
    def sentence(self) -> str:
        """What is compared how often."""
        earlier = self.number - 1
        were = "no model was" if not earlier else "1 model was" if earlier == 1 else f"{earlier:,} models were"
        return (
            f"On this test split, {were} compared before. However many will be, one that is no better is promoted with "
            f"a probability of at most {self.whole / 2:g}: of this comparison, the p-value must be at most "
            f"{self.value:.2g}."
        )


@dataclass(frozen=True)
class Shortfall:
    """A paired, one-sided test of whether a model improves on the champion by less than a margin on a slice.

    `p_value` is None if there is no test, for a `reason`; `error` is the standard error of the difference.
    """

    p_value: float | None
    error: float
    reason: str = ""


@dataclass(frozen=True)
class SliceValues:
    """The gate's metric on a slice: the model's on all its examples, and both models' on those `compared`.

    These are the examples that neither model has seen; 0 without a champion. `shortfall` is the test of `slice_margin`.
    """

    name: str
    examples: int
    value: float
    ours: float | None = None
    theirs: float | None = None
    compared: int = 0
    shortfall: Shortfall | None = None


@dataclass(frozen=True)
class Verdict:
    """The gate's decision and the reasons for it, one sentence each, of which the first `failed` are why it rejects.

    `checked` is false if there was nothing to compare with: no limit is set, and no champion or baseline was there.
    """

    decision: Decision
    reasons: list[str]
    checked: bool = True
    failed: int = 0

    def as_dict(self) -> JsonObject:
        return asdict(self)

    def unless(self, fault: str | None) -> Verdict:
        """Return a rejection for the reason `fault`, or this verdict if it is None."""
        return self if fault is None else Verdict("reject", [fault, *self.reasons], failed=self.failed + 1)


def decide(
    gate: GateSettings,
    metrics: Mapping[str, float],
    champion: Opponent | None,
    without_champion: str,
    measured: str = "on the test split",
    baseline: Mapping[str, float] | None = None,
    slices: Sequence[SliceValues] = (),
    interval: tuple[float, float] | None = None,
    notes: Sequence[str] = (),
    seed_metrics: Sequence[float] = (),
    level: Level | None = None,
) -> Verdict:
    """Return the verdict on a model.

    Args:
        gate: The thresholds.
        metrics: The model's metrics.
        champion: The registered model to beat, measured in the same way, or None.
        without_champion: The sentence that says why there is no champion.
        measured: How the metrics were measured, after "The accuracy".
        baseline: The metrics of a constant prediction, if there are any.
        slices: The gate's metric on each slice, the worst first.
        interval: The 95% confidence interval of the gate's metric; None if it has none.
        notes: What the metrics hide, in sentences that decide nothing.
        seed_metrics: The gate's metric of the same training with other seeds.
        level: The level at which the difference from the champion is tested; None for the gate's.

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
        *_against_champion(gate, metrics, champion, without_champion, measured, seed_metrics, level),
        *_against_baseline(gate, metrics, trivial, interval),
        *_on_slices(gate, slices, champion),
        *((None, note) for note in notes),
    ]
    passed = [holds for holds, _ in judged if holds is not None]
    decision: Decision = "promote"
    if champion is not None and (champion.identical or champion.incomparable):
        decision = "unchanged" if champion.identical else "not comparable"
    if not all(passed):
        decision = "reject"
    reasons = [reason for holds, reason in sorted(judged, key=lambda judgment: judgment[0] is not False) if reason]
    return Verdict(decision, reasons, bool(passed) or decision != "promote", passed.count(False))


def _against_limit(
    gate: GateSettings, value: float, champion: Opponent | None, trivial: float | None, measured: str
) -> Iterator[Judged]:
    if gate.limit is not None:
        shown, limit_shown = told_apart(value, gate.limit, ROUNDING)
        if gate.minimized:
            holds = value <= gate.limit + ROUNDING
            relation = f"is {'within' if holds else 'above'} the maximum of {limit_shown}"
        else:
            holds = value >= gate.limit - ROUNDING
            relation = f"{'meets' if holds else 'is below'} the minimum of {limit_shown}"
        yield holds, f"The {gate.label} {measured}, {shown}, {relation}."
    elif champion is None:
        beating = f" better than the baseline's, {number(trivial)}," if gate.baseline and trivial is not None else ""
        setting = f"evaluate.gate.{gate.limit_name}"
        yield None, f"No {gate.limit_name} is set ({setting}): any {gate.label}{beating} passes."


def _against_champion(
    gate: GateSettings,
    metrics: Mapping[str, float],
    champion: Opponent | None,
    without: str,
    measured: str,
    seed_metrics: Sequence[float],
    level: Level | None,
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
        if champion.comparison is None or champion.comparison.p_value is None:
            level = None
        largest = gate.tested if level is None else level.value
        ours = metrics if champion.ours is None else champion.ours
        yield _comparison(gate, ours[gate.name], champion, is_tested=largest is not None)
        if champion.comparison is not None:
            yield _significance(gate, champion.comparison, largest)
        elif gate.tested is not None:
            raise no_test(f"the difference of the {gate.label} cannot be tested {measured}", gate.tested)
        if level is not None:
            yield None, level.sentence
        if champion.unknown:
            yield None, f"The champion does not have {_listed(champion.unknown)}: it is wrong on such examples."
        if champion.foreign:
            yield (
                None,
                f"The champion also has {_listed(champion.foreign)}, which this data set does not have: "
                "predicting one counts as wrong.",
            )
        yield None, champion.caveat
        if seed_metrics and champion.ours is None:
            yield _over_seeds(gate, [metrics[gate.name], *seed_metrics], champion)
        elif seed_metrics:
            yield None, "The mean over the seeds is not compared: the champion is measured on other examples than they."


def _against_baseline(
    gate: GateSettings, metrics: Mapping[str, float], trivial: float | None, interval: tuple[float, float] | None
) -> Iterator[Judged]:
    if trivial is None:
        return
    value = metrics[gate.name]
    better, reason = (trivial - value if gate.minimized else value - trivial) > ROUNDING, ""
    if not better:
        value_shown, trivial_shown = told_apart(value, trivial, ROUNDING)
        reason = (
            f"The {gate.label}, {value_shown}, is no better than the baseline's, {trivial_shown}: that of a constant "
            "prediction, learned from the targets of the training split alone."
        )
    elif interval and interval[0] <= trivial <= interval[1]:
        low, high = map(number, interval)
        few = f"{int(metrics['examples']):,} test examples" if "examples" in metrics else "So few test examples"
        reason = (
            f"{few} do not show that it is better than the baseline's, {number(trivial)}: the 95% interval of the "
            f"{gate.label} is {low} to {high}. More test examples show more or, of a source without splits, --folds 5."
        )
    yield (better if gate.baseline else None), reason


def _on_slices(gate: GateSettings, slices: Sequence[SliceValues], champion: Opponent | None) -> Iterator[Judged]:
    where = f"of at least {gate.slice_examples:,} examples"
    sign = -1 if gate.minimized else 1
    if (limit := gate.slice_limit) is not None:
        large = [part for part in slices if part.examples >= gate.slice_examples]
        failing = [part for part in large if sign * (part.value - limit) < -ROUNDING]
        relation = "above" if gate.minimized else "below"
        reason = _told(gate, failing, large, where, f"{relation} the limit of slices, {limit:g}")
        yield (not failing if large else None), reason or f"No slice is {where}: slice_limit decides nothing."
    if gate.slice_margin is not None and champion is not None and not champion.incomparable:
        yield _behind(gate, gate.slice_margin, [part for part in slices if part.compared >= gate.slice_examples])


def _told(
    gate: GateSettings, failing: Sequence[SliceValues], judged: Sequence[SliceValues], where: str, fault: str
) -> str:
    """Return the sentence on the slices that fail, of which the first is the worst, or on all; "" without any."""
    if not judged:
        return ""
    if not failing:
        return f"On none of the {len(judged):,} slices {where} is the {gate.label} {fault}."
    worst = failing[0]
    more = f"; so it is on {len(failing) - 1:,} more of the {len(judged):,} slices {where}" if len(failing) > 1 else ""
    value = number(worst.value)
    return f"On the slice {worst.name} ({worst.examples:,} examples), the {gate.label}, {value}, is {fault}{more}."


def _behind(gate: GateSettings, margin: float, slices: Sequence[SliceValues]) -> Judged:
    """Test that no slice improves on the champion by less than the margin: by chance, of many slices, some do."""
    from slipway.components.evaluate.measures.significance import detectable, holm  # imports scipy

    where = f"of at least {gate.slice_examples:,} examples that neither model has seen"
    tests = {part: part.shortfall for part in slices if part.shortfall and part.shortfall.p_value is not None}
    reasons = sorted({part.shortfall.reason for part in slices if part.shortfall and part.shortfall.reason})
    untested = f" {len(slices) - len(tests):,} cannot be tested: {'; '.join(reasons)}." if reasons else ""
    if not tests:
        testable = " and can be tested" if slices else ""
        return None, f"No slice is {where}{testable}: slice_margin decides nothing.{untested}"
    significance, p_values = gate.tested or SIGNIFICANCE, [test.p_value or 0.0 for test in tests.values()]
    rejected = holm(p_values, significance)
    worse = [(p, part) for p, part, fails in zip(p_values, tests, rejected, strict=True) if fails]
    method = f"one-sided paired tests, with a false alarm in {significance:.3g} of the evaluations of all slices"
    fault = f"more than {-margin:g} behind" if margin < 0 else f"not {margin:g} ahead of" if margin else "behind"
    if not worse:
        seen = [detectable(test.error, significance / len(tests)) - margin for test in tests.values()]
        ends = " to ".join(sorted({number(max(0.0, end)) for end in (min(seen), max(seen))}))
        return True, (
            f"On none of the {len(tests):,} slices {where} is the {gate.label} significantly {fault} the champion's "
            f"({method}). In 8 of 10 samples, they see a slice that is {ends} behind.{untested}"
        )
    p_value, worst = min(worse, key=lambda pair: pair[0])
    values = " against ".join(number(value) for value in (worst.ours, worst.theirs) if value is not None)
    more = f"; so it is on {len(worse) - 1:,} more of the {len(tests):,} slices {where}" if len(worse) > 1 else ""
    return False, (
        f"On the slice {worst.name} ({worst.compared:,} examples), the {gate.label}, {values}, is significantly "
        f"{fault} the champion's: its p-value is {_shown(p_value)}{more} ({method}).{untested}"
    )


def _comparison(gate: GateSettings, value: float, champion: Opponent, *, is_tested: bool) -> Judged:
    if gate.name not in champion.metrics:
        raise UserError(
            f"The champion, {champion.name}, has no metric {gate.name} to compare with.",
            setting="evaluate.gate.metric",
            value=gate.name,
            allowed=", ".join(champion.metrics) or "none: evaluate.module measures both models in the same way",
            nearest=nearest(gate.name, champion.metrics),
            fix="--set evaluate.champion=none, for this run",
        )
    champion_value = champion.metrics[gate.name]
    gain = champion_value - value if gate.minimized else value - champion_value
    beaten = gain >= gate.margin - ROUNDING
    ours_shown, theirs_shown = told_apart(value, champion_value, ROUNDING)
    relation = "equals"
    if abs(gain) > ROUNDING:  # with enough decimals to distinguish the difference from the margin
        size = told_apart(abs(gain), abs(gate.margin), ROUNDING, decimals(value, champion_value))[0]
        relation = f"is {'better' if gain > 0 else 'worse'} by {size} than"
    margin = "better" if is_tested else "at least as good"
    if gate.margin:
        margin = f"at least {gate.margin:g} better" if gate.margin > 0 else f"at most {-gate.margin:g} worse"
    judged = ""  # with a significance, a difference in the right direction is half of what the gate requires
    if not beaten or not is_tested:
        judged = f" This {'meets' if beaten else 'does not meet'} the gate: {margin}."
    return beaten, (
        f"The {gate.label}, {ours_shown}, {relation} the champion's ({champion.name}), {theirs_shown}.{judged}"
    )


def _significance(gate: GateSettings, comparison: Comparison, largest: float | None) -> Judged:
    if comparison.p_value is None:
        holds = None if largest is None else False
        return holds, f"The difference of the {gate.label} from the champion's cannot be tested: {comparison.counts}."
    value = _shown(comparison.p_value)
    basis = f"({comparison.test}: {comparison.counts})"
    if largest is None:
        return None, f"The p-value of the difference is {value} {basis}."
    holds = comparison.is_significant(largest)
    relation = "at most" if holds else "above"
    return holds, (
        f"The difference from the champion's {gate.label} is {'' if holds else 'not '}significant: its p-value, "
        f"{value}, is {relation} {largest:.2g} {basis}."
    )


def _over_seeds(gate: GateSettings, values: Sequence[float], champion: Opponent) -> Judged:
    """Compare the mean over trainings with several seeds with the champion's, which counts as one more training."""
    from slipway.components.evaluate.measures.significance import another_p_value  # imports scipy

    champion_value, mean = champion.metrics[gate.name], statistics.fmean(values)
    p_value = another_p_value(values, champion_value)
    better = (champion_value - mean if gate.minimized else mean - champion_value) > ROUNDING
    ours_shown, theirs_shown = told_apart(mean, champion_value, ROUNDING)
    comparison = (
        f"Over {len(values)} seeds, the {gate.label} is {ours_shown} on average, against the champion's "
        f"{theirs_shown}; the p-value of the difference is {_shown(p_value)} (t-test, with the champion as "
        "one more training)"
    )
    if gate.tested is None:
        return None, f"{comparison}."
    holds = better and p_value <= gate.tested
    return holds, f"{comparison}: it is {'' if holds else 'not '}significantly better."


def _shown(p_value: float) -> str:
    return "below 0.0001" if p_value < 1e-4 else f"{p_value:.4g}"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"the class{'es' if len(names) > 1 else ''} {shown}{more}"
