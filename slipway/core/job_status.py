"""The progress of a training in the status of its TrainJob, where Kubeflow Trainer (2.2 and later) accepts it.

Its plugin for that sets three variables in the pods. A report is a POST with `trainerStatus`: progressPercentage and
estimatedRemainingSeconds are integers, the metrics' values texts. Source: KEP-2779 and its end-to-end test:
https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress. A training does not depend on it.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

URL_VARIABLE = "KUBEFLOW_TRAINER_STATUS_URL"
AUTHORITY_VARIABLE = "KUBEFLOW_TRAINER_STATUS_CA_CERT"
TOKEN_VARIABLE = "KUBEFLOW_TRAINER_STATUS_TOKEN"
# Between two reports, and until one is given up.
SECONDS, TIMEOUT_SECONDS = 5.0, 5.0
# The entry of a report's values from which the remaining time follows.
RATE = "steps_per_second"

logger = logging.getLogger(__name__)


class Reporter:
    """Sends the newest status from a thread, and the last one when this process ends."""

    def __init__(self) -> None:
        self._waiting: dict[str, object] | None = None
        self._lock, self._is_failing = threading.Lock(), False
        threading.Thread(target=self._follow, name="job status", daemon=True).start()
        atexit.register(self.send)

    def report(self, done: int, total: int, values: Mapping[str, float]) -> None:
        """Replace what is sent next."""
        status: dict[str, object] = {
            "progressPercentage": min(100, 100 * done // total),
            "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in values.items()],
            "lastUpdatedTime": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if rate := values.get(RATE):
            status["estimatedRemainingSeconds"] = min(2**31 - 1, round((total - done) / rate))  # int32
        self._waiting = status

    def send(self) -> None:
        """Send what is waiting; warn once if that fails."""
        with self._lock:
            status, self._waiting = self._waiting, None
            if status is None:
                return
            try:
                _post({"trainerStatus": status})
            except Exception as error:  # a training does not depend on it
                if not self._is_failing:
                    is_bug = not isinstance(error, OSError | KeyError)  # as urllib's errors are; a variable is missing
                    logger.warning("the TrainJob's status has no progress: %s", error, exc_info=is_bug)
                self._is_failing = True

    def _follow(self) -> None:
        while True:
            self.send()
            time.sleep(SECONDS)


def _post(content: Mapping[str, object]) -> None:
    token = Path(os.environ[TOKEN_VARIABLE]).read_text().strip()  # it is renewed while the pod is running
    request = urllib.request.Request(
        os.environ[URL_VARIABLE],
        json.dumps(content).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=os.environ.get(AUTHORITY_VARIABLE))
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)  # it is in the cluster
    with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_SECONDS):
        pass
