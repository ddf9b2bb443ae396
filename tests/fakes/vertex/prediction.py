"""PredictionService: requests are routed to the deployed models' servers; over gRPC and REST.

Limits: https://cloud.google.com/vertex-ai/docs/predictions/choose-endpoint-type: requests and answers of 1.5 MB and
60 s on shared public endpoints, of 10 MB and up to an hour on dedicated ones.
"""

from __future__ import annotations

import json
from typing import Any

from google.api import httpbody_pb2
from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format, struct_pb2

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import Raw, Request
from tests.fakes.vertex.endpoint_checks import failed_precondition
from tests.fakes.vertex.endpoints import EndpointService
from tests.fakes.vertex.serving import Answer
from tests.fakes.vertex.shapes import invalid

# "Request payload size exceeds the limit: 1572864 bytes." (ageron/handson-ml2#205)
SHARED_BYTES = 3 << 19
DEDICATED_BYTES = 10 << 20
# The service's status for a container's, by google.rpc; other statuses of a class have that of its first one.
STATUSES = (400, 401, 403, 404, 429, 500, 503)


class PredictionService:
    """`seconds` is the time limit of requests to shared endpoints, and to dedicated ones without one of their own."""

    def __init__(self, endpoints: EndpointService) -> None:
        self.seconds = 60.0
        self._endpoints = endpoints

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "Predict": (vertex.PredictRequest, self._predict),
            "RawPredict": (vertex.RawPredictRequest, self._raw_predict),
        }

    def rest(self, request: Request) -> Any:
        """Answer POST /v1/{endpoint}:predict and :rawPredict."""
        name, _, verb = request.path.removeprefix("/v1/").rpartition(":")
        if verb == "rawPredict":
            kind = request.headers.get("Content-Type") or "application/json"
            deployed, answer = self._send(name, request.caller, request.body, kind, dedicated=True)
            headers = {
                "Content-Type": answer.content_type,
                # "The response includes the following HTTP headers": PredictionService.RawPredict.
                "X-Vertex-AI-Endpoint-Id": name.rpartition("/")[2],
                "X-Vertex-AI-Deployed-Model-Id": deployed.id,
            }
            return Raw(answer.body, answer.status, headers)
        try:
            parsed = json_format.Parse(request.body, vertex.PredictRequest.pb(vertex.PredictRequest()))
        except json_format.ParseError as error:
            raise invalid(f"Invalid JSON payload received. {error}") from None
        answer = self._answer(name, request.caller, parsed, len(request.body), dedicated=True)
        return json_format.MessageToDict(vertex.PredictResponse.pb(answer))

    def _predict(self, request: vertex.PredictRequest, caller: str) -> vertex.PredictResponse:
        message = vertex.PredictRequest.pb(request)
        return self._answer(request.endpoint, caller, message, message.ByteSize(), dedicated=False)

    def _raw_predict(self, request: vertex.RawPredictRequest, caller: str) -> httpbody_pb2.HttpBody:
        body = request.http_body
        kind = body.content_type or "application/json"
        _, answer = self._send(request.endpoint, caller, body.data, kind, dedicated=False)
        self._check_status(answer)
        return httpbody_pb2.HttpBody(content_type=answer.content_type, data=answer.body)

    def _answer(self, name: str, caller: str, message: Any, size: int, *, dedicated: bool) -> vertex.PredictResponse:
        if not message.instances:
            raise invalid("The instances field is required and must not be empty.")
        content: dict[str, Any] = {"instances": [json_format.MessageToDict(one) for one in message.instances]}
        if message.HasField("parameters"):
            content["parameters"] = json_format.MessageToDict(message.parameters)
        body = json.dumps(content).encode()
        deployed, answer = self._send(name, caller, body, "application/json", dedicated=dedicated, size=size)
        self._check_status(answer)
        try:
            found = json.loads(answer.body)
            predictions = found["predictions"]
            values = [json_format.ParseDict(one, struct_pb2.Value()) for one in predictions]
        except (ValueError, KeyError, TypeError, json_format.ParseError):
            # python-aiplatform#1526; the code is not documented.
            raise failed_precondition(
                "Invalid response from prediction server - the response field predictions is missing. Response: "
                f"{answer.body[:200].decode(errors='replace')}"
            ) from None
        response = vertex.PredictResponse(
            deployed_model_id=deployed.id,
            model=deployed.model,
            model_version_id=deployed.model_version_id,
            model_display_name=deployed.display_name,
        )
        vertex.PredictResponse.pb(response).predictions.extend(values)
        return response

    def _send(
        self, name: str, caller: str, body: bytes, kind: str, *, dedicated: bool, size: int | None = None
    ) -> tuple[vertex.DeployedModel, Answer]:
        """Send a body to one of the endpoint's models; `dedicated`: the request came to the endpoint's own address.

        A dedicated endpoint has only that: Endpoint.dedicated_endpoint_enabled, "you won't be able to send request to
        the shared DNS".
        """
        with self._endpoints.routed(name, caller) as (endpoint, deployment):
            if endpoint.dedicated_endpoint_enabled and not dedicated:
                raise failed_precondition(
                    f"Endpoint {endpoint.name} is a dedicated endpoint, and must be accessed using its dedicated DNS "
                    f"name {endpoint.dedicated_endpoint_dns}."
                )
            limit = DEDICATED_BYTES if endpoint.dedicated_endpoint_enabled else SHARED_BYTES
            if (size or len(body)) > limit:
                raise invalid(f"Request payload size exceeds the limit: {limit} bytes.")
            own = endpoint.client_connection_config.inference_timeout.total_seconds()
            identity, deployed = endpoint.name.rpartition("/")[2], deployment.message
            try:
                answer = deployment.predict(body, kind, own or self.seconds)
            except ServiceError as error:
                self._endpoints.answers[identity, deployed.id, error.status] += 1
                raise
            self._endpoints.answers[identity, deployed.id, answer.status] += 1
            if len(answer.body) > limit:  # python-aiplatform#190
                raise invalid(
                    f"Failed to handle request. endpoint_id: {identity}, deployed_model_id: {deployed.id} with error: "
                    f"`Response size too large. Received at least {len(answer.body)} bytes; max is {limit} bytes.`"
                )
            return deployed, answer

    @staticmethod
    def _check_status(answer: Answer) -> None:
        """Raise the service's error for a container's; its body is the message, as in vertex-ai-samples#2122."""
        if answer.status != 200:
            status = answer.status if answer.status in STATUSES else 500 if answer.status >= 500 else 400
            raise ServiceError(status, answer.body.decode(errors="replace"))
