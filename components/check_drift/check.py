"""Whether a new data set differs from that of the champion: both ones' held-out splits are compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipway.components.check_drift.drift import Shift, compare, lines, too_few
from slipway.components.check_drift.features import Sample, of_split, reference_in
from slipway.components.evaluate.served_model import OtherData, load
from slipway.core import events, manifest
from slipway.core.errors import UserError
from slipway.serving.model import NotServable

DRIFT, SAME = "drift", "same"
# Of both samples, how often data that have not drifted are said to have, and the seed that draws them.
EXAMPLES, FALSE_ALARMS, SEED = 5000, 0.01, 0


@dataclass(frozen=True)
class Answer:
    """The decision, `DRIFT` or `SAME`, and why; the shifts of both samples' features if they were compared."""

    decision: str
    reason: str
    shifts: tuple[Shift, ...] = ()
    samples: tuple[Sample, Sample] | None = None


def check(folder: Path, champion: Path | None) -> Answer:
    """Return whether a prepared data set has drifted from the one that the champion was evaluated on.

    It counts as drifted if there is nothing to compare it with: no champion, one for other data, one whose data set was
    deleted, or too few held-out examples.

    Args:
        folder: The data set, in a store with that of the champion.
        champion: The champion's folder; None if there is none yet.

    Raises:
        UserError: The champion cannot be loaded, or a data set has no example that it was not trained on.
    """
    if champion is None:
        return Answer(DRIFT, "there is no champion yet")
    now = manifest.read(folder)
    try:
        model = load(champion, now)
    except OtherData as reason:
        return Answer(DRIFT, f"the champion {reason}")
    except NotServable as reason:
        raise UserError(f"The champion in {champion} does not load: {reason}.", fix="--set when=always") from None
    if model.description.get("data_fingerprint") == now.fingerprint:
        return Answer(SAME, "the champion was trained on this data set")
    before = reference_in(folder.parent.parent, model)
    if before is None:
        return Answer(DRIFT, "the data set of the champion is no longer in the store")
    events.phase("comparing both data sets")
    samples = of_split(model, before, EXAMPLES, SEED), of_split(model, folder, EXAMPLES, SEED + 1)
    if few := too_few(*samples):
        return Answer(DRIFT, few)
    shifts = compare(*samples, false_alarms=FALSE_ALARMS, seed=SEED)
    *_, summary = lines(shifts, *samples, false_alarms=FALSE_ALARMS)
    decision = DRIFT if any(shift.has_drifted for shift in shifts) else SAME
    return Answer(decision, summary, tuple(shifts), samples)
