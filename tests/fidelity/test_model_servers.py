"""Rules of Vertex AI's prediction containers that the fakes keep: variables, health checks, restarts, ends.

Source: https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/
custom-container-requirements
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as vertex

from tests.fakes.google import NUMBER, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, SERVING_IMAGE
from tests.fakes.vertex.serving import ACCOUNT, STAND_IN, ModelServer, Servers, expanded

MACHINE = vertex.MachineSpec(machine_type="n1-standard-4")
INSTANCES = json.dumps({"instances": [1]}).encode()


@pytest.fixture
def servers(ready_google: FakeGoogle) -> Servers:
    servers = ready_google.region.servers
    servers.commands["digits"] = STAND_IN
    return servers


@pytest.fixture
def start(servers: Servers) -> Callable[..., ModelServer]:
    """Start the container of the model digits with some fields of its specification changed."""

    def started(*arguments: str, **spec: Any) -> ModelServer:
        model = vertex.Model(
            name=f"projects/{NUMBER}/locations/{REGION}/models/digits",
            version_id="1",
            display_name="digits",
            artifact_uri=f"gs://{BUCKET}/runs/digits-1/model/",
            container_spec={"image_uri": SERVING_IMAGE, "args": arguments, **spec},
        )
        return servers.start(model, MACHINE, lambda _line: None, endpoint="12", deployed_model="345")

    return started


PRINTED = "import json, os; print(json.dumps(dict(os.environ))); import time; time.sleep(60)"


def test_the_container_has_the_variables_of_the_service(ready_google, start):
    """Source (read): "Variables set by Agent Platform" on the page, and ModelContainerSpec.command in model.proto."""
    ready_google.storage.write(BUCKET, "runs/digits-1/model/weights/part", b"weights")
    ready_google.storage.write(BUCKET, "runs/digits-1/model-2/other", b"another's")
    variables = [{"name": "GREETING", "value": "hello $(AIP_ENDPOINT_ID) $(NOBODY) $$(AIP_MODE)"}]
    ready_google.region.servers.commands.clear()
    server = start(command=[sys.executable, "-S", "-c", PRINTED], env=variables)
    _until(lambda: bool(server.process.tail))
    told = json.loads(server.process.tail[0])
    bucket, _, folder = told.pop("AIP_STORAGE_URI").removeprefix("gs://").partition("/")
    assert (bucket != BUCKET, ready_google.storage.names(bucket)) == (True, {f"{folder}/weights/part"})
    assert json.loads(Path(told["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())["client_email"] == ACCOUNT
    assert told["GREETING"] == "hello 12 $(NOBODY) $(AIP_MODE)"
    assert {name: value for name, value in told.items() if name.startswith("AIP_")} == {
        "AIP_DEPLOYED_MODEL_ID": "345",
        "AIP_ENDPOINT_ID": "12",
        "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
        "AIP_HEALTH_ROUTE": "/v1/endpoints/12/deployedModels/345",
        "AIP_HTTP_PORT": str(server.port),
        "AIP_MACHINE_TYPE": "n1-standard-4",
        "AIP_MODE": "PREDICTION",
        "AIP_MODE_VERSION": "1.0.0",
        "AIP_MODEL_NAME": "12",
        "AIP_PREDICT_ROUTE": "/v1/endpoints/12/deployedModels/345:predict",
        "AIP_PROJECT_NUMBER": str(NUMBER),
        "AIP_VERSION_NAME": "345",
    }


def test_variables_are_expanded_as_in_kubernetes():
    """Source (read): ModelContainerSpec.command in model.proto."""
    assert expanded("$(A)/$$(A)/$(B)/$C", {"A": "a"}) == "a/$(A)/$(B)/$C"


def test_a_server_predicts_once_it_is_healthy(start):
    """Source (read): "Health checks" on the page."""
    server = start("--start-seconds", "0.3", predict_route="/predict", health_route="/health")
    assert not server.is_healthy()
    assert server.wait_until_healthy(20)
    answer = server.predict(INSTANCES)
    assert (answer.status, json.loads(answer.body)["predictions"][0]["by"]) == (200, "345")


def test_a_server_that_never_becomes_healthy_or_is_slow_is_waited_for_in_vain(start):
    """Source (read): "Health checks" on the page."""
    assert not start("--never-healthy").wait_until_healthy(0.5)
    slow = start("--seconds", "1")
    assert slow.wait_until_healthy(20)
    with pytest.raises(TimeoutError):
        slow.predict(INSTANCES, seconds=0.2)


def test_a_process_that_ends_is_started_again(start):
    """Source (read): "restarts your container"; a container's process is its first one."""
    server = start()
    assert server.wait_until_healthy(20)
    server.kill()
    _until(lambda: server.restarts == 1)
    assert server.wait_until_healthy(20)


def test_nothing_runs_once_the_servers_are_closed(start, servers):
    """SIGTERM ends a server after the requests in progress. Source (read): none; as Kubernetes ends a container."""
    running = [start(), start("--never-healthy"), start("--exit", "1")]
    assert running[0].wait_until_healthy(20)
    servers.close()
    assert not any(server.process.is_running for server in running)
    with pytest.raises(ConnectionRefusedError):
        running[0].predict(INSTANCES)


def _until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
