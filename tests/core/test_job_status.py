"""The progress of a training in the status of its TrainJob, over TLS, with the pod's token."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.core import events
from tests.fakes.certificates import certificates

TRAINING = """
from slipway.core import events
events.progress(3, 10, "batches", loss=0.0)
events.progress(10, 40, "steps", loss=0.25, steps_per_second=2.0)
events.progress(39, 40, "steps", loss=1e-7)
"""


class Server(http.server.ThreadingHTTPServer):
    """Accepts what the status server accepts: a JSON object with the right token and the types of its Go structs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.socket = certificates().server_context.wrap_socket(self.socket, server_side=True)
        self.accepted: list[dict[str, Any]] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        status = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["trainerStatus"]
        assert self.headers["Authorization"] == "Bearer secret"
        assert 0 <= status["progressPercentage"] <= 100
        assert isinstance(status.get("estimatedRemainingSeconds", 0), int)
        assert all(isinstance(metric[part], str) for metric in status["metrics"] for part in ("name", "value"))
        self.server.accepted.append(status)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def environment(tmp_path: Path, url: str) -> dict[str, str]:
    (tmp_path / "token").write_text("secret\n")
    authority = str(certificates().authority_file)
    return {
        "KUBEFLOW_TRAINER_STATUS_URL": url,
        "KUBEFLOW_TRAINER_STATUS_CA_CERT": authority,
        "KUBEFLOW_TRAINER_STATUS_TOKEN": str(tmp_path / "token"),
        "HTTPS_PROXY": "http://127.0.0.1:1",
    }


def train(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", TRAINING], env=environment, capture_output=True, text=True)


def test_the_last_progress_is_sent_even_if_the_process_ends_at_once(server: Server, tmp_path: Path) -> None:
    ended = train(environment(tmp_path, f"https://127.0.0.1:{server.server_port}/status"))
    assert (ended.returncode, ended.stderr) == (0, "")
    *before, last = server.accepted
    assert last["progressPercentage"] == 97
    assert last["metrics"] == [{"name": "loss", "value": "1e-07"}]
    expected = [{"name": "loss", "value": "0.25"}, {"name": "steps_per_second", "value": "2"}]
    assert [(each["estimatedRemainingSeconds"], each["metrics"]) for each in before] in ([], [(15, expected)])


@pytest.mark.parametrize("missing", ["nothing", "KUBEFLOW_TRAINER_STATUS_TOKEN"])
def test_a_server_that_fails_does_not_end_the_training(missing: str, tmp_path: Path) -> None:
    variables = environment(tmp_path, "https://127.0.0.1:1/status")
    variables.pop(missing, None)
    ended = train(variables)
    assert ended.returncode == 0
    assert ended.stderr.count("the TrainJob's status has no progress") == 1
    assert "Traceback" not in ended.stderr


def test_only_the_chief_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEFLOW_TRAINER_STATUS_URL", "https://127.0.0.1:1")
    events.mute()
    events.progress(1, 2, "steps")  # without a reporter, which would need the token
    assert events._reporter.cache_info().currsize == 0
