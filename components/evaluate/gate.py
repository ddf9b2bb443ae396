"""The gate: decide whether a model is promoted, and say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slipway.components.evaluate.settings import GateSettings

Decision = Literal["promote", "reject"]

# Tolerance for floating-point error: 0.98 - 0.97 is not exactly 0.01.
ROUNDING = 1e-9
# Metadata key of the metrics and the registry: why a promoted model was not checked against anything.
UNCHECKED = "unchecked"
NAMES = {"accuracy": "accuracy", "macro_f1": "macro F1", "loss": "loss"}


@dataclass(frozen=True)
class Opponent:
    """The champion that a model is compared with.

    `name` identifies it ("version 3"). `identical` is true if it has the same weights as the evaluated model. `unknown`
    are the data set's classes that it does not have, `foreign` its classes that the data set does not have.
    """

    name: str
    metrics: Mapping[str, float]
    identical: bool = False
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The gate's decision and the reasons for it, one sentence each.

    `checked` is false if there was nothing to compare with: no minimum is set and there was no champion.
    """

    decision: Decision
    reasons: list[str]
    checked: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {"decision": self.decision, "reasons": self.reasons, "checked": self.checked}


def decide(
    gate: GateSettings, metrics: Mapping[str, float], champion: Opponent | None, without_champion: str
) -> Verdict:
    """Return the verdict on a model.

    Args:
        gate: The thresholds.
        metrics: The model's metrics on the test split.
        champion: The registered model to beat, measured on the same split, or None.
        without_champion: The sentence that says why there is no champion.
    """
    passed, reasons = [], []
    if gate.minimum is not None:
        holds, reason = _against_minimum(gate.metric, metrics[gate.metric], gate.minimum)
        passed.append(holds)
        reasons.append(reason)
    elif champion is None:
        reasons.append(f"No minimum is set (evaluate.gate.minimum): any {NAMES[gate.metric]} passes.")
    if champion is None:
        reasons.append(without_champion)
    elif champion.identical:
        passed.append(False)
        reasons.append(f"This is the registered champion itself, {champion.name}: it has the same weights.")
    else:
        beaten, reason = _against_champion(gate, metrics[gate.metric], champion)
        passed.append(beaten)
        reasons += [reason, *_other_classes(champion)]
    return Verdict("promote" if all(passed) else "reject", reasons, checked=bool(passed))


def _against_minimum(metric: str, value: float, minimum: float) -> tuple[bool, str]:
    lower_is_better = metric == "loss"
    holds = value <= minimum + ROUNDING if lower_is_better else value >= minimum - ROUNDING
    shown, limit = _told_apart(value, minimum)
    if lower_is_better:
        relation = f"is within the maximum of {limit}" if holds else f"is above the maximum of {limit}"
    else:
        relation = f"meets the minimum of {limit}" if holds else f"is below the minimum of {limit}"
    return holds, f"The {NAMES[metric]} on the test split, {shown}, {relation}."


def _against_champion(gate: GateSettings, value: float, champion: Opponent) -> tuple[bool, str]:
    theirs = champion.metrics[gate.metric]
    gain = theirs - value if gate.metric == "loss" else value - theirs
    beaten = gain >= gate.margin - ROUNDING
    ours_shown, theirs_shown = _told_apart(value, theirs)
    if abs(gain) <= ROUNDING:
        relation = "equals"
    else:
        relation = f"is {'better' if gain > 0 else 'worse'} by {_difference(gain, gate.margin)} than"
    return beaten, (
        f"The {NAMES[gate.metric]}, {ours_shown}, {relation} the champion's ({champion.name}), {theirs_shown}. "
        f"This {'meets' if beaten else 'does not meet'} the gate: {_margin(gate.margin)}."
    )


def _margin(margin: float) -> str:
    if margin > 0:
        return f"at least {margin:g} better"
    if margin < 0:
        return f"at most {-margin:g} worse"
    return "at least as good"


def _difference(gain: float, margin: float) -> str:
    """Format the size of a gain with enough decimals to distinguish it from the margin."""
    return _told_apart(abs(gain), abs(margin))[0]


def _other_classes(champion: Opponent) -> list[str]:
    reasons = []
    if champion.unknown:
        reasons.append(
            f"The champion does not have {_listed(champion.unknown)}: its predictions on such images count as wrong."
        )
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
