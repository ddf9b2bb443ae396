"""Pub/Sub over HTTP: topics, their policies, and the messages that are published to them."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import add_policy_routes
from tests.fakes.world import World

SERVICE = "pubsub.googleapis.com"
TOPIC = "/v1/projects/{project}/topics/{topic}"
# https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names
NAME = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9_.~+%-]{2,254}")
# https://cloud.google.com/pubsub/quotas#resource_limits
LONGEST_KEY = 256
LONGEST_VALUE = 1024


class FakePubSub:
    """Topics by full name with the project's id, and the messages of each: data as JSON, and attributes."""

    def __init__(self, service: HttpService, world: World) -> None:
        self._world = world
        self.topics: dict[str, list[tuple[dict[str, Any], dict[str, str]]]] = {}
        add_policy_routes(service, world, TOPIC, lambda request, verb: self._name(request, f"pubsub.topics.{verb}"))

        @service.route("PUT", TOPIC)
        def create(request: Request) -> Any:
            name = self._name(request, "pubsub.topics.create", exists=False)
            if not NAME.fullmatch(request.parts["topic"]):
                raise ServiceError(400, f"Invalid resource name given (name={name}).")
            if name in self.topics:
                raise ServiceError(409, f"Resource already exists in the project (resource={request.parts['topic']}).")
            self.topics[name] = []
            world.writes["topic"] += 1
            return {"name": name}

        @service.route("GET", TOPIC)
        def get(request: Request) -> Any:
            return {"name": self._name(request, "pubsub.topics.get")}

        @service.route("POST", f"{TOPIC}:publish")
        def publish(request: Request) -> Any:
            name = self._name(request, "pubsub.topics.publish")
            messages = request.json.get("messages", [])
            if not messages:
                raise ServiceError(400, "The request contains no messages.")
            self.topics[name] += [_read(message) for message in messages]
            return {"messageIds": [str(world.number()) for _ in messages]}

    def _name(self, request: Request, permission: str, *, exists: bool = True) -> str:
        """Return the topic's name with the project's id; checks that it exists and the caller's permission."""
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, SERVICE)
        name = f"projects/{project.id}/topics/{request.parts['topic']}"
        if not self._world.allowed(request.caller, permission, name, f"projects/{project.id}"):
            raise ServiceError(403, "User not authorized to perform this action.")
        if exists and name not in self.topics:
            raise ServiceError(404, f"Resource not found (resource={request.parts['topic']}).")
        return name


def _read(message: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a message's data and attributes, after the service's validation."""
    if set(message) - {"data", "attributes", "orderingKey"}:
        raise ServiceError(400, f"Invalid JSON payload received. Unknown name {sorted(message)}: Cannot find field.")
    data, attributes = message.get("data", ""), message.get("attributes", {})
    if not data and not attributes:
        raise ServiceError(400, "One or more messages in the publish request is empty.")
    for key, value in attributes.items():
        if (
            not 0 < len(key.encode()) <= LONGEST_KEY
            or not isinstance(value, str)
            or len(value.encode()) > LONGEST_VALUE
        ):
            raise ServiceError(400, f"The attribute {key} is not valid.")
    try:
        return json.loads(base64.b64decode(data, validate=True)), attributes
    except binascii.Error:
        raise ServiceError(400, "Invalid value at 'messages[0].data' (TYPE_BYTES), Base64 decoding failed.") from None
