"""The gate's decisions and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
from pydantic import ValidationError

from slipway.components.evaluate.gate import Comparison, Opponent, Verdict, decide
from slipway.components.evaluate.measures.significance import another_p_value
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.core.errors import UserError
from slipway.trainer.tasks import TASKS

NONE_YET = "There is no champion yet."


def verdict(value: float, champion: float | None = None, identical: bool = False, **gate: object) -> Verdict:
    settings = GateSettings(**gate)
    opponent = None
    if champion is not None:
        opponent = Opponent("version 3", {settings.name: champion}, identical)
    return decide(settings, {settings.name: value}, opponent, NONE_YET)


def test_a_test_split_that_cannot_tell_a_model_from_the_baseline_is_named() -> None:
    settings, metrics = GateSettings(), {"accuracy": 0.46, "examples": 39}
    found = decide(settings, metrics, None, NONE_YET, baseline={"accuracy": 0.41}, interval=(0.3, 0.63))
    assert found.decision == "promote"
    assert any(
        "39 test examples do not show that it is better than the baseline's, 0.4100" in reason and "--folds 5" in reason
        for reason in found.reasons
    )
    sure = decide(settings, metrics, None, NONE_YET, baseline={"accuracy": 0.2}, interval=(0.3, 0.63))
    assert not any("do not show" in reason for reason in sure.reasons)


def test_without_champion_and_minimum_the_model_is_promoted_unchecked() -> None:
    no_minimum = "No minimum is set (evaluate.gate.minimum): any accuracy passes."
    assert verdict(0.1) == Verdict("promote", [no_minimum, NONE_YET], checked=False)
    assert verdict(0.1, minimum=0.0).checked
    assert verdict(0.1, champion=0.1).checked


@pytest.mark.parametrize(("value", "decision"), [(0.97, "promote"), (0.9700001, "promote"), (0.96999, "reject")])
def test_the_minimum_is_inclusive(value: float, decision: str) -> None:
    found = verdict(value, minimum=0.97)
    assert found.decision == decision
    assert ("meets the minimum" in found.reasons[0]) == (decision == "promote")
    assert found.reasons[1] == NONE_YET


@pytest.mark.parametrize(("value", "decision"), [(0.2, "promote"), (0.1999, "promote"), (0.2001, "reject")])
def test_a_loss_has_to_be_at_most_the_maximum(value: float, decision: str) -> None:
    assert verdict(value, metric="loss", maximum=0.2).decision == decision


@pytest.mark.parametrize(("value", "decision"), [(9.5, "promote"), (9.4, "reject")])
def test_the_direction_of_any_metric_can_be_set(value: float, decision: str) -> None:
    found = verdict(value, 9.5, metric="bleu", direction="maximize", minimum=9)
    assert found.decision == decision
    first = (
        "The bleu on the test split, 9.5000, meets" if decision == "promote" else "The bleu, 9.4000, is worse by 0.1"
    )
    assert found.reasons[0].startswith(first)
    assert found.failed == (decision == "reject")


@pytest.mark.parametrize(
    ("gate", "words", "fix"),
    [
        ({"metric": "loss", "minimum": 0.2}, "a minimum for loss, which is minimized", "maximum instead of minimum"),
        (
            {"metric": "accuracy", "maximum": 0.2},
            "a maximum for accuracy, which is maximized",
            "minimum instead of maximum",
        ),
        ({"metric": "rmsle"}, "whether a higher or a lower rmsle is better", "direction=minimize"),
    ],
)
def test_a_limit_of_the_wrong_direction_is_refused_by_name(gate: dict[str, Any], words: str, fix: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        GateSettings(**gate)
    assert fix in str(error.value.fix)


@pytest.mark.parametrize(
    ("gate", "allowed", "fix"),
    [
        ({"metric": "accuracy", "minimum": 95}, "0 to 1", "--set evaluate.gate.minimum=0.95;"),
        ({"metric": "macro_auc", "minimum": -0.1}, "0 to 1", "--set evaluate.gate.minimum=null;"),
        ({"metric": "loss", "maximum": -1}, "at least 0", "--set evaluate.gate.maximum=null;"),
        ({"metric": "r2", "minimum": 1.5}, "at most 1", "--set evaluate.gate.minimum=null;"),
        ({"metric": "accuracy", "margin": 95}, "-1 to 1", "--set evaluate.gate.margin=0.95;"),
        ({"metric": "macro_f1", "margin": -1.5}, "-1 to 1", "--set evaluate.gate.margin=-0.015;"),
    ],
)
def test_a_limit_or_margin_outside_of_its_range_is_refused(gate: dict[str, Any], allowed: str, fix: str) -> None:
    with pytest.raises(UserError) as error:
        GateSettings(**gate)
    assert error.value.allowed == allowed
    assert str(error.value.fix).startswith(fix)
    GateSettings(direction="minimize" if "maximum" in gate else "maximize", **gate)  # a program's own scale
    for name in ("minimum", "margin"):
        with pytest.raises(UserError, match=f"The gate's {name} is 95, and the accuracy is 0 to 1"):
            GateSettings(**{name: 95}).of("classification")


def test_a_missing_metric_is_told_with_the_nearest_of_model_and_champion() -> None:
    gate = GateSettings(metric="rmse")
    with pytest.raises(UserError) as error:
        decide(gate, {"rsme": 0.4, "mae": 0.2}, None, NONE_YET)
    assert (error.value.setting, error.value.nearest) == ("evaluate.gate.metric", "rsme")
    with pytest.raises(UserError, match="The champion, version 1, has no metric rmse") as error:
        decide(gate, {"rmse": 0.4}, Opponent("version 1", {"accuracy": 0.9}), NONE_YET)
    assert "evaluate.champion=none" in str(error.value.fix)


@pytest.mark.parametrize(
    ("metric", "value", "champion", "margin", "decision"),
    [
        ("accuracy", 0.98, 0.98, 0.0, "promote"),
        ("accuracy", 0.98, 0.97, 0.01, "promote"),  # in floating point the difference is a little less than 0.01
        ("accuracy", 0.979, 0.97, 0.01, "reject"),
        ("accuracy", 0.96, 0.97, 0.0, "reject"),
        ("accuracy", 0.965, 0.97, -0.01, "promote"),
        ("macro_f1", 0.98, 0.97, 0.02, "reject"),
        ("loss", 0.10, 0.12, 0.01, "promote"),
        ("loss", 0.12, 0.10, 0.0, "reject"),
        ("loss", 0.105, 0.10, -0.01, "promote"),
    ],
)
def test_the_champion_is_beaten_by_the_margin(
    metric: str, value: float, champion: float, margin: float, decision: str
) -> None:
    found = verdict(value, champion, metric=metric, margin=margin)
    assert found.decision == decision
    assert "(version 3)" in found.reasons[0]


def test_every_reason_that_fails_is_given() -> None:
    found = verdict(0.9, 0.95, minimum=0.97)
    assert found.decision == "reject"
    assert found.reasons == [
        "The accuracy on the test split, 0.9000, is below the minimum of 0.9700.",
        "The accuracy, 0.9000, is worse by 0.0500 than the champion's (version 3), 0.9500. "
        "This does not meet the gate: at least as good.",
    ]


def test_metrics_that_differ_are_shown_as_different() -> None:
    """A reason like "0.9700 is below the minimum of 0.9700" would explain nothing."""
    found = verdict(0.96998, minimum=0.97)
    assert "0.96998, is below the minimum of 0.97000" in found.reasons[0]
    assert "0.009998 than" in verdict(0.979998, 0.97, margin=0.01).reasons[0]


def test_the_champion_itself_is_unchanged_whatever_the_margin() -> None:
    found = verdict(0.98, 0.98, identical=True, margin=-1.0)
    words = "The model has the same weights as the champion, version 3: there is nothing to promote."
    assert found == Verdict("unchanged", [words], checked=True)
    assert verdict(0.98, 0.98, identical=True, significance=0.05).decision == "unchanged"


def test_a_champion_that_no_longer_meets_the_limit_is_rejected_not_unchanged() -> None:
    assert verdict(0.98, 0.98, identical=True, minimum=0.97).decision == "unchanged"
    assert verdict(0.98, 0.98, identical=True, minimum=0.99).decision == "reject"


def test_a_champion_for_other_data_is_not_comparable_unless_the_limit_decides() -> None:
    champion = Opponent("version 3", {}, incomparable="has other classes")
    found = decide(GateSettings(significance=0.05), {"accuracy": 0.9}, champion, NONE_YET)
    assert (found.decision, found.checked) == ("not comparable", True)
    assert found.reasons == [
        "The champion, version 3, has other classes: the models are not comparable, and the champion stays. To "
        "register this model apart from it: --set register.model=NAME; to replace it: --set evaluate.champion=none."
    ]
    assert decide(GateSettings(minimum=0.95), {"accuracy": 0.9}, champion, NONE_YET).decision == "reject"


def test_other_classes_of_the_champion_are_said() -> None:
    champion = Opponent("version 3", {"accuracy": 0.5}, unknown=("tulip",), foreign=("rose", "daisy"))
    reasons = decide(GateSettings(), {"accuracy": 0.9}, champion, NONE_YET).reasons
    assert reasons[1].startswith("The champion does not have the class tulip:")
    assert reasons[2].startswith("The champion also has the classes rose, daisy,")


def compared(p_value: float, value: float = 0.98, seeds: Sequence[float] = (), **gate: object) -> Verdict:
    comparison = Comparison("McNemar's exact test", p_value, "only this model is right on 9 of 400 examples")
    champion = Opponent("version 3", {"accuracy": 0.97}, comparison=comparison)
    return decide(GateSettings(**gate), {"accuracy": value}, champion, NONE_YET, seed_metrics=seeds)


@pytest.mark.parametrize(("p_value", "decision"), [(0.0498, "promote"), (0.05, "promote"), (0.0502, "reject")])
def test_with_a_significance_only_a_significantly_better_model_is_promoted(p_value: float, decision: str) -> None:
    found = compared(p_value, significance=0.05)
    assert found.decision == decision
    negation = "" if decision == "promote" else "not "
    relation = "at most" if decision == "promote" else "above"
    assert "This meets the gate" not in " ".join(found.reasons)
    assert found.reasons[1 - found.failed] == (
        f"The difference from the champion's accuracy is {negation}significant: "
        f"its p-value, {p_value:g}, is {relation} 0.05 "
        "(McNemar's exact test: only this model is right on 9 of 400 examples)."
    )


def test_a_significantly_worse_model_is_rejected() -> None:
    assert compared(0.001, value=0.9, significance=0.05).decision == "reject"


def test_a_difference_that_cannot_be_tested_is_not_significant() -> None:
    champion = Opponent("version 3", {"accuracy": 0.9}, comparison=Comparison("t", None, "there is no prediction of b"))
    words = "The difference of the accuracy from the champion's cannot be tested: there is no prediction of b."
    for gate, decision in ((GateSettings(significance=0.5), "reject"), (GateSettings(), "promote")):
        found = decide(gate, {"accuracy": 0.98}, champion, NONE_YET)
        assert (found.decision, words in found.reasons) == (decision, True)


def test_without_a_significance_the_p_value_is_only_reported() -> None:
    found = compared(0.6)
    assert found.decision == "promote"
    assert found.reasons[1].startswith("The p-value of the difference is 0.6 (McNemar's exact test: ")


@pytest.mark.parametrize(
    ("seeds", "decision"),
    [
        ((0.979, 0.982, 0.981), "promote"),
        ((0.971, 0.965, 0.96), "reject"),
        # Significant if the champion were exact: one more training of this spread is often as far away.
        ((0.976, 0.984, 0.974), "reject"),
    ],
)
def test_the_mean_over_seeds_is_significantly_better_too(seeds: tuple[float, ...], decision: str) -> None:
    """Else, one seed of many is promoted by luck."""
    verdict = compared(0.001, seeds=seeds, significance=0.05)
    values = np.array([0.98, *seeds])
    low, _ = scipy.stats.t.interval(0.95, 3, values.mean(), values.std(ddof=1) * np.sqrt(1 / 4 + 1))
    assert (low > 0.97) == (decision == "promote"), "0.97 is outside of the prediction interval of one more training"
    expected = 2 * scipy.stats.t.sf(abs(values.mean() - 0.97) / (values.std(ddof=1) * np.sqrt(1.25)), 3)
    told = next(reason for reason in verdict.reasons if reason.startswith("Over 4 seeds, the accuracy is 0.9"))
    negation = "" if decision == "promote" else "not "
    assert (verdict.decision, verdict.failed) == (decision, int(decision == "reject"))
    assert told.endswith(
        f"difference is {expected:.4g} (t-test, with the champion as one more training): "
        f"it is {negation}significantly better."
    )
    assert compared(0.001, seeds=seeds).decision == "promote", "without a significance it is only reported"


def test_equal_trainings_are_rarely_better_over_seeds() -> None:
    """In 8 to 25% of samples, when the champion counted as exact."""
    generator, better = np.random.default_rng(0), {2: 0, 5: 0}
    for count in better:
        for _ in range(1000):
            champion, *values = generator.normal(0.9, 0.01, count + 1)
            better[count] += another_p_value(values, champion) <= 0.05 and np.mean(values) > champion
    assert all(15 <= number <= 40 for number in better.values())


def test_a_mean_over_seeds_that_is_significantly_worse_is_rejected() -> None:
    found = compared(0.001, seeds=[0.9, 0.901], significance=0.5, metric="accuracy")
    assert found.decision == "reject"


def test_seeds_are_not_compared_on_other_examples_than_the_champion() -> None:
    champion = Opponent("version 3", {"accuracy": 0.97}, ours={"accuracy": 0.98})
    verdict = decide(GateSettings(), {"accuracy": 0.98}, champion, NONE_YET, seed_metrics=[0.9, 0.91])
    assert verdict.decision == "promote"
    assert "The mean over the seeds is not compared: the champion is measured on other examples" in verdict.reasons[-1]


def test_a_significance_needs_predictions_and_a_margin_for_better_models() -> None:
    with pytest.raises(UserError, match="needs the predictions of both models") as caught:
        decide(GateSettings(significance=0.05), {"accuracy": 0.9}, Opponent("version 3", {"accuracy": 0.8}), NONE_YET)
    assert "--set evaluate.gate.significance=null" in caught.value.fix
    with pytest.raises(UserError, match="my_eval:evaluate returns metrics"):
        EvaluateSettings(module="my_eval:evaluate", gate={"significance": 0.05})
    with pytest.raises(UserError, match="its margin accepts worse ones"):
        GateSettings(significance=0.05, margin=-0.01)
    for value in (0.0, 0.0005, 0.6):  # no p-value of the bootstrap is as small
        with pytest.raises(ValidationError):
            GateSettings(significance=value)


@pytest.mark.parametrize(
    ("metric", "value", "baseline", "beaten"),
    [
        ("accuracy", 0.9425, 0.944, False),
        ("accuracy", 0.944, 0.944, False),
        ("accuracy", 0.9441, 0.944, True),
        ("rmse", 12.0, 11.9, False),
        ("rmse", 11.8, 11.9, True),
    ],
)
def test_a_model_no_better_than_a_constant_prediction_is_rejected(
    metric: str, value: float, baseline: float, beaten: bool
) -> None:
    sentence = "is no better than the baseline's"
    found = decide(GateSettings(metric=metric), {metric: value}, None, NONE_YET, baseline={metric: baseline})
    assert (found.decision, sentence in found.reasons[0]) == ("promote" if beaten else "reject", not beaten)
    assert (found.checked, found.failed) == (True, int(not beaten))
    shown = (
        "RMSE better than the baseline's, 11.900" if metric == "rmse" else "accuracy better than the baseline's, 0.9440"
    )
    assert f": any {shown}, passes." in found.reasons[found.failed]
    only_said = GateSettings(metric=metric, baseline=False)
    found = decide(only_said, {metric: value}, None, NONE_YET, baseline={metric: baseline})
    assert (found.decision, sentence in found.reasons[-1], found.checked) == ("promote", not beaten, False)


def test_the_default_metric_is_the_tasks_first_one() -> None:
    assert [GateSettings().of(task).metric for task in TASKS] == ["accuracy", "macro_f1", "rmse"]
    assert GateSettings(metric="r2").of("regression").metric == "r2"
    assert GateSettings(maximum=60).of("regression").limit == 60
    with pytest.raises(UserError, match="The gate has a minimum for rmse, which is minimized"):
        GateSettings(minimum=0.9).of("regression")
