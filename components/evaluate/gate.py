"""The gate: decide whether a model is promoted, and say why; the settings of the gate and of the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from slipway.core.errors import UserError, nearest
from slipway.core.values import JsonObject
from slipway.trainer.config import BUILDER_PATTERN
from slipway.trainer.settings import Settings

Decision = Literal["promote", "reject"]

# Tolerance for floating-point error: 0.98 - 0.97 is not exactly 0.01.
ROUNDING = 1e-9
# Metadata key of the metrics and the registry: why a promoted model was not checked against anything.
UNCHECKED = "unchecked"
# Known metrics whose name is not its label, and those of which a lower value is better.
LABELS = {"macro_f1": "macro F1", "rmse": "RMSE", "mae": "MAE", "mse": "MSE", "r2": "R²"}
MINIMIZED = ("loss", "expected_calibration_error", "rmse", "mae", "mse")
MAXIMIZED = (
    "accuracy",
    "macro_f1",
    "macro_precision",
    "macro_recall",
    "top_5_accuracy",
    "macro_auc",
    "auc",
    "f1",
    "r2",
)
# The metrics of Slipway's evaluation that it always computes.
BUILT_IN = ("accuracy", "macro_f1", "macro_precision", "macro_recall", "loss", "expected_calibration_error")


class GateSettings(Settings):
    """When a model is promoted: `metric` reaches its limit and beats the champion's value by at least `margin`.

    The limit is `minimum` for a metric that is maximized, and `maximum` for one that is minimized.
    """

    metric: str = Field(
        default="accuracy",
        min_length=1,
        description=f"Metric that decides. Slipway's evaluation has {', '.join(BUILT_IN)}; `evaluate.module` and "
        "custom programs have their own.",
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

    @model_validator(mode="after")
    def _limit_of_direction(self) -> GateSettings:
        if self.direction is None and self.metric not in (*MINIMIZED, *MAXIMIZED):
            near = nearest(self.metric, (*MINIMIZED, *MAXIMIZED))
            raise UserError(
                f"The gate does not know whether a higher or a lower {self.metric} is better.",
                setting="evaluate.gate.metric",
                value=self.metric,
                allowed=f"{', '.join((*MAXIMIZED, *MINIMIZED))}; any other with evaluate.gate.direction",
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

    @property
    def minimized(self) -> bool:
        """Whether a lower value of the metric is better."""
        return self.metric in MINIMIZED if self.direction is None else self.direction == "minimize"

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
        return LABELS.get(self.metric, self.metric)


class EvaluateSettings(Settings):
    """How to evaluate the model on the test split."""

    module: str | None = Field(
        default=None,
        pattern=f"^{BUILDER_PATTERN}$",
        description="Function that evaluates instead of Slipway, as module:function. It receives a model's folder and "
        "the data, and returns its metrics; champion and challenger are measured by the same function. null: "
        "metrics.json in the model's folder if the program wrote it, else Slipway's evaluation of images.",
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
        description="Number of misclassified images in the report, most confident first.",
    )

    @model_validator(mode="after")
    def _of_module(self) -> EvaluateSettings:
        for name in ("batch_size", "worst_examples"):
            if self.module is not None and getattr(self, name) != EvaluateSettings.model_fields[name].default:
                raise UserError(
                    f"evaluate.{name} applies only to Slipway's evaluation; {self.module} evaluates here.",
                    setting=f"evaluate.{name}",
                    value=getattr(self, name),
                    allowed="evaluate.module, evaluate.gate and evaluate.champion only",
                    fix=f"remove evaluate.{name}",
                )
        return self


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

    `checked` is false if there was nothing to compare with: no limit is set and there was no champion.
    """

    decision: Decision
    reasons: list[str]
    checked: bool = True

    def as_dict(self) -> JsonObject:
        return asdict(self)


def decide(
    gate: GateSettings,
    metrics: Mapping[str, float],
    champion: Opponent | None,
    without_champion: str,
    measured: str = "on the test split",
) -> Verdict:
    """Return the verdict on a model.

    Args:
        gate: The thresholds.
        metrics: The model's metrics.
        champion: The registered model to beat, measured in the same way, or None.
        without_champion: The sentence that says why there is no champion.
        measured: How the metrics were measured, after "The accuracy".

    Raises:
        UserError: The model or the champion does not have the gate's metric.
    """
    if gate.metric not in metrics:
        raise UserError.unknown("metric", gate.metric, metrics, setting="evaluate.gate.metric")
    passed, reasons = [], []
    if gate.limit is not None:
        holds, reason = _against_limit(gate, metrics[gate.metric], gate.limit, measured)
        passed.append(holds)
        reasons.append(reason)
    elif champion is None:
        reasons.append(f"No {gate.limit_name} is set (evaluate.gate.{gate.limit_name}): any {gate.label} passes.")
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
    if gate.metric not in champion.metrics:
        raise UserError(
            f"The champion, {champion.name}, has no metric {gate.metric} to compare with.",
            setting="evaluate.gate.metric",
            value=gate.metric,
            allowed=", ".join(champion.metrics) or "none: evaluate.module measures both models in the same way",
            nearest=nearest(gate.metric, champion.metrics),
            fix="--set evaluate.champion=none, for this run",
        )
    theirs = champion.metrics[gate.metric]
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
