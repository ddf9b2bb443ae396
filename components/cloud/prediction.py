"""One online prediction request, from JSON to JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.cloud import aiplatform_v1


def predict(
    client: aiplatform_v1.PredictionServiceClient, endpoint: str, instances: list[object], seconds: float
) -> tuple[str, list[Any]]:
    """Send instances to an endpoint, without retries; return the id of the deployed model that answered, and its
    predictions.

    Args:
        client: The client of the endpoint's address.
        endpoint: The endpoint's resource name.
        instances: The instances, as JSON values.
        seconds: Time-out.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: The request failed.
    """
    from google.protobuf import json_format, struct_pb2

    values = [json_format.ParseDict(instance, struct_pb2.Value()) for instance in instances]
    answer = client.predict(endpoint=endpoint, instances=values, timeout=seconds, retry=None)
    predictions = json_format.MessageToDict(type(answer).pb(answer)).get("predictions", [])
    return str(answer.deployed_model_id), list(predictions)
