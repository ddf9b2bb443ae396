"""An incoming webhook on loopback, as chat services have them: it stores what is posted to its secret path."""

from __future__ import annotations

from typing import Any

from tests.fakes.errors import Faults
from tests.fakes.http_service import HttpService, Raw, Request

# What would be in a leaked address.
SECRET = "T0planted-5d81c2"


class FakeWebhook:
    """The webhook; a context manager. It answers with the next of `statuses`, then with 200."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.calls = 0
        self.url = ""
        self._service = HttpService("webhook", Faults(), lambda _headers: "")
        self._service.route("POST", f"/services/{SECRET}")(self._post)

    def __enter__(self) -> FakeWebhook:
        self.url = f"http://localhost:{self._service.start(None)}/services/{SECRET}"
        return self

    def __exit__(self, *_: Any) -> None:
        self._service.stop()

    def _post(self, request: Request) -> Any:
        self.calls += 1
        status = self.statuses.pop(0) if self.statuses else 200
        if not request.json.get("text"):
            return Raw(b"no_text", 400)
        if status == 200:
            self.received.append(request.json)
        return Raw(b"ok", status, {"Location": self.url} if 300 <= status < 400 else {})
