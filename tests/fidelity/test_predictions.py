"""Rules of Vertex AI's online prediction that the fakes enforce, with Google's clients."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google.auth
import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import aiplatform_v1 as vertex

from tests.fakes.vertex.stand_in import PREDICTING
from tests.fidelity.conftest import ENDPOINT, Client, refused


@pytest.fixture
def deploy(client: Client) -> Any:
    """Register a version of the model digits with a server of these arguments, and deploy it with all traffic."""
    client.create()

    def deployed(identity: str, *arguments: str, traffic: dict[str, int] | None = None, **resources: Any) -> None:
        client.register(*arguments)
        version = len(next(iter(client.google.region.models.models.values())))
        operation = client.deploy(identity, traffic or {"0": 100}, model=f"digits@{version}", resources=resources)
        assert not operation.error.message

    return deployed


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_requests_are_routed_at_random_by_the_traffic_split(client, deploy):
    """The answer names the deployed model. Source (read): `Endpoint.traffic_split`, `PredictResponse`."""
    deploy("1")
    deploy("2", traffic={"1": 75, "0": 25})
    found = [client.predict({"pixel": 1.0}, 2) for _ in range(200)]
    counts = Counter(one.deployed_model_id for one in found)
    assert counts.total() == 200
    # Five standard deviations: one failure in more than a million seeds.
    assert abs(counts["2"] - 50) < 5 * math.sqrt(200 * 0.25 * 0.75)
    answers = client.google.region.endpoints.answers
    assert {name: answers["digits", name, 200] for name in ("1", "2")} == dict(counts)
    one = next(one for one in found if one.deployed_model_id == "2")
    assert (one.model.rpartition("/")[2], one.model_version_id, one.model_display_name) == ("digits", "2", "digits")
    predictions = [dict(prediction) for prediction in one.predictions]
    assert [dict(predictions[0]["instance"]), predictions[1]["instance"]] == [{"pixel": 1.0}, 2.0]
    refused("INVALID_ARGUMENT", "instances", client.predict)


def test_raw_predictions_have_the_containers_bytes(client, deploy):
    """Source (read): PredictionService.RawPredict; over REST, the headers name endpoint and deployed model."""
    deploy("1", "--raw")
    body = {"content_type": "text/plain", "data": b"any bytes"}
    assert client.predictions.raw_predict(endpoint=ENDPOINT, http_body=body).data == b"any bytes"
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    url = f"https://{client.google.prediction_endpoint}/v1/{ENDPOINT}:rawPredict"
    answer = AuthorizedSession(credentials).post(url, data=b"any bytes")
    assert (answer.status_code, answer.content) == (200, b"any bytes")
    assert answer.headers["X-Vertex-AI-Deployed-Model-Id"] == "1"
    refused("FAILED_PRECONDITION", "the response field predictions is missing", client.predict, 1)


def test_requests_and_answers_have_at_most_1_5_mb(client, deploy):
    """Source (read): "each inference request must be 1.5 MB or smaller", and each response,
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/
    custom-container-requirements; the messages: ageron/handson-ml2#205, googleapis/python-aiplatform#190.
    """
    deploy("1", "--bytes", "1000000")
    assert client.predict("x").predictions
    refused("INVALID_ARGUMENT", "payload size exceeds the limit: 1572864 bytes.", client.predict, "x" * 1_600_000)
    refused("INVALID_ARGUMENT", "Response size too large", client.predict, "x" * 600_000)


def test_a_request_takes_at_most_60_seconds(client, deploy):
    """Source (read): https://cloud.google.com/vertex-ai/docs/predictions/choose-endpoint-type; the message is quoted in
    GoogleCloudPlatform/vertex-ai-samples.
    """
    assert client.google.region.predictions.seconds == 60
    client.google.region.predictions.seconds = 0.3
    deploy("1", "--seconds", "1")
    refused("UNAVAILABLE", "Took too long to respond when processing", client.predict, 1)
    assert client.google.region.endpoints.answers["digits", "1", 503] == 1


def test_a_containers_errors_are_passed_on(client, deploy):
    """Source (read): GoogleCloudPlatform/vertex-ai-samples#2122, where the container's body is the error's message."""
    codes = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 502: "INTERNAL"}
    for number, (status, code) in enumerate(codes.items(), 1):
        deploy(str(number), "--failing", "1", "--status", str(status))
        refused(code, "the stand-in fails", client.predict, 1)
        assert client.google.region.endpoints.answers["digits", str(number), status] == 1


def test_a_dedicated_endpoint_has_an_address_and_limits_of_its_own(client):
    """Source (read): `Endpoint.dedicated_endpoint_enabled`, `UpdateEndpointLongRunningRequest`, and
    https://cloud.google.com/vertex-ai/docs/predictions/choose-endpoint-type (10 MB, up to an hour).
    """
    client.create(dedicated_endpoint_enabled=True)
    client.register("--seconds", "1")
    client.deploy("1", {"0": 100})
    refused("FAILED_PRECONDITION", "is a dedicated endpoint", client.predict, 1)
    address = client.get().dedicated_endpoint_dns
    own = vertex.PredictionServiceClient(transport="rest", client_options={"api_endpoint": address})
    assert own.predict(endpoint=ENDPOINT, instances=["x" * 2_000_000]).deployed_model_id == "1"
    _refused_over_rest(400, "payload size exceeds the limit: 10485760 bytes.", own, "x" * 11_000_000)

    def limit(seconds: float) -> Any:
        config = {"inference_timeout": {"seconds": int(seconds), "nanos": int(seconds % 1 * 1e9)}}
        endpoint = {"name": ENDPOINT, "client_connection_config": config}
        return client.done(client.endpoints.update_endpoint_long_running(request={"endpoint": endpoint}))

    refused("INVALID_ARGUMENT", "3600 seconds", limit, 3601)
    assert not limit(0.2).error.message
    _refused_over_rest(503, "Took too long to respond when processing", own, 1)


def _refused_over_rest(status: int, sentence: str, client: vertex.PredictionServiceClient, instance: Any) -> None:
    with pytest.raises(GoogleAPICallError) as error:
        client.predict(endpoint=ENDPOINT, instances=[instance], retry=None)
    assert (error.value.code, sentence in error.value.message) == (status, True), error.value


def test_no_request_is_lost_while_traffic_replicas_and_models_change(client, deploy):
    """A model that is undeployed, and a replica that is removed, answer what they have received.

    Source (read): none; an assumption.
    """
    deploy("1", "--seconds", "0.1", min_replica_count=2)
    stopped = threading.Event()
    found: Counter[str] = Counter()

    def ask() -> None:
        while not stopped.is_set():
            found[client.predict(1).deployed_model_id] += 1

    def done(operation: Any) -> None:
        assert not client.done(operation).error.message

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            deploy("2", "--seconds", "0.1", traffic={"1": 50, "0": 50})
            wait_until(lambda: found["2"])
            deployed = {"id": "1", "dedicated_resources": {"min_replica_count": 1}}
            mask = {"paths": ["dedicated_resources.min_replica_count"]}
            service = client.endpoints
            done(service.mutate_deployed_model(endpoint=ENDPOINT, deployed_model=deployed, update_mask=mask))
            done(service.undeploy_model(endpoint=ENDPOINT, deployed_model_id="1", traffic_split={"2": 100}))
            wait_until(lambda answered=found["2"]: found["2"] > answered + 1)
        finally:
            stopped.set()
        for one in asking:
            one.result()
    assert set(found) == {"1", "2"}


def test_replicas_take_turns_and_a_killed_one_is_passed_over_until_it_runs_again(client, deploy):
    """A request that its server had received is lost with it: the container is one process.

    Source (read): "restarts your container", as in test_model_servers.py.
    """
    deploy("1", "--seconds", "3", min_replica_count=2)
    replicas = client.google.region.endpoints.deployment("digits", "1").replicas
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(client.predict, 1) for _ in range(2)]
        wait_until(lambda: all(PREDICTING in replica.process.tail for replica in replicas))
        replicas[0].kill()
        failed = [one.exception() for one in asking]
    assert sorted(one is None for one in failed) == [False, True]
    (lost,) = filter(None, failed)
    assert "The model server closed the connection" in str(lost)
    assert client.predict(1).deployed_model_id == "1"
    assert replicas[0].wait_until_healthy(20)
    assert client.get().deployed_models[0].status.available_replica_count == 2


def test_the_log_has_the_containers_json(client, deploy):
    """Source (read): https://cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging (container
    logging)."""
    line = json.dumps({"severity": "WARNING", "message": "low on memory"})
    deploy("1", "--say", line)
    entries = [one for one in client.google.log.entries if one["severity"] == "WARNING"]
    assert [one["jsonPayload"]["message"] for one in entries] == ["low on memory"]
    assert entries[0]["labels"]["deployed_model_id"] == "1"
