"""Messages: about a run that has ended, with what `slipway explain` says of a failure, and about data that drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from slipway.core.formatting import number
from slipway.core.values import JsonObject

# Chat services cut or refuse long messages; Google Chat's limit is 4,096 characters
# (https://developers.google.com/workspace/chat/create-messages).
LONGEST_ERROR = 2_000
SHOWN_METRICS, SHOWN_FEATURES = 3, 5
MARKS = {"succeeded": "✓", "failed": "✗"}


@dataclass(frozen=True)
class Notice:
    """The outcome of a run.

    Attributes:
        run: The run's id.
        name: The configuration's name.
        where: The platform, as displayed.
        hardware: The training hardware.
        status: succeeded, failed or cancelled.
        step: The step that failed.
        replica: The replica that failed, such as workerpool1-0.
        error: Why it failed.
        fix: What fixes it.
        metrics: The metrics of the test split.
        decision: The gate's verdict, such as promote.
        reasons: Why.
        report: The evaluation report's path or URI.
        model: The registered version.
        page: The URL of the run's page.
    """

    run: str
    name: str
    where: str
    hardware: str
    status: str
    step: str | None = None
    replica: str | None = None
    error: str | None = None
    fix: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    decision: str | None = None
    reasons: tuple[str, ...] = ()
    report: str | None = None
    model: str | None = None
    page: str | None = None

    def as_dict(self) -> JsonObject:
        """Return the notice as JSON-compatible values, with its text."""
        return {"text": self.text(), **asdict(self), "metrics": dict(self.metrics), "reasons": list(self.reasons)}

    @property
    def attributes(self) -> dict[str, str]:
        """Of its message in Pub/Sub, for filters of subscriptions."""
        return {"run": self.run, "status": self.status}

    def text(self) -> str:
        """Return the notice as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        failed = f" in the step {self.step}" if self.step else ""
        failed += f", replica {self.replica}" if self.replica else ""
        mark = MARKS.get(self.status, "–")
        yield f"{mark} {self.run} {self.status} on {self.where} ({self.hardware}){failed}"
        if self.error:
            yield self.error if len(self.error) <= LONGEST_ERROR else f"{self.error[:LONGEST_ERROR]}…"
        if self.fix:
            yield f"fix: {self.fix}"
        if self.metrics:
            first = list(self.metrics.items())[:SHOWN_METRICS]
            yield "test: " + ", ".join(f"{name} {number(value)}" for name, value in first)
        if self.decision:
            yield f"verdict: {self.decision}. {' '.join(self.reasons)}".rstrip()
        for label, value in (("model", self.model), ("report", self.report), ("page", self.page)):
            if value:
                yield f"{label}: {value}"


@dataclass(frozen=True)
class DriftNotice:
    """Data that have drifted from those that a model was evaluated on.

    Attributes:
        model: The model's version, or its folder.
        where: The machine on which they were compared.
        summary: How many of the features have drifted.
        features: A line about each of these, the clearest first.
    """

    model: str
    where: str
    summary: str
    features: tuple[str, ...]

    @property
    def attributes(self) -> dict[str, str]:
        """Of its message in Pub/Sub, for filters of subscriptions."""
        return {"model": self.model, "status": "drifted"}

    def as_dict(self) -> JsonObject:
        """Return the notice as JSON-compatible values, with its text."""
        return {"text": self.text(), **asdict(self), "status": "drifted", "features": list(self.features)}

    def text(self) -> str:
        """Return the notice as lines of text."""
        more = len(self.features) - SHOWN_FEATURES
        rest = [f"and {more} more"] if more > 0 else []
        return "\n".join([f"! {self.model} on {self.where}: {self.summary}", *self.features[:SHOWN_FEATURES], *rest])
