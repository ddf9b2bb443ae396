"""The addresses that the server answers, and what it says about any other one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core.manifest import SignatureName
from slipway.serving.app import Server
from slipway.serving.instances import of_body
from slipway.serving.kinds import Field
from slipway.serving.model import Model
from slipway.serving.reloader import Served
from slipway.serving.settings import ServerSettings
from tests.serving.test_instances import image


def answered(method: str, path: str) -> tuple[int, Any]:
    """Return the status and the JSON of an answer of a server that has not loaded its model yet."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    server = Server(ServerSettings(), lambda: Served("digits/1", Path()))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [],
        "query_string": b"",
        "raw_path": path.encode(),
    }
    asyncio.run(server.app()(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    "path",
    [
        "/predict",
        "/v1/models/digits:predict",
        "/v1/models/digits/versions/3:predict",
        "/v1/endpoints/1234:predict",
        "/v1/projects/my-project/locations/us-central1/endpoints/1234:predict",
    ],
)
def test_the_usual_addresses_are_those_of_predictions(path: str) -> None:
    status, content = answered("POST", path)
    assert (status, content["error"]["message"]) == (503, "The model is not loaded yet.")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/models/digits", 404),
        ("POST", "/invocations", 404),
        ("GET", "/predict", 405),
        ("POST", "/health", 405),
    ],
)
def test_other_addresses_name_the_right_one(method: str, path: str, status: int) -> None:
    found, content = answered(method, path)
    assert (found, content["error"]["code"]) == (status, status)
    assert content["error"]["message"].startswith(f"{method} {path} is not answered here. Predictions: POST /predict ")
    assert "/v1/models/NAME:predict" in content["error"]["message"]


@pytest.mark.parametrize("media_type", ["application/x-www-form-urlencoded", "application/json", "image/jpeg"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_is_recognized_whatever_its_media_type_says(media_type: str, kind: str) -> None:
    fields = {SignatureName("image_bytes"): Field("image", np.dtype(object), source="image")}
    model = Model(Path(), "classification", fields, ("probabilities",), {}, lambda _: (None, {}))
    data = image(kind=kind)
    assert of_body(model, data, media_type.encode())["image_bytes"].tolist() == [data]
