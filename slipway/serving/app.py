"""The prediction server: Vertex AI's contract and plain HTTP, health, metrics, and a page to try the model.

One process owns the model. It answers on the routes and the port of the variables AIP_*, or on their defaults, also
outside of Vertex AI.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import sys
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from slipway.core import statement
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.serving import connections, instances
from slipway.serving import model as models
from slipway.serving.batching import Batcher, Busy, Stopping
from slipway.serving.instances import ModelFailed
from slipway.serving.kinds import KINDS, BadRequest
from slipway.serving.model import Model, NotServable
from slipway.serving.sampling import RequestLog
from slipway.serving.settings import ServerSettings
from slipway.trainer.distributed.verification import verify_loaded
from slipway.trainer.export.examples import FILE_NAME as EXAMPLES_FILE

PAGE = Path(__file__).with_name("page.html")
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
JSON = b"application/json"
# How long the event loop and the model's thread may hold the interpreter while the other one waits for it. Python's
# 5 ms are longer than a prediction.
SWITCH_SECONDS = 0.0002
# Why the task of a request is cancelled.
EVICTED = "evicted"
GZIP = (b"gzip", b"x-gzip")
# Categories of an input that the page receives, to propose them and to recognize unknown ones.
MAX_CATEGORIES = 10_000
# Examples of the data set that the page shows, if a custom program has stored more.
MAX_EXAMPLES = 8

# The addresses of TensorFlow Serving (/v1/models/NAME:predict) and of Vertex AI's endpoints, as clients have them.
USUAL_ROUTE = "/v1/{path:path}:predict"
NO_EXAMPLES: JsonObject = {"instances": [], "keys": []}
Headers = list[tuple[bytes, bytes]]

logger = logging.getLogger(__name__)


class _Refused(Exception):
    """A request that is answered with an error; `status` is its HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Served(NamedTuple):
    """What is to be served: a name for the log, the model's folder, and the function of a custom model.

    `signed_as` is the NAME/VERSION that the signature of a registered version must have.
    """

    name: str
    folder: Path
    module: str | None = None
    signed_as: str | None = None


class Server:
    """The state of the server, and the handlers of its routes.

    Args:
        settings: How it answers.
        source: Returns the model to serve now; called again to see whether it has changed.
        log: Receives the requests that were answered; None for none.

    Attributes:
        model: The model that is served; None until the first one has been loaded.
        name: Its name.
        load: Identifies this load of it: another model may have the same name, such as a folder's.
        failure: Why the newest model could not be loaded; None if it was.
        failed: The name of that model.
        refusal: The user's mistake for which nothing can be served, and the server stops; None if there is none.
    """

    def __init__(self, settings: ServerSettings, source: Callable[[], Served], log: RequestLog | None = None) -> None:
        self.settings, self._log = settings, log
        self.model: Model | None = None
        self.name = self.load = ""
        self.failure: Exception | None = None
        self.failed = ""
        self.refusal: UserError | None = None
        self.stopping = False
        self._source = source
        self._seen: object = None
        self._bodies = 0
        self._incomplete: dict[asyncio.Task[Any] | None, int] = {}  # bytes that have arrived, oldest first
        self._registry = prometheus.CollectorRegistry()
        counter = functools.partial(prometheus.Counter, registry=self._registry)
        histogram = functools.partial(prometheus.Histogram, registry=self._registry)
        self._requests = counter("slipway_requests", "Prediction requests by HTTP status.", ["status"])
        self._loads = counter("slipway_model_loads", "Loaded models by outcome.", ["outcome"])
        self._seconds = histogram("slipway_request_seconds", "Time to answer requests.", buckets=SECONDS)
        sizes = histogram("slipway_batch_examples", "Examples per batch.", buckets=BATCH_SIZES)
        times = histogram("slipway_batch_seconds", "Time to predict batches.", buckets=SECONDS)

        def observe(examples: int, seconds: float) -> None:
            sizes.observe(examples)
            times.observe(seconds)

        self.batcher = Batcher(settings.limits, observe)
        queue = prometheus.Gauge("slipway_queue_examples", "Examples that wait.", registry=self._registry)
        queue.set_function(lambda: self.batcher.waiting)
        self._by_status: dict[int, Any] = {}

    @property
    def warm_sizes(self) -> tuple[int, ...]:
        """Batch sizes whose prediction prepares the model for any batch."""
        return (1, self.settings.limits.max_batch)

    def use(self, model: Model, served: Served) -> None:
        """Serve a model that is loaded and warm, until another replaces it."""
        self._replace(model, served.name, _identity(served))
        self.failure = None

    def verify(self, served: Served) -> None:
        """Raise UserError if a model must be signed and is not."""
        if self.settings.key is not None:
            statement.verified_data_set(served.folder, self.settings.key, served.signed_as)

    def _replace(self, model: Model, name: str, identity: object) -> None:
        self.model, self.name, self.load, self._seen = model, name, uuid.uuid4().hex[:8], identity

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [Route(path, self.predict, methods=["POST"]) for path in (self.settings.predict_route, USUAL_ROUTE)]
        for predict in routes:
            predict.app = self.predict  # without Starlette's request and response, a request costs less
        return Starlette(
            routes=[
                *routes,
                Route(self.settings.health_route, self.health),
                Route("/metrics", self.metrics),
                Route("/model", self.describe),
                Route("/examples", self.examples),
                Route("/", self.page),
            ],
            lifespan=self._lifespan,
            exception_handlers={404: self.no_route, 405: self.no_route},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.batcher.start()
        watcher = asyncio.create_task(self._watch())
        yield
        self.stopping = True
        watcher.cancel()
        await self.batcher.stop()
        logger.info("stopped")

    async def _watch(self) -> None:
        """Load the model, again whenever it has changed, and until it loads; a model that cannot replaces none."""
        while True:
            delay, name = self.settings.watch, "the model"
            try:
                served = await asyncio.to_thread(self._source)
                name = served.name
                identity = await asyncio.to_thread(_identity, served)
                if identity != self._seen:
                    self._replace(await asyncio.to_thread(self._load, served), name, identity)
                    self._loads.labels("ok").inc()
                    logger.info("serving %s", name)
                self.failure = None
            except Exception as error:  # TensorFlow and PyTorch may raise anything for a damaged file
                if (self.failed, str(self.failure)) != (name, str(error)):
                    reason, kept = instances.sentence(error), self.name or "no model"
                    logger.error("could not load %s: %s; serving %s, and trying again", name, reason, kept)
                    self._loads.labels("error").inc()
                else:  # a load that fails for good is not worth a core
                    delay = max(delay, self.settings.retry)
                self.failure, self.failed = error, name
                if self.model is None and isinstance(error, UserError):
                    self.refusal = error
                    return
            await asyncio.sleep(delay)

    def _load(self, served: Served) -> Model:
        self.verify(served)
        loaded = models.load(served.folder, served.module)
        verify_loaded()
        instances.warm_up(loaded, self.warm_sizes)
        return loaded

    # Routes

    async def predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a prediction request; see `slipway.serving.instances` for its forms."""
        started = time.monotonic()
        status, fields = 200, {}
        answered_by: Headers = []
        try:
            model = self.model
            if model is None:
                raise _Refused(503, f"{self._why_no_model}.")
            answered_by = [
                (b"slipway-model", quote(self.name).encode()),
                (b"slipway-model-load", self.load.encode()),
            ]
            content = await self._answer(model, scope, receive)
            body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        except BadRequest as error:
            status, fields = 400, error.as_dict()
        except _Refused as error:
            status, fields = error.status, {"message": str(error)}
        except Busy:
            status, fields = 429, {"message": "Too many requests are waiting. Try again later."}
        except Stopping:
            status, fields = 503, {"message": "The server is stopping."}
        except TimeoutError:
            status, fields = 504, {"message": "The prediction took too long."}
        except ModelFailed as error:
            status, fields = 500, {"message": f"The model failed: {error}."}
        except (TypeError, ValueError) as error:  # what a custom model returned is no JSON
            status, fields = 500, {"message": f"The predictions are not JSON: {error}."}
        if status != 200:
            body = json.dumps({"error": {"code": status, **fields}}).encode()
        await self._send(send, status, body, answered_by)
        seconds = time.monotonic() - started
        self._seconds.observe(seconds)
        if (counter := self._by_status.get(status)) is None:
            counter = self._by_status[status] = self._requests.labels(str(status))
        counter.inc()
        if status != 200:
            level = logging.ERROR if status == 500 else logging.WARNING
            logger.log(level, "request failed", extra={"fields": {"status": status, "seconds": round(seconds, 4)}})

    async def _send(self, send: Send, status: int, body: bytes, headers: Headers) -> None:
        headers = [(b"content-type", JSON), (b"content-length", str(len(body)).encode()), *headers]
        if status in (429, 503):
            headers.append((b"retry-after", b"1"))
        if self.stopping or status == 408:  # the client's next request goes elsewhere; or the rest of this one
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, model: Model, scope: Scope, receive: Receive) -> JsonObject:
        """Return the predictions, and as metadata the categories that the training data does not have, if any."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.settings.max_body:
            raise self._too_large()
        body, media_type = await self._body(receive), headers.get(b"content-type", JSON)
        try:
            body = self._unpacked(body, headers.get(b"content-encoding", b"identity").lower())
            arrays = instances.of_body(model, body, media_type)
            answered = await self.batcher.predict(model, arrays)
            if self._log is not None:
                self._log.add(body, media_type)
            unknown = {
                name: {"count": len(values), "first": values[0]} for name, values in model.unknown(arrays).items()
            }
            return {"predictions": answered, **({"metadata": {"unknown": unknown}} if unknown else {})}
        finally:
            self._bodies -= len(body)

    def _unpacked(self, body: bytes, encoding: bytes) -> bytes:
        """Return a body without its content encoding, and reserve the memory that it needs in addition."""
        if encoding == b"identity":
            return body
        if encoding not in GZIP:
            raise _Refused(415, f"The content encoding {encoding.decode('latin-1')} is unknown: use gzip, or none.")
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            unpacked = unpack.decompress(body, self.settings.max_body + 1)
        except zlib.error:
            raise BadRequest("The body is not gzip, as its content encoding says") from None
        if len(unpacked) > self.settings.max_body:
            raise self._too_large()
        if not unpack.eof:
            raise BadRequest("The body is gzip that is cut short")
        self._bodies += len(unpacked) - len(body)
        return unpacked

    async def _body(self, receive: Receive) -> bytes:
        """Return a body, and reserve its memory as it arrives."""
        task = asyncio.current_task()
        parts: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Refused(400, "The client closed the connection.")
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
                size += len(parts[-1])
                self._bodies += len(parts[-1])
                if size > self.settings.max_body:
                    raise self._too_large()
                if more:
                    self._incomplete[task] = size
                    self._evict()
                if self._bodies > self.settings.max_bodies:
                    raise Busy
        except BaseException as error:
            self._bodies -= size
            if task is not None and error.args == (EVICTED,):
                task.uncancel()
                raise _Refused(408, "The request took too long to arrive: others need its memory.") from None
            raise
        finally:
            self._incomplete.pop(task, None)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _evict(self) -> None:
        """Refuse the requests whose bodies have been arriving for longest, until the others fill half of the memory."""
        while sum(self._incomplete.values()) > self.settings.max_bodies // 2:
            oldest = next(iter(self._incomplete))
            del self._incomplete[oldest]
            if oldest is asyncio.current_task():
                raise Busy
            if oldest is not None:
                oldest.cancel(EVICTED)

    def _too_large(self) -> _Refused:
        return _Refused(413, f"The body has more than {self.settings.max_body:,} bytes.")

    @property
    def _problem(self) -> str | None:
        return f"could not load {self.failed}: {instances.sentence(self.failure)}" if self.failure else None

    @property
    def _why_no_model(self) -> str:
        return f"The server {self._problem}" if self._problem else "The model is not loaded yet"

    async def health(self, _request: Request) -> Response:
        if self.model is not None and not self.stopping:
            return PlainTextResponse(f"serving {self.name}; {self._problem}" if self._problem else "ok")
        return PlainTextResponse("stopping" if self.stopping else self._problem or "loading the model", 503)

    async def metrics(self, _request: Request) -> Response:
        return Response(prometheus.generate_latest(self._registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    async def describe(self, _request: Request) -> Response:
        """Describe the model for the page."""
        model = self.model
        if model is None:
            return JSONResponse({"error": {"code": 503, "message": f"{self._why_no_model}."}}, 503)
        stored = model.stored_inputs
        categories = {
            name: stored[name].vocabulary if name in stored and field.kind == "category" else ()
            for name, field in model.inputs.items()
        }
        inputs: list[JsonObject] = [
            {
                "name": model.source(name),
                "kind": field.kind,
                "is_text": KINDS[field.kind].is_text,
                "is_long": KINDS[field.kind].is_long,
                "media_types": KINDS[field.kind].media_types,
                "file": KINDS[field.kind].file,
                "shape": field.shape,
                "nullable": field.nullable,
                "categories": categories[name][:MAX_CATEGORIES],
                "unlisted": max(len(categories[name]) - MAX_CATEGORIES, 0),
                "example": instances.example(stored[name]) if name in stored else None,
                "usual": instances.usual(stored[name]) if name in stored else "",
            }
            for name, field in model.inputs.items()
        ]
        return JSONResponse(
            {
                "model": self.name,
                "load": self.load,
                "problem": self._problem,
                "task": model.task,
                "target": model.description.get("target_name"),
                "inputs": [] if model.is_custom else inputs,
                "classes": model.names,
                "predict": self.settings.predict_route,
                "max_body": self.settings.max_body,
            }
        )

    async def examples(self, _request: Request) -> Response:
        """Return the examples of the data set that are stored with the model, for the page; only to this machine."""
        model = self.model
        if model is None or not connections.is_loopback(self.settings.host):
            return JSONResponse(NO_EXAMPLES)
        return JSONResponse(await asyncio.to_thread(_examples, model))

    async def no_route(self, request: Request, error: Exception) -> Response:
        """Answer a request for another address, or with another method, with the addresses that there are."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        usual = USUAL_ROUTE.replace("{path:path}", "models/NAME")
        message = (
            f"{request.method} {request.url.path} is not answered here. Predictions: POST "
            f"{self.settings.predict_route} (or {usual}); health: GET {self.settings.health_route}; "
            "the model's inputs: GET /model."
        )
        return JSONResponse({"error": {"code": status, "message": message}}, status)

    async def page(self, _request: Request) -> Response:
        return FileResponse(PAGE, media_type="text/html")


def _examples(model: Model) -> JsonObject:
    """Return the examples that are stored with a model, by the inputs' names in the source."""
    stored = models.read_json(model.folder / EXAMPLES_FILE)
    stored_instances, keys = stored.get("instances"), stored.get("keys", [])
    if not isinstance(stored_instances, list) or not isinstance(keys, list):  # of a custom program
        return NO_EXAMPLES
    sources = {name: source for source, name in model.sources.items()}
    shown = [
        {sources.get(name, name): value for name, value in instance.items()} if isinstance(instance, dict) else instance
        for instance in stored_instances[:MAX_EXAMPLES]
    ]
    return {"instances": shown, "keys": [str(key) for key in keys[:MAX_EXAMPLES]]}


def _identity(served: Served) -> tuple[object, ...]:
    """Return what changes when a model's folder is replaced."""
    files = []
    for path in sorted(served.folder.iterdir()):
        status = path.stat()
        files.append((path.name, status.st_ino, status.st_mtime_ns, status.st_size))
    if not files:
        raise NotServable(f"{served.folder} is empty")
    return served.folder, served.module, *files


def run(server: Server) -> None:
    """Serve until SIGTERM or SIGINT; finish the accepted requests before returning.

    Raises:
        UserError: There is no model to serve until the user has fixed something.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    connections.Listener(server).run()
    if server.refusal is not None:
        raise server.refusal


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
