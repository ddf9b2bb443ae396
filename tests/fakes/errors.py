"""Errors that the services return, and fault injection for tests."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import grpc

# google.rpc.Code by HTTP status, in the names of both worlds.
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    412: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}


# The reason in `errors`, which the bodies of older APIs have.
REASONS = {400: "invalid", 401: "authError", 403: "forbidden", 404: "notFound", 409: "conflict", 412: "conditionNotMet"}


class ServiceError(Exception):
    """A refusal: an HTTP status and the service's own sentence.

    `reason` overrides google.rpc's name (ABORTED); `info` is the reason in the details, as google.rpc.ErrorInfo.
    """

    def __init__(self, status: int, message: str, reason: str | None = None, info: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or CODES[status].name
        self.info = info

    @property
    def code(self) -> grpc.StatusCode:
        """The google.rpc.Code."""
        return getattr(grpc.StatusCode, self.reason, CODES[self.status])

    def as_json(self) -> dict[str, object]:
        """The body of Google's HTTP errors."""
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": self.info}] if self.info else []
        body = {"code": self.status, "message": self.message, "status": self.reason}
        return {"error": body | ({"details": details} if details else {})}

    def as_older_json(self, reasons: Mapping[int, str] = REASONS) -> dict[str, object]:
        """The body of errors of older APIs, with a list of errors instead of google.rpc's name."""
        reason = reasons.get(self.status, "rateLimitExceeded" if self.status == 429 else "backendError")
        errors = [{"domain": "global", "reason": reason, "message": self.message}]
        return {"error": {"code": self.status, "message": self.message, "errors": errors}}


class ConnectionReset(Exception):
    """The connection breaks instead of a response."""


class Stall(Exception):
    """The service does not respond for some seconds, and then as if nothing had happened."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:g} s")
        self.seconds = seconds


@dataclass
class _Planned:
    method: str
    error: Exception
    times: int
    lost: bool
    skipped: int


class Faults:
    """Fault injection: planned errors first, then a random fraction of all calls. Counts and records the calls.

    A method has its name in Google's API documentation, `PipelineService.CreatePipelineJob` for gRPC and
    `GET /v3/projects/p` for HTTP; `plan` accepts a part of that name. With `after`, random faults occur after the work
    is done: only the response is lost.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []
        self._cleared = threading.Event()
        self.share = 0.0
        self.calls: Counter[str] = Counter()
        self.history: list[str] = []
        self.struck: Counter[str] = Counter()

    def seed(self, seed: int) -> None:
        """Restart the random faults with a new seed."""
        with self._lock:
            self._random.seed(seed)

    def plan(self, method: str, error: Exception, times: int = 1, *, lost: bool = False, at_call: int = 1) -> None:
        """Respond to `times` calls of `method` with `error`, from its next call number `at_call` on.

        A `Stall` delays them. With `lost`, the error follows after their work is done.
        """
        with self._lock:
            self._planned.append(_Planned(method, error, times, lost, at_call - 1))

    def clear(self) -> int:
        """Forget what was planned; stalled calls continue. Return how many calls were struck since the last time."""
        with self._lock:
            struck = self.struck.total()
            self.struck.clear()
            self._planned.clear()
            self._cleared.set()
            self._cleared = threading.Event()
            return struck

    def before(self, method: str) -> None:
        """Raise the fault of a call before its work is done."""
        with self._lock:
            self.calls[method] += 1
            self.history.append(method)
            error = self._fault(method, lost=False)
            cleared = self._cleared
        self._strike(error, cleared)

    def after(self, method: str) -> None:
        """Raise the fault of a call after its work is done: the response is lost."""
        with self._lock:
            error = self._fault(method, lost=True)
            cleared = self._cleared
        self._strike(error, cleared)

    def _fault(self, method: str, *, lost: bool) -> Exception | None:
        error = self._planned_fault(method, lost=lost)
        if error is None and self._random.random() < self.share / 2:
            error = self._random.choice(
                [
                    ServiceError(429, "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'."),
                    ServiceError(503, "The service is currently unavailable."),
                    ConnectionReset(),
                ]
            )
        if error is not None:
            self.struck[method] += 1
        return error

    def _planned_fault(self, method: str, *, lost: bool) -> Exception | None:
        for planned in self._planned:
            if planned.lost != lost or planned.method not in method or planned.times <= 0:
                continue
            if planned.skipped > 0:
                planned.skipped -= 1
                continue
            planned.times -= 1
            return planned.error
        return None

    @staticmethod
    def _strike(error: Exception | None, cleared: threading.Event) -> None:
        if isinstance(error, Stall):
            cleared.wait(error.seconds)
        elif error is not None:
            raise error


def not_found(what: str) -> ServiceError:
    """Return the error for a missing resource."""
    return ServiceError(HTTPStatus.NOT_FOUND, f"{what} was not found.")
