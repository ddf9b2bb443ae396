"""MLflow as a tracker: sends a run to a tracking server, and never what the server already has.

The server is called with requests: MLflow's own client would add some 20 packages, and repeats failing calls for
minutes. The API: https://mlflow.org/docs/latest/rest-api.html
"""

from __future__ import annotations

import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import quote

import requests
import urllib3
from pydantic import BaseModel, ConfigDict, ValidationError

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.tracking.settings import TrackSettings

Value = TypeVar("Value")
Answer = TypeVar("Answer", bound="_Answer")

# For a connection, and for each part of an answer.
TIMEOUT_SECONDS = 10.0
# For a call, and the bytes of its answer.
CALL_SECONDS = 30.0
MAX_ANSWER, READ_BYTES = 8_000_000, 1 << 16
# Characters of a server's message that are shown.
MAX_MESSAGE = 300
# Limits of a batch and of names; the source of both: mlflow/utils/validation.py.
MAX_METRICS, MAX_PARAMETERS = 1000, 100
INVALID = re.compile(r"[^\w./ -]")
# Shorter than what servers since 1.28 accept; they refuse longer values.
MAX_VALUE = 500
RUN_TAG = "slipway.run"
PARENT_TAG = "mlflow.parentRunId"
STATUS = {"running": "RUNNING", "succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED", "pruned": "KILLED"}


@dataclass(frozen=True)
class Point:
    """The value of a metric at a step; `time` is in seconds since 1970."""

    name: str
    step: int
    value: float
    time: float

    def as_json(self) -> JsonObject:
        """Return it in the API's form."""
        return {
            "key": _valid(self.name),
            "value": self.value,
            "step": self.step,
            "timestamp": _milliseconds(self.time),
        }


@dataclass(frozen=True)
class Tracked:
    """What is sent of a run.

    Attributes:
        run_id: Its id, by which the server's run is found again.
        status: running, succeeded, failed or cancelled.
        started: When it was started, in seconds since 1970.
        ended: When it ended, likewise; None while it is running.
        parent: The id of the search to which it belongs.
        known: The server's id of the run, if its platform has created it.
        parameters: Settings by dotted name.
        points: Metrics, by step in ascending order for each name.
        tags: Other facts; those without a value are not sent.
        files: The artifacts, of a run that has ended.
    """

    run_id: str
    status: str
    started: float
    ended: float | None = None
    parent: str | None = None
    known: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    tags: Mapping[str, str | None] = field(default_factory=dict)
    files: Sequence[Path] = ()


class _Answer(BaseModel):
    """What is read of the server's answers; of most calls, only that it is a JSON object."""

    model_config = ConfigDict(coerce_numbers_to_str=True)


class _Problem(_Answer):
    message: str = ""
    error_code: str = ""


class _Experiment(_Answer):
    experiment_id: str


class _NamedExperiment(_Answer):
    experiment: _Experiment


class _Info(_Answer):
    run_id: str
    experiment_id: str
    artifact_uri: str = ""


class _Parameter(_Answer):
    key: str


class _Metric(_Answer):
    key: str
    value: float
    step: int = 0


class _Data(_Answer):
    params: list[_Parameter] = []
    metrics: list[_Metric] = []


class _Run(_Answer):
    info: _Info
    data: _Data = _Data()


class _OneRun(_Answer):
    run: _Run


class _Runs(_Answer):
    runs: list[_Run] = []


class Mlflow:
    """One run on a tracking server. `send` creates it there, or completes it.

    Args:
        settings: The server.
        experiment: The name of the experiment.
        credentials: MLflow's environment variables.
    """

    def __init__(self, settings: TrackSettings, experiment: str, credentials: Mapping[str, str] = os.environ) -> None:
        self._uri, self._experiment = settings.mlflow.rstrip("/"), experiment
        self._session = requests.Session()
        if user := credentials.get("MLFLOW_TRACKING_USERNAME"):
            self._session.auth = (user, credentials.get("MLFLOW_TRACKING_PASSWORD", ""))
        elif token := credentials.get("MLFLOW_TRACKING_TOKEN"):
            self._session.headers["Authorization"] = f"Bearer {token}"
        self._session.headers["Accept-Encoding"] = "identity"
        self._deadline = math.inf
        self._run: _Info | None = None  # the server's description of the run, once it is known
        self._parameters: set[str] = set()  # the names that the server has
        self._latest: dict[str, tuple[int, float]] = {}  # the step and value of the last point that it has, by metric

    @property
    def page(self) -> str:
        """The page of the run that was sent."""
        return f"{self._uri}/#/experiments/{self._sent.experiment_id}/runs/{self._sent.run_id}"

    @property
    def _sent(self) -> _Info:
        assert self._run is not None  # it was opened
        return self._run

    def check(self) -> None:
        """Raise UserError if the server does not respond, or refuses the credentials."""
        try:
            self._find_experiment()
        except FAILURES as error:
            raise UserError(self._problem(error)) from None

    def send(self, run: Tracked, deadline: float = math.inf) -> None:
        """Send what the server does not have of a run, until the time `deadline` of `time.monotonic`.

        Raises:
            UserError: The server failed; its message says what was not sent.
        """
        parts: dict[str, Callable[[], None]] = {
            "parameters": lambda: self._open(run),
            "metrics": lambda: self._log(self._new(run.points)),
            "status": lambda: self._update(run),
            # Last, as some servers never accept them.
            **{file.name: partial(self._upload, file) for file in run.files},
        }
        left, self._deadline = list(parts), deadline
        try:
            for part in parts.values():
                part()
                left.pop(0)
        except (*FAILURES, OSError) as error:
            if isinstance(error, _Refused):
                self._run = None  # the server may have lost it
            values = f"metrics ({len(self._new(run.points)):,} values)"
            unsent = ", ".join(values if name == "metrics" else name for name in left)
            raise UserError(f"{self._problem(error)} Not sent: {unsent}.") from None

    def _open(self, run: Tracked) -> None:
        """Find the run, or create it, and send the parameters that it does not have, which cannot be changed."""
        if not self._run and run.known is not None:
            self._adopt(run.known, run.run_id)
        if not self._run:
            experiment = self._find_experiment()
            if experiment is None:
                experiment = self._post("experiments/create", _Experiment, name=self._experiment).experiment_id
            parent = [] if run.parent is None else [(PARENT_TAG, self._run_of(experiment, run.parent, run.started))]
            self._run_of(experiment, run.run_id, run.started, parent)
        new = {_valid(name): value[:MAX_VALUE] for name, value in run.parameters.items()}
        for some in _batches([name for name in new if name not in self._parameters], MAX_PARAMETERS):
            self._post_batch(params=[{"key": name, "value": new[name]} for name in some])
            self._parameters.update(some)

    def _adopt(self, known: str, run_id: str) -> None:
        """Continue a run that another program has created, if this server has it."""
        try:
            self._describe(self._call("GET", "mlflow/runs/get", _OneRun, params={"run_id": known}).run)
        except _Refused as error:
            if error.code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            self._post_batch(tags=[{"key": RUN_TAG, "value": run_id}])

    def _run_of(self, experiment: str, run_id: str, started: float, tags: Iterable[tuple[str, str]] = ()) -> str:
        """Return the server's id of a run, which is created if it does not exist."""
        having = f"tags.`{RUN_TAG}` = '{run_id}'"
        runs = self._post("runs/search", _Runs, experiment_ids=[experiment], filter=having, max_results=1).runs
        run = runs[0] if runs else self._post(
            "runs/create", _OneRun, experiment_id=experiment, run_name=run_id, start_time=_milliseconds(started),
            tags=[{"key": name, "value": value} for name, value in ((RUN_TAG, run_id), *tags)],
        ).run  # fmt: skip
        self._describe(run)
        return run.info.run_id

    def _describe(self, run: _Run) -> None:
        self._run = run.info
        self._parameters = {parameter.key for parameter in run.data.params}
        self._latest = {metric.key: (metric.step, metric.value) for metric in run.data.metrics}

    def _new(self, points: Sequence[Point]) -> list[Point]:
        """Return the points after the server's last one; a value that has changed at its step counts as new."""
        before = (-1, 0.0)
        compared = [(point, self._latest.get(_valid(point.name), before)) for point in points]
        return [
            point
            for point, (step, value) in compared
            if point.step > step or (point.step == step and point.value != value)
        ]

    def _log(self, points: Sequence[Point]) -> None:
        for some in _batches(points, MAX_METRICS):
            self._post_batch(metrics=[point.as_json() for point in some])
            self._latest |= {_valid(point.name): (point.step, point.value) for point in some}

    def _upload(self, file: Path) -> None:
        """Upload an artifact through the server.

        Raises:
            _Refused: Clients of this server upload artifacts to its storage themselves.
        """
        scheme, _, folder = self._sent.artifact_uri.partition(":")
        if scheme != "mlflow-artifacts" or folder.startswith("//"):
            raise _Refused(f"stores artifacts in {self._sent.artifact_uri}, not through itself (--serve-artifacts)")
        path = quote(f"{folder.strip('/')}/{file.name}")
        self._call("PUT", f"mlflow-artifacts/artifacts/{path}", _Answer, data=file.read_bytes())

    def _update(self, run: Tracked) -> None:
        """Send the facts and the status."""
        tags = [{"key": name, "value": value} for name, value in run.tags.items() if value]
        self._post_batch(tags=tags)
        end = {} if run.ended is None else {"end_time": _milliseconds(run.ended)}
        self._post("runs/update", _Answer, run_id=self._sent.run_id, status=STATUS[run.status], **end)

    def _find_experiment(self) -> str | None:
        try:
            name = {"experiment_name": self._experiment}
            return self._call(
                "GET", "mlflow/experiments/get-by-name", _NamedExperiment, params=name
            ).experiment.experiment_id
        except _Refused as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _post_batch(self, **items: list[JsonObject]) -> None:
        self._post("runs/log-batch", _Answer, run_id=self._sent.run_id, **items)

    def _post(self, path: str, answer: type[Answer], **body: object) -> Answer:
        return self._call("POST", f"mlflow/{path}", answer, json=body)

    def _call(self, method: str, path: str, answer: type[Answer], **content: object) -> Answer:
        """Return the server's answer to a call.

        Raises:
            _Refused: It is an error, not one of MLflow, too large, or not complete in time.
        """
        url = f"{self._uri}/api/2.0/{path}"
        response, body = _within(self._deadline, lambda: _answer_of(self._session, method, url, content))
        if response.status_code != requests.codes.ok:
            problem = _parsed(_Problem, body) or _Problem()
            message = " ".join((problem.message or response.reason or "").split())
            raise _Refused(f"answered {response.status_code}: {message[:MAX_MESSAGE]}", problem.error_code)
        parsed = _parsed(answer, body)
        if parsed is None:
            kind = response.headers.get("Content-Type", "no content type")[:MAX_MESSAGE]
            raise _Refused(f"did not answer as MLflow does, but with {kind}; it may be a proxy or login page")
        return parsed

    def _problem(self, error: Exception) -> str:
        if isinstance(error, OSError) and not isinstance(error, requests.RequestException):  # of an artifact's file
            return f"{error.filename} cannot be read: {error.strerror}."
        refused = isinstance(error, _Refused)
        return f"MLflow at {self._uri} {error if refused else f'could not be reached ({type(error).__name__})'}."


class _Refused(Exception):
    """The server refused a call; `code` is MLflow's name of the error."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message.rstrip("."))
        self.code = code


# What a call raises beside errors of files.
FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, UnicodeError, _Refused)


def _answer_of(
    session: requests.Session, method: str, url: str, content: JsonObject
) -> tuple[requests.Response, bytes]:
    """Return a response and its body."""
    body = bytearray()
    # A redirection could carry the run to another host.
    with session.request(
        method, url, timeout=TIMEOUT_SECONDS, allow_redirects=False, stream=True, **content
    ) as response:
        for part in response.iter_content(READ_BYTES):
            body += part
            if len(body) > MAX_ANSWER:
                raise _Refused(f"answered with more than {MAX_ANSWER:,} bytes")
    return response, bytes(body)


def _within(deadline: float, call: Callable[[], Value]) -> Value:
    """Return the result of a call, or raise its error; it is abandoned after CALL_SECONDS, and at the deadline.

    The timeouts of requests are of each part, so that a server that sends a byte now and then never ends one.
    """
    seconds = min(CALL_SECONDS, max(0.0, deadline - time.monotonic()))
    results: queue.SimpleQueue[Callable[[], Value]] = queue.SimpleQueue()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            results.put(partial(_raise, error))
        else:
            results.put(lambda: result)

    threading.Thread(target=work, name="mlflow", daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise _Refused(f"did not answer completely in {seconds:.0f} s") from None
    return result()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _parsed(answer: type[Answer], body: bytes) -> Answer | None:
    try:
        return answer.model_validate_json(body)
    except ValidationError:
        return None


def _batches(values: Sequence[Value], size: int) -> Iterator[Sequence[Value]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _valid(name: str) -> str:
    return INVALID.sub("_", name)


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
