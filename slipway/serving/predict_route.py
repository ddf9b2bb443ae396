"""The route that answers prediction requests."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from slipway.core.values import JsonObject
from slipway.serving import instances
from slipway.serving.batching import Batcher, Busy, Stopping
from slipway.serving.bodies import Bodies, Refused
from slipway.serving.connections import Lifecycle
from slipway.serving.instances import ModelFailed
from slipway.serving.kinds import BadRequest
from slipway.serving.metrics import ServerMetrics
from slipway.serving.model import Model
from slipway.serving.reloader import Reloader
from slipway.serving.sampling import RequestLog

JSON = b"application/json"
Headers = list[tuple[bytes, bytes]]

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class PredictRoute:
    """An ASGI application: without Starlette's request and response, a request costs less."""

    reloader: Reloader
    bodies: Bodies
    batcher: Batcher
    metrics: ServerMetrics
    lifecycle: Lifecycle
    log: RequestLog | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a prediction request; see `slipway.serving.instances` for its forms."""
        started = time.monotonic()
        status, fields = 200, {}
        answered_by: Headers = []
        try:
            reloader, model = self.reloader, self.reloader.model
            if model is None:
                raise Refused(503, reloader.why_no_model)
            answered_by = [
                (b"slipway-model", quote(reloader.name).encode()),
                (b"slipway-model-load", reloader.load.encode()),
            ]
            content = await self._answer(model, scope, receive)
            body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        except BadRequest as error:
            status, fields = 400, error.as_dict()
        except Refused as error:
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
        self.metrics.add_request(status, seconds)
        if status != 200:
            level = logging.ERROR if status == 500 else logging.WARNING
            logger.log(level, "request failed", extra={"fields": {"status": status, "seconds": round(seconds, 4)}})

    async def _send(self, send: Send, status: int, body: bytes, headers: Headers) -> None:
        headers = [(b"content-type", JSON), (b"content-length", str(len(body)).encode()), *headers]
        if status in (429, 503):
            headers.append((b"retry-after", b"1"))
        # The client sends its next request elsewhere, or the rest of this one.
        if self.lifecycle.stopping or status == 408:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, model: Model, scope: Scope, receive: Receive) -> JsonObject:
        """Return the predictions, and as metadata the categories that the training data does not have, if any."""
        headers = dict(scope["headers"])
        body, media_type = await self.bodies.read(headers, receive), headers.get(b"content-type", JSON)
        try:
            body = self.bodies.unpacked(body, headers.get(b"content-encoding", b"identity").lower())
            arrays = instances.of_body(model, body, media_type)
            answered = await self.batcher.predict(model, arrays)
            if self.log is not None:
                self.log.add(body, media_type)
            unknown = {
                name: {"count": len(values), "first": values[0]} for name, values in model.unknown(arrays).items()
            }
            return {"predictions": answered, **({"metadata": {"unknown": unknown}} if unknown else {})}
        finally:
            self.bodies.release(body)
