"""The gate's decisions and reasons."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.components.evaluate.gate import GateSettings, Opponent, Verdict, decide
from slipway.core.errors import UserError

NONE_YET = "There is no champion yet."


def verdict(value: float, champion: float | None = None, identical: bool = False, **gate: object) -> Verdict:
    settings = GateSettings(**gate)
    opponent = None
    if champion is not None:
        opponent = Opponent("version 3", {settings.metric: champion}, identical)
    return decide(settings, {settings.metric: value}, opponent, NONE_YET)


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
    assert (found.decision, found.reasons[0].startswith("The bleu on the test split, 9.")) == (decision, True)


@pytest.mark.parametrize(
    ("gate", "words", "fix"),
    [
        ({"metric": "loss", "minimum": 0.2}, "a minimum for loss, which is minimized", "maximum instead of minimum"),
        ({"maximum": 0.2}, "a maximum for accuracy, which is maximized", "minimum instead of maximum"),
        ({"metric": "rmsle"}, "whether a higher or a lower rmsle is better", "direction=minimize"),
    ],
)
def test_a_limit_of_the_wrong_direction_is_refused_by_name(gate: dict[str, Any], words: str, fix: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        GateSettings(**gate)
    assert fix in str(error.value.fix)


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


def test_figures_that_differ_are_shown_as_different() -> None:
    """A reason like "0.9700 is below the minimum of 0.9700" would explain nothing."""
    found = verdict(0.96998, minimum=0.97)
    assert "0.96998, is below the minimum of 0.97000" in found.reasons[0]
    assert "0.009998 than" in verdict(0.979998, 0.97, margin=0.01).reasons[0]


def test_the_champion_itself_is_rejected_whatever_the_margin() -> None:
    found = verdict(0.98, 0.98, identical=True, margin=-1.0)
    assert found.decision == "reject"
    assert found.reasons == ["This is the registered champion itself, version 3: it has the same weights."]


def test_other_classes_of_the_champion_are_said() -> None:
    champion = Opponent("version 3", {"accuracy": 0.5}, unknown=("tulip",), foreign=("rose", "daisy"))
    reasons = decide(GateSettings(), {"accuracy": 0.9}, champion, NONE_YET).reasons
    assert reasons[1].startswith("The champion does not have the class tulip:")
    assert reasons[2].startswith("The champion also has the classes rose, daisy,")
