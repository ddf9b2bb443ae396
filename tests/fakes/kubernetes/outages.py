"""Failures of the API server, as recorded on kube-apiserver 1.36 with etcd, and planned refusals."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.fakes.errors import ConnectionReset
from tests.fakes.http_service import HttpService, Raw, Request

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
DOWN = 0


@dataclass
class Refusal:
    """An error of the API for calls of a method whose path ends with `path`; `hang` seconds pass before it."""

    code: int
    message: str
    method: str = ""
    path: str = ""
    times: float = float("inf")
    hang: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)

    def is_for(self, request: Request) -> bool:
        return self.times > 0 and self.method in ("", request.method) and request.path.endswith(self.path)

    def answer(self) -> Raw:
        """Return the Status of the error.

        Raises:
            ConnectionReset: The server is down.
        """
        self.times -= 1
        time.sleep(self.hang)
        if self.code == DOWN:
            raise ConnectionReset
        body = json.dumps(status_of(self.code, self.message)).encode()
        return Raw(body, self.code, {"Content-Type": "application/json", **self.headers})


def status_of(code: int, message: str) -> dict[str, object]:
    """Return the Status of an error of the API server."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return status | {"reason": REASONS[code], "code": code}


class Outages:
    """What the API server answers instead of doing its work. Counts the calls that it answered so in `struck`."""

    def __init__(self, service: HttpService) -> None:
        self.struck = 0
        self._service = service
        self._phases: list[tuple[float, Refusal]] = []
        self._planned: list[Refusal] = []
        self._lock = threading.Lock()
        service.gate = self._answer

    @property
    def is_away(self) -> bool:
        """Whether the server is restarting, or is without etcd."""
        return bool(self._phases) and time.monotonic() < self._phases[-1][0]

    def restart(self, down: float = 0.2, denied: float = 0.2, unavailable: float = 0.1, code: int = 403) -> None:
        """Kill the server and start it again; all connections break.

        At first, the caches of RBAC are empty, and it denies what every account may do (403; while it cannot verify
        tokens, 401). Then it answers 503, then as before.
        """
        message = "Unauthorized" if code == 401 else 'forbidden: User "system:serviceaccount:kubeflow:pipeline-runner"'
        self._begin(
            (down, Refusal(DOWN, "")),
            (denied, Refusal(code, message)),
            (unavailable, Refusal(503, "apiserver not ready")),
        )
        self._service.disconnect()

    def lose_etcd(self, seconds: float, hang: float) -> None:
        """Let every call hang and then fail, for some time."""
        self._begin((seconds, Refusal(500, "etcdserver: request timed out", hang=hang)))

    def lag(self, times: int) -> None:
        """Let the cache of Trainer's webhook lack a runtime that was just created, for some calls."""
        webhook = 'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: spec.runtimeRef: '
        message = "not found: specified trainingRuntime must be created before the TrainJob is created"
        self.plan(Refusal(403, webhook + message, "POST", "/trainjobs", times))

    def plan(self, refusal: Refusal) -> None:
        """Answer the next calls that a refusal is for with it."""
        self._planned.append(refusal)

    def _begin(self, *phases: tuple[float, Refusal]) -> None:
        end = time.monotonic()
        self._phases = [(end := end + seconds, refusal) for seconds, refusal in phases]

    def _answer(self, request: Request) -> Raw | None:
        with self._lock:
            now = time.monotonic()
            current = [refusal for end, refusal in self._phases if now < end][:1]
            current += [refusal for refusal in self._planned if refusal.is_for(request)][:1]
            if not current:
                return None
            self.struck += 1
        return current[0].answer()
