"""The gate: decide whether a model is promoted, and say why; the settings of the gate and of the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import Field, PositiveInt

from slipway.core.values import JsonObject
from slipway.trainer.settings import Settings

Decision = Literal["promote", "reject"]

# Tolerance for floating-point error: 0.98 - 0.97 is not exactly 0.01.
ROUNDING = 1e-9
# Metadata key of the metrics and the registry: why a promoted model was not checked against anything.
UNCHECKED = "unchecked"
NAMES = {"accuracy": "accuracy", "macro_f1": "macro F1", "loss": "loss"}


class GateSettings(Settings):
    """When a model is promoted: `metric` reaches `minimum` and beats the champion's value by at least `margin`."""

    metric: Literal["accuracy", "macro_f1", "loss"] = Field(
        default="accuracy", description="Metric on the test split that decides; for loss, lower is better."
    )
    minimum: float | None = Field(
        default=None, description="Smallest value accepted (for loss, the largest); null: any value."
    )
    margin: float = Field(
        default=0.0,
        description="Smallest improvement over the champion; a negative value accepts a slightly worse model.",
    )


class EvaluateSettings(Settings):
    """How to evaluate the model on the test split."""

    batch_size: PositiveInt = Field(default=256, description="Examples per batch. Does not affect the metrics.")
    gate: GateSettings = Field(default=GateSettings(), description="When a model is promoted.")
    champion: Literal["registered", "none"] = Field(
        default="registered",
        description="Model to compare with: the registered champion, or none (only `gate.minimum` decides).",
    )
    worst_examples: int = Field(
        default=24,
        ge=0,
        le=200,
        description="Number of misclassified images in the report, most confident first.",
    )


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

    def as_dict(self) -> JsonObject:
        return asdict(self)


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
    shown, limit = _told_apart(value, minimum)
    if metric == "loss":
        holds = value <= minimum + ROUNDING
        relation = f"is {'within' if holds else 'above'} the maximum of {limit}"
    else:
        holds = value >= minimum - ROUNDING
        relation = f"{'meets' if holds else 'is below'} the minimum of {limit}"
    return holds, f"The {NAMES[metric]} on the test split, {shown}, {relation}."


def _against_champion(gate: GateSettings, value: float, champion: Opponent) -> tuple[bool, str]:
    theirs = champion.metrics[gate.metric]
    gain = theirs - value if gate.metric == "loss" else value - theirs
    beaten = gain >= gate.margin - ROUNDING
    ours_shown, theirs_shown = _told_apart(value, theirs)
    if abs(gain) <= ROUNDING:
        relation = "equals"
    else:  # with enough decimals to distinguish the difference from the margin
        difference = _told_apart(abs(gain), abs(gate.margin))[0]
        relation = f"is {'better' if gain > 0 else 'worse'} by {difference} than"
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
