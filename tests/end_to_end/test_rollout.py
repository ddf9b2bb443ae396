"""A rollout with Slipway's own servers behind the fake endpoint, while clients send requests the whole time."""

from __future__ import annotations

import base64
import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from slipway.serving import model
from slipway.serving.settings import container_spec
from tests.components.evaluate.conftest import export_model, png
from tests.fakes.google import FakeGoogle
from tests.fakes.ready import BUCKET, SERVING_IMAGE
from tests.fakes.vertex.serving import SERVING
from tests.pipelines.endpoints.conftest import ENDPOINT_ID, PARENT, Workspace

INSTANCE = {"b64": base64.b64encode(png(load_digits().images[0] * 16)).decode()}
SLOW = """
import time


def load(folder):
    def predict(instances):
        time.sleep(0.7)
        return [{"label": "0"} for _ in instances]

    return predict
"""


class Clients:
    """Clients that send images from now on. Each answer has the time of its request and the deployed model."""

    def __init__(self, workspace: Workspace) -> None:
        self.answers: list[tuple[float, str]] = []
        self.errors: list[str] = []
        self._client = workspace.connection.predictions()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(4)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while not self._stop.is_set():
            sent = time.monotonic()
            try:
                found = self._client.predict(
                    endpoint=f"{PARENT}/endpoints/{ENDPOINT_ID}", instances=[INSTANCE], retry=None, timeout=20
                )
                self.answers.append((sent, found.deployed_model_id))
            except Exception as error:
                self.errors.append(str(error))

    def between(self, start: float, end: float) -> Counter[str]:
        """Return the number of answers by deployed model to requests of that time."""
        return Counter(name for sent, name in self.answers if start <= sent < end)


@pytest.fixture
def workspace(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(ready_google, tmp_path)
    ready_google.region.servers.commands["digits"] = SERVING
    (tmp_path / "requests.json").write_text(json.dumps({"instances": [INSTANCE]}))
    return workspace


@pytest.fixture
def register(workspace: Workspace) -> Callable[..., None]:
    """Register a version of digits as the champion: a SavedModel in the bucket, or one with a function of its own."""
    model.import_tensorflow()

    def registered(number: int, module: str | None = None, **variables: str) -> None:
        weights = np.random.default_rng(number).normal(size=(64, 10))
        folder = export_model(workspace.folder / f"model-{number}", weights, np.zeros(10))
        for path in folder.rglob("*"):
            if path.is_file():
                name = f"runs/digits-1/model/{path.relative_to(folder)}"
                workspace.google.storage.write(BUCKET, name, path.read_bytes())
        spec = container_spec(SERVING_IMAGE, module)
        spec["env"] += [{"name": name, "value": value} for name, value in variables.items()]
        workspace.register(**{name: value for name, value in spec.items() if name != "image_uri"})

    return registered


@pytest.fixture
def moves(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, float, dict[str, int]]]]:
    """Record when every update of the traffic was sent and answered, and the split."""
    found: list[tuple[float, float, dict[str, int]]] = []
    client = type(workspace.connection.serving)
    update = client.update_endpoint

    def recorded(self: Any, request: Any, **options: Any) -> Any:
        sent = time.monotonic()
        answer = update(self, request=request, **options)
        found.append((sent, time.monotonic(), dict(answer.traffic_split)))
        return answer

    monkeypatch.setattr(client, "update_endpoint", recorded)
    return found


def test_a_canary_takes_over_without_a_failed_request_and_a_slow_model_is_rolled_back(workspace, register, moves):
    register(1)
    assert workspace.deployed().exit_code == 0
    register(2)
    workspace.write(canary=[5, 25, 100], check={"rate": 50, "answers": 10})
    earlier = len(moves)
    with Clients(workspace) as clients:
        outcome = json.loads(workspace.deployed("--json").stdout)
        workspace.folder.joinpath("slow_serving.py").write_text(SLOW)
        register(3, "slow_serving:load", PYTHONPATH=str(workspace.folder))
        workspace.write(canary=[25, 100], check={"rate": 50, "answers": 5, "p50_ms": 300})
        rejected = workspace.slipway("deploy", "--json")
        time.sleep(0.5)
    end = time.monotonic()
    new = outcome["deployed"]
    slow = json.loads(rejected.stdout)
    assert (rejected.exit_code, slow["status"]) == (3, "rolled back"), rejected.output
    assert "latency" in slow["reason"]
    assert workspace.traffic == {"digits@2": 100}
    assert workspace.versions == ["digits@1", "digits@2"]

    assert clients.errors == []
    assert len(clients.answers) > 100
    canary = [split for _, _, split in moves[earlier:]]
    assert [split[new] for split in canary[:3]] == [5, 25, 100]
    for (_, start, split), (stop, _, _) in itertools.pairwise([*moves[earlier:], (end, end, {})]):
        found = clients.between(start, stop)
        for name, percent in split.items():
            share, count = percent / 100, found.total()
            # Five standard deviations of the binomial distribution.
            assert abs(found[name] - share * count) <= 5 * math.sqrt(share * (1 - share) * count), (split, found)
    decided = next(sent for sent, _, split in reversed(moves) if slow["deployed"] in split)
    returned = next(answered for sent, answered, split in moves if sent > decided and split == {new: 100})
    assert clients.between(returned, end) == {new: clients.between(returned, end).total()}
    counted = {name for _, name, status in workspace.google.region.endpoints.answers if status == 200}
    assert counted >= {new, slow["deployed"]}
    assert {status for _, _, status in workspace.google.region.endpoints.answers} == {200}
