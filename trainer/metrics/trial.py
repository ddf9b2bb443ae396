"""The metric of a trial of Vertex AI, in the file format of Google's package cloudml-hypertune.

Source: https://github.com/GoogleCloudPlatform/cloudml-hypertune/blob/master/hypertune/hypertune.py
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

# The metric that decides, set by plan_training; the others are set by Vertex AI.
METRIC_VARIABLE = "SLIPWAY_TUNED_METRIC"
FILE_VARIABLE = "CLOUD_ML_HP_METRIC_FILE"
TRIAL_VARIABLE = "CLOUD_ML_TRIAL_ID"
DEFAULT_FILE = "/tmp/hypertune/output.metrics"
# The file has the last entries only; Vertex AI reads it while the trial is running.
MAX_ENTRIES = 100


class TrialMetric:
    """The metric's values by step in the file that Vertex AI reads, which is replaced with each value."""

    def __init__(self, metric: str, trial: str, file: Path) -> None:
        self.metric = metric
        self._trial, self._file = trial, file
        self._entries: deque[str] = deque(maxlen=MAX_ENTRIES)

    def report(self, value: float | None, step: int) -> None:
        """Add a value; None or one that is not finite is none."""
        if value is None or not math.isfinite(value):
            return
        entry = {
            "timestamp": time.time(),
            "trial": self._trial,
            self.metric: str(float(value)),
            "global_step": str(step),
        }
        self._entries.append(json.dumps(entry, sort_keys=True) + "\n")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(self._entries))


def trial_metric(environment: Mapping[str, str]) -> TrialMetric | None:
    """Return the metric to report; None if this process does not execute a trial of Vertex AI."""
    metric = environment.get(METRIC_VARIABLE)
    if not metric or not environment.keys() & {FILE_VARIABLE, TRIAL_VARIABLE}:
        return None
    file = Path(environment.get(FILE_VARIABLE) or DEFAULT_FILE)
    return TrialMetric(metric, environment.get(TRIAL_VARIABLE, "0"), file)
