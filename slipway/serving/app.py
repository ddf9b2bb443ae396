"""The prediction server: Vertex AI's contract and plain HTTP, health, metrics, and a page to try the model.

One process owns the model. It answers on the routes and the port of the variables AIP_*, or on their defaults, also
outside of Vertex AI.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from slipway.core.values import JsonObject
from slipway.serving.batching import Batcher
from slipway.serving.bodies import Bodies
from slipway.serving.connections import Lifecycle, Listener
from slipway.serving.metrics import ServerMetrics
from slipway.serving.page import Page
from slipway.serving.predict_route import PredictRoute
from slipway.serving.reloader import Reloader, Served
from slipway.serving.sampling import RequestLog
from slipway.serving.settings import ServerSettings

# How long the event loop and the model's thread may hold the interpreter while the other one waits for it. Python's
# 5 ms are longer than a prediction.
SWITCH_SECONDS = 0.0002
# The addresses of TensorFlow Serving (/v1/models/NAME:predict) and of Vertex AI's endpoints, as clients have them.
USUAL_ROUTE = "/v1/{path:path}:predict"

logger = logging.getLogger(__name__)


class Server:
    """The parts of the server, and its application.

    Args:
        settings: How it answers.
        source: Returns the model to serve now; called again to see whether it has changed.
        log: Receives the requests that were answered; None for none.
    """

    def __init__(self, settings: ServerSettings, source: Callable[[], Served], log: RequestLog | None = None) -> None:
        self.settings, self.lifecycle, self.metrics = settings, Lifecycle(), ServerMetrics()
        self.reloader = Reloader(settings, source, self.metrics)
        self.batcher = Batcher(settings.limits, self.metrics.add_batch)
        self.metrics.watch_queue(lambda: self.batcher.waiting)
        self.bodies = Bodies(settings)
        self._log = log

    def app(self) -> Starlette:
        """Return the ASGI application."""
        predict = PredictRoute(
            reloader=self.reloader, bodies=self.bodies, batcher=self.batcher, metrics=self.metrics,
            lifecycle=self.lifecycle, log=self._log,
        )  # fmt: skip
        return Starlette(
            routes=[
                *(Route(path, predict, methods=["POST"]) for path in (self.settings.predict_route, USUAL_ROUTE)),
                Route(self.settings.health_route, self._health),
                Route("/metrics", self.metrics.answer),
                *Page(self.settings, self.reloader).routes(),
            ],
            lifespan=self._lifespan,
            exception_handlers={404: self._no_route, 405: self._no_route},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.batcher.start()
        watcher = asyncio.create_task(self._watch())
        yield
        self.lifecycle.stopping = True
        watcher.cancel()
        await self.batcher.stop()
        logger.info("stopped")

    async def _watch(self) -> None:
        self.lifecycle.refusal = await self.reloader.watch()

    async def _health(self, _request: Request) -> Response:
        problem, stopping = self.reloader.problem, self.lifecycle.stopping
        if self.reloader.model is not None and not stopping:
            return PlainTextResponse(f"serving {self.reloader.name}; {problem}" if problem else "ok")
        return PlainTextResponse("stopping" if stopping else problem or "loading the model", 503)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        """Answer a request for another address, or with another method, with the addresses that there are."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        usual = USUAL_ROUTE.replace("{path:path}", "models/NAME")
        message = (
            f"{request.method} {request.url.path} is not answered here. Predictions: POST "
            f"{self.settings.predict_route} (or {usual}); health: GET {self.settings.health_route}; "
            "the model's inputs: GET /model."
        )
        return JSONResponse({"error": {"code": status, "message": message}}, status)


def run(server: Server) -> None:
    """Serve until SIGTERM or SIGINT; finish the accepted requests before returning.

    Raises:
        UserError: There is no model to serve until the user has fixed something.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    Listener(server.app(), server.settings, server.lifecycle).run()
    if server.lifecycle.refusal is not None:
        raise server.lifecycle.refusal


class JsonLines(logging.Formatter):
    """Formats log records as JSON objects, as log services expect them."""

    def format(self, record: logging.LogRecord) -> str:
        values: JsonObject = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "severity": record.levelname,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


def log_as_json() -> None:
    """Log JSON lines on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
