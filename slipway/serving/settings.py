"""How a model is served: the section `serve` of a configuration, the container that Vertex AI starts, and its server.

Imports nothing of the server, so that the command line and the steps can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from slipway.core import dsse
from slipway.core.dsse import Key
from slipway.core.errors import UserError
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

# The file of the public key with which the model must be signed.
KEY_VARIABLE = "SLIPWAY_SERVE_KEY"

COMMAND = ("python", "-m", "slipway.serving")
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
        "command": list(COMMAND),
        "ports": [{"container_port": PORT}],
        "health_route": HEALTH_ROUTE,
        "predict_route": PREDICT_ROUTE,
        "env": [{"name": MODULE_VARIABLE, "value": module}] if module else [],
    }


@dataclass(frozen=True)
class Limits:
    """How requests are batched.

    Attributes:
        max_batch: The most examples in a batch; an image counts as one for each megapixel.
        max_delay: The longest time, in seconds, that requests wait for others while the model is idle.
        max_queue: The most examples that wait, with at most `max_batch` of each request.
        timeout: Seconds after which a waiting request fails.
    """

    max_batch: int = 64
    max_delay: float = 0.002
    max_queue: int = 1024
    timeout: float = 30.0


@dataclass(frozen=True)
class ServerSettings:
    """How the server answers.

    Attributes:
        host: The address it listens on.
        port: Its port.
        health_route: Answers 200 once the model has predicted, 503 before and while stopping.
        predict_route: Accepts POST of JSON, or of an image.
        limits: How requests are batched; a request that takes longer than `timeout` to arrive fails, too.
        origins: The origins of pages that may send requests, such as https://example.com.
        max_header: The most bytes of a request's header, counted each time some have arrived.
        max_body: The most bytes of a request's body.
        max_bodies: The most bytes of the bodies of all requests in progress.
        linger: Seconds in which a stopping server still accepts requests, so that nobody sends to a closed port.
        watch: Seconds between two checks whether the model has changed.
        retry: Seconds between two attempts to load a model that repeatedly cannot be loaded.
        key: The public key with which a model must be signed; None: it need not be.
    """

    host: str = "0.0.0.0"
    port: int = PORT
    health_route: str = HEALTH_ROUTE
    predict_route: str = PREDICT_ROUTE
    limits: Limits = field(default_factory=Limits)
    origins: tuple[str, ...] = ()
    max_header: int = 64 << 10
    max_body: int = 10 << 20
    max_bodies: int = 256 << 20
    linger: float = 1.0
    watch: float = 1.0
    retry: float = 5.0
    key: Key | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ServerSettings:
        """Return the settings of Vertex AI's variables, which any platform may set.

        Raises:
            UserError: The port is not a number, a route does not begin with a slash, or the key cannot be read.
        """
        port = environment.get(PORT_VARIABLE) or str(PORT)
        if not port.isdigit() or int(port) > 65535:
            fix = f"{PORT_VARIABLE}={PORT}"
            raise UserError(f"{port!r} is not a port.", setting=PORT_VARIABLE, value=port, fix=fix)
        key = environment.get(KEY_VARIABLE)
        return cls(
            port=int(port),
            health_route=_route(environment, HEALTH_VARIABLE, HEALTH_ROUTE),
            predict_route=_route(environment, PREDICT_VARIABLE, PREDICT_ROUTE),
            key=dsse.read_key(key, private=False, setting=KEY_VARIABLE) if key else None,
        )


def _route(environment: Mapping[str, str], variable: str, default: str) -> str:
    route = environment.get(variable) or default
    if not route.startswith("/"):
        raise UserError(f"{route!r} is not a route.", setting=variable, value=route, fix=f"{variable}=/{route}")
    return route
