"""A folder with an endpoint file for the fake Vertex AI, registered versions, and the commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from slipway.components.cloud.connection import Connection
from slipway.components.deploy.service import Endpoints
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, SERVING_IMAGE, vertex_settings
from tests.fakes.vertex.serving import STAND_IN

DIGITS = Path("configs/digits.yaml").absolute()
PARENT = f"projects/{PROJECT}/locations/{REGION}"
ENDPOINT_ID = "slipway-digits"


class Workspace:
    """A working directory with configs/endpoints/digits.yaml, whose model is answered for by stand-in servers."""

    def __init__(self, google: FakeGoogle, folder: Path) -> None:
        self.google = google
        self.folder = folder
        self.connection = Connection(PROJECT, REGION, google.endpoints)
        self.endpoints = Endpoints(self.connection)
        google.region.servers.commands["digits"] = STAND_IN
        (folder / "configs/endpoints").mkdir(parents=True)
        (folder / "requests.json").write_text(json.dumps({"instances": [{"pixel": 1}, {"pixel": 2}]}))
        values = yaml.safe_load(DIGITS.read_text()) | {"vertex": vertex_settings(google)}
        (folder / "configs/digits.yaml").write_text(yaml.safe_dump(values))
        self.write()

    def write(self, **settings: Any) -> None:
        """Write the endpoint file: steps of 20%, 60% and 100% without a hold, unless other settings are given."""
        check = {"requests": "requests.json", "rate": 100, "answers": 5, **settings.pop("check", {})}
        values = {"configuration": "configs/digits.yaml", "canary": [20, 60, 100], "hold": 0, "check": check}
        (self.folder / "configs/endpoints/digits.yaml").write_text(yaml.safe_dump(values | settings))

    def register(self, *arguments: str, uri: str = f"gs://{BUCKET}/runs/digits-1/model") -> None:
        """Register a version of the model digits as the champion, whose server has these arguments."""
        models = self.connection.models
        first = not self.google.region.models.models
        model = {
            "display_name": "digits",
            "artifact_uri": uri,
            "container_spec": {"image_uri": SERVING_IMAGE, "args": arguments},
            "version_aliases": ["champion"],
        }
        target = {"model_id": "digits"} if first else {"parent_model": f"{PARENT}/models/digits"}
        operation = models.upload_model(request={"parent": PARENT, "model": model, **target}).operation
        while not operation.done:
            time.sleep(0.01)
            operation = models.get_operation({"name": operation.name})

    def slipway(self, *arguments: str) -> Result:
        """Run a command in this process."""
        from slipway.pipelines.cli.app import app

        return CliRunner().invoke(app, list(arguments))

    def deployed(self, *arguments: str) -> Result:
        """Deploy, and expect success."""
        result = self.slipway("deploy", *arguments)
        assert result.exit_code == 0, result.output
        return result

    @property
    def endpoint(self) -> Any:
        """The endpoint on Vertex AI."""
        return self.endpoints.existing(ENDPOINT_ID)

    @property
    def traffic(self) -> dict[str, int]:
        """The traffic by version: {"digits@1": 100}."""
        names = {one.id: one.display_name.removeprefix("slipway/") for one in self.endpoint.deployed_models}
        return {names[one]: percent for one, percent in self.endpoint.traffic_split.items()}

    @property
    def versions(self) -> list[str]:
        """The deployed versions."""
        return sorted(one.display_name.removeprefix("slipway/") for one in self.endpoint.deployed_models)


@pytest.fixture
def workspace(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return Workspace(ready_google, tmp_path)


@pytest.fixture
def clients(workspace: Workspace) -> Callable[[], Any]:
    """Send requests as users do, from now on; the returned function stops and returns the answers."""
    import threading

    from slipway.components.cloud.prediction import predict

    client = workspace.connection.predictions()
    name = f"{PARENT}/endpoints/{ENDPOINT_ID}"
    stop = threading.Event()
    found: list[tuple[str, str]] = []

    def send() -> None:
        while not stop.wait(0.01):
            try:
                found.append((predict(client, name, [{"pixel": 3}], 10)[0], ""))
            except Exception as error:
                found.append(("", str(error)))

    threads = [threading.Thread(target=send, daemon=True) for _ in range(2)]

    def begin() -> Callable[[], list[tuple[str, str]]]:
        for thread in threads:
            thread.start()

        def end() -> list[tuple[str, str]]:
            stop.set()
            for thread in threads:
                thread.join()
            return found

        return end

    return begin
