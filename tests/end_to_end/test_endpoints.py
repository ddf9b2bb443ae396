"""A trained model is served, replaced and rolled back on the fake Vertex AI, while a client sends requests."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipway.components.cloud.prediction import predict
from slipway.core import integrity
from tests.end_to_end.workspace import FinishedRun
from tests.fakes.google import FakeGoogle
from tests.fakes.ready import BUCKET
from tests.pipelines.platforms.vertex.endpoints.conftest import ENDPOINT_ID, PARENT, Workspace

CANARY = (5, 25, 100)


class Answer(NamedTuple):
    """When a request began and ended, the deployed model that answered, its label; or the error."""

    began: float
    ended: float
    deployed: str = ""
    label: str = ""
    error: str = ""


class Client:
    """Sends one instance again and again."""

    def __init__(self, workspace: Workspace, instance: object) -> None:
        self.answers: list[Answer] = []
        self._client = workspace.connection.predictions()
        self._instance = instance
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(2)]

    def __enter__(self) -> Client:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                name = f"{PARENT}/endpoints/{ENDPOINT_ID}"
                deployed, (found,) = predict(self._client, name, [self._instance], 30)
                self.answers.append(Answer(began, time.monotonic(), deployed, found["label"]))
            except Exception as error:
                self.answers.append(Answer(began, time.monotonic(), error=str(error)))
            time.sleep(0.005)


@pytest.fixture
def workspace(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(ready_google, tmp_path)
    del ready_google.region.servers.commands["digits"]  # the real server
    workspace.write(canary=CANARY, hold=0.05, check={"requests": None, "rate": 30, "answers": 8})
    return workspace


@pytest.mark.long
def test_a_model_is_replaced_and_a_bad_one_withdrawn_while_a_client_sends_requests(
    finished: FinishedRun, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = finished.path / "models/digits/1"
    stored = json.loads((model / "examples.json").read_text())
    uri = f"gs://{BUCKET}/runs/digits-1/model"
    bad = tmp_path / "bad"
    shutil.copytree(model, bad)
    wrong = {**stored, "values": [[*values[1:], values[0]] for values in stored["values"]]}
    (bad / "examples.json").write_text(json.dumps(wrong))
    integrity.seal(bad, integrity.unsealed(json.loads((bad / integrity.RECORD_FILE).read_text())))
    for run, folder in {"digits-1": model, "digits-2": bad}.items():
        for file in filter(Path.is_file, folder.rglob("*")):
            name = f"runs/{run}/model/{file.relative_to(folder)}"
            workspace.google.storage.write(BUCKET, name, file.read_bytes())
    moved: list[tuple[float, float, dict[str, int]]] = []
    update = type(workspace.connection.serving).update_endpoint

    def recorded(self: Any, request: Any, **options: Any) -> Any:
        asked = time.monotonic()
        answer = update(self, request=request, **options)
        moved.append((asked, time.monotonic(), dict(answer.traffic_split)))
        return answer

    monkeypatch.setattr(type(workspace.connection.serving), "update_endpoint", recorded)
    workspace.register(uri=uri)
    workspace.deployed()
    workspace.register(uri=uri)
    moved.clear()
    with Client(workspace, stored["instances"][0]) as client:
        outcome = json.loads(workspace.deployed("--json").stdout)
        time.sleep(0.2)
    new = outcome["deployed"]
    assert [split.get(new) for *_, split in moved] == [*CANARY, 100]
    assert not [each.error for each in client.answers if each.error]
    label = str(max(range(10), key=lambda one: stored["values"][0][one]))
    assert {each.label for each in client.answers} == {label}
    for (_, since, split), (until, *_) in pairwise(moved):
        share = split.get(new, 0) / 100
        # Only requests that began after one change had been answered and ended before the next was asked for.
        counts = Counter(each.deployed for each in client.answers if since < each.began and each.ended < until)
        total = sum(counts.values())
        assert total > 20
        assert abs(counts[new] - share * total) <= 4 * math.sqrt(total * share * (1 - share)) + 1, (split, counts)

    workspace.register(uri=f"gs://{BUCKET}/runs/digits-2/model")
    moved.clear()
    with Client(workspace, stored["instances"][0]) as client:
        result = workspace.slipway("deploy", "--json")
        time.sleep(0.2)
    assert result.exit_code == 3, result.output
    withdrawn = json.loads(result.stdout)
    assert "from the trained network's prediction" in withdrawn["reason"]
    assert [split for *_, split in moved] == [{withdrawn["deployed"]: 5, new: 95}, {new: 100}]
    assert not [each.error for each in client.answers if each.error]
    assert {each.deployed for each in client.answers if each.began > moved[1][1]} == {new}
    assert workspace.versions == ["digits@2"]
