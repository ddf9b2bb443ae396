"""How a model is served: the section `serve` of a configuration, and the container that Vertex AI starts.

Imports no server, so that the command line and the steps can read it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipway.core.values import JsonObject
from slipway.trainer.hooks import FUNCTION_PATTERN
from slipway.trainer.settings import Settings

# Variables of Vertex AI's contract for prediction containers; any platform may set them.
PORT_VARIABLE = "AIP_HTTP_PORT"
HEALTH_VARIABLE = "AIP_HEALTH_ROUTE"
PREDICT_VARIABLE = "AIP_PREDICT_ROUTE"
STORAGE_VARIABLE = "AIP_STORAGE_URI"
# The function of a custom program's model.
MODULE_VARIABLE = "SLIPWAY_SERVE_MODULE"

PORT, HEALTH_ROUTE, PREDICT_ROUTE = 8080, "/health", "/predict"


class ServeSettings(Settings):
    """How the model is served once it is registered."""

    module: str | None = Field(
        default=None,
        pattern=f"^{FUNCTION_PATTERN}$",
        description="Function that loads a custom program's model, as module:function. It receives the model's folder, "
        "and returns a function from a list of instances to a list of predictions. null: the model is a SavedModel, "
        "or one of Slipway's trainer.",
    )
    accelerator: Literal["cpu", "gpu"] = Field(
        default="cpu",
        description="Hardware for which the serving image on Vertex AI is built. The image for gpu contains the CUDA "
        "libraries, is several times as large, and also runs on machines without GPUs.",
    )


def container_spec(image: str, module: str | None = None) -> JsonObject:
    """Return Slipway's serving image as a container of Vertex AI's Model Registry (ModelContainerSpec)."""
    return {
        "image_uri": image,
        "ports": [{"container_port": PORT}],
        "health_route": HEALTH_ROUTE,
        "predict_route": PREDICT_ROUTE,
        "env": [{"name": MODULE_VARIABLE, "value": module}] if module else [],
    }
