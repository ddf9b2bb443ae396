"""Requests that check a model behind an endpoint, and what their answers say.

Why requests of our own, and not Vertex AI's metrics: those arrive in Cloud Monitoring minutes late, count the requests
that a model has got, which may be none, and do not know whether an answer is right. These requests take the way that
the users' requests take, and the test examples that are stored with the model say what the answer has to be.

An endpoint decides itself which deployed model answers, and names it in its answer. A failed request has no answer, so
all failures count against the new model.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.prediction import predict
from slipway.components.cloud.refusals import is_answer
from slipway.components.cloud.retries import existing
from slipway.components.deploy.settings import CheckSettings, Deployment
from slipway.core.errors import UserError

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Endpoint

# Fields of a prediction that hold the model's numbers, by task; see slipway.serving.instances.
NUMBERS = ("probabilities", "prediction")
# For an endpoint without a time-out of its own; Vertex AI's is 60 s on shared endpoints.
LONGEST_SECONDS = 60.0
# Of each percentile, the fraction of answers that may be slower.
SLOWER = {"p50": 0.5, "p99": 0.01}
# The limit of a request to a shared endpoint is 1.5 MB.
MAX_BYTES = 1_400_000


@dataclass(frozen=True)
class Example:
    """An instance to send, and the numbers to expect; None if they are not known."""

    instance: object
    expected: Sequence[float] | None = None


def examples(connection: Connection, uri: str, deployment: Deployment) -> list[Example]:
    """Return the examples of `check.requests`, or those that are stored with the model at `uri`.

    Raises:
        UserError: There are none.
    """
    if deployment.instances is not None:
        return [Example(instance) for instance in deployment.instances]
    from slipway.trainer.export.examples import FILE_NAME  # imports NumPy

    bucket, _, folder = uri.removeprefix("gs://").partition("/")
    blob = connection.storage.bucket(bucket).blob(f"{folder.rstrip('/')}/{FILE_NAME}")
    stored = json.loads(existing(blob.download_as_bytes) or b"{}")
    pairs = zip(stored.get("instances", ()), stored.get("values", ()), strict=False)
    known = [Example(instance, _numbers(values)) for instance, values in pairs]
    known = [example for example in known if len(json.dumps(example.instance)) <= MAX_BYTES]
    if not known:
        raise UserError(
            f"The model in {uri} has no test examples with which to check it.",
            setting="check.requests",
            value=None,
            allowed='a JSON file of the form {"instances": […]}',
            fix=f"check: {{requests: FILE}} in configs/endpoints/{deployment.name}.yaml",
        )
    return known


@dataclass(frozen=True)
class Answer:
    """The outcome of one request: which deployed model answered, after how long, and its predictions or an error."""

    seconds: float
    deployed: str = ""
    prediction: object = None
    error: str = ""


class Prober:
    """Sends the examples to an endpoint in turn."""

    def __init__(
        self, connection: Connection, endpoint: Endpoint, test_examples: Sequence[Example], seconds: float
    ) -> None:
        dns = str(endpoint.dedicated_endpoint_dns) if endpoint.dedicated_endpoint_enabled else ""
        self._client = connection.predictions(dns.removeprefix("https://"))
        self._endpoint = endpoint.name
        self._examples = test_examples
        self._seconds = seconds
        self._sent = 0

    def send(self) -> tuple[Example, Answer]:
        """Send the next example; return it and the answer."""
        example = self._examples[self._sent % len(self._examples)]
        self._sent += 1
        started = time.monotonic()
        try:
            deployed, predictions = predict(self._client, self._endpoint, [example.instance], self._seconds)
        except Exception as error:
            if not is_answer(error):
                raise
            # Any failure is one for the users as well.
            text = getattr(error, "message", None) or str(error)
            return example, Answer(time.monotonic() - started, error=" ".join(str(text).split()))
        return example, Answer(time.monotonic() - started, deployed, next(iter(predictions), None))


@dataclass
class Tally:
    """What the requests of one step have shown about the deployed model `candidate`."""

    candidate: str
    check: CheckSettings
    seconds: list[float] = field(default_factory=list)
    failures: int = 0
    others: int = 0
    error: str = ""
    wrong: str = ""

    def add(self, example: Example, answer: Answer) -> None:
        """Count an answer."""
        if answer.error:
            self.failures += 1
            self.error = answer.error
        elif answer.deployed == self.candidate:
            self.seconds.append(answer.seconds)
            self.wrong = self.wrong or _difference(example, answer.prediction, self.check.tolerance)
        else:
            self.others += 1

    @property
    def requests(self) -> int:
        """Number of requests that count for the candidate."""
        return len(self.seconds) + self.failures

    @property
    def enough(self) -> bool:
        """Whether the candidate has answered often enough to decide."""
        return self.requests >= self.check.answers

    def fault(self) -> str:
        """Return the sentence that says what does not hold; "" if everything holds so far."""
        if self.wrong:
            return self.wrong
        # One failed or slow request alone decides nothing, unless none is tolerated.
        if self.failures > max(1 if self.check.errors else 0, self.check.errors * self.requests) and self.enough:
            return (
                f"{self.failures} of {self.requests:,} requests failed, more than {self.check.errors:.3g} of them: "
                f"{self.error.rstrip('.')}."
            )
        for name, limit in (("p50", self.check.p50_ms), ("p99", self.check.p99_ms)):
            slow = 0 if limit is None else sum(1000 * seconds > limit for seconds in self.seconds)
            if self.enough and slow > max(1, SLOWER[name] * len(self.seconds)):
                return (
                    f"The {name} latency of {len(self.seconds):,} answers is {self.percentile(name):,.0f} ms, more "
                    f"than {limit:,.0f} ms."
                )
        return ""

    def percentile(self, name: str) -> float:
        """Return p50 or p99 of the latency in milliseconds; NaN without answers."""
        if not self.seconds:
            return float("nan")
        ordered = sorted(self.seconds)
        if name == "p50":
            return 1000 * statistics.median(ordered)
        return 1000 * ordered[min(len(ordered) - 1, int((1 - SLOWER[name]) * len(ordered)))]

    def __str__(self) -> str:
        """Counts and latencies, for the log."""
        if not self.seconds:
            return f"{self.requests} requests, {self.failures} failed"
        return (
            f"{self.requests:,} requests, {self.failures} failed, p50 {self.percentile('p50'):.0f} ms, "
            f"p99 {self.percentile('p99'):.0f} ms"
        )


def _difference(example: Example, prediction: object, tolerance: float) -> str:
    """Return the sentence that says how a prediction differs from the expected one; "" if it does not."""
    if example.expected is None:
        return ""
    fields = prediction if isinstance(prediction, Mapping) else {}
    try:
        numbers = next((_numbers(fields[name]) for name in NUMBERS if name in fields), ())
    except (TypeError, ValueError):  # {"prediction": "cat"}
        numbers = ()
    if len(numbers) != len(example.expected):
        return f"An answer has none of {' and '.join(NUMBERS)}, or another number of values than the trained network."
    differences = [abs(number - expected) for number, expected in zip(numbers, example.expected, strict=True)]
    limit = tolerance * max(1.0, *map(abs, example.expected))
    if all(difference <= limit for difference in differences):  # False for NaN
        return ""
    most = next((difference for difference in differences if math.isnan(difference)), max(differences))
    return f"An answer differs by {most:.2g} from the trained network's prediction, more than {limit:.2g}."


def _numbers(value: Any) -> Sequence[float]:
    return [float(number) for number in value] if isinstance(value, Sequence) else [float(value)]
