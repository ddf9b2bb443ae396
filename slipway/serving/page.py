"""The page to try the model, and what it requests: the model's description, and examples of the data set."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from slipway.core.values import JsonObject
from slipway.serving import instances
from slipway.serving.connections import is_loopback
from slipway.serving.kinds import KINDS
from slipway.serving.model import Model, read_json
from slipway.serving.reloader import Reloader
from slipway.serving.settings import ServerSettings
from slipway.trainer.export.examples import FILE_NAME as EXAMPLES_FILE

PAGE = Path(__file__).with_name("page.html")
# Categories of an input that the page receives, to propose them and to recognize unknown ones.
MAX_CATEGORIES = 10_000
# Examples of the data set that the page shows, if a custom program has stored more.
MAX_EXAMPLES = 8
NO_EXAMPLES: JsonObject = {"instances": [], "keys": []}


class Page:
    """The routes of the page."""

    def __init__(self, settings: ServerSettings, reloader: Reloader) -> None:
        self._settings, self._reloader = settings, reloader

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/model", self.describe), Route("/examples", self.examples), Route("/", self.page)]

    async def page(self, _request: Request) -> Response:
        return FileResponse(PAGE, media_type="text/html")

    async def describe(self, _request: Request) -> Response:
        """Describe the model."""
        reloader, model = self._reloader, self._reloader.model
        if model is None:
            return JSONResponse({"error": {"code": 503, "message": reloader.why_no_model}}, 503)
        return JSONResponse(
            {
                "model": reloader.name,
                "load": reloader.load,
                "problem": reloader.problem,
                "task": model.task,
                "target": model.description.get("target_name"),
                "inputs": [] if model.is_custom else _inputs(model),
                "classes": model.names,
                "predict": self._settings.predict_route,
                "max_body": self._settings.max_body,
            }
        )

    async def examples(self, _request: Request) -> Response:
        """Return the examples of the data set that are stored with the model; only to this machine."""
        model = self._reloader.model
        if model is None or not is_loopback(self._settings.host):
            return JSONResponse(NO_EXAMPLES)
        return JSONResponse(await asyncio.to_thread(_examples, model))


def _inputs(model: Model) -> list[JsonObject]:
    stored = model.stored_inputs
    categories = {
        name: stored[name].vocabulary if name in stored and field.kind == "category" else ()
        for name, field in model.inputs.items()
    }
    return [
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


def _examples(model: Model) -> JsonObject:
    """Return the examples that are stored with a model, by the inputs' names in the source."""
    stored = read_json(model.folder / EXAMPLES_FILE)
    stored_instances, keys = stored.get("instances"), stored.get("keys", [])
    if not isinstance(stored_instances, list) or not isinstance(keys, list):  # of a custom program
        return NO_EXAMPLES
    sources = {name: source for source, name in model.sources.items()}
    shown = [
        {sources.get(name, name): value for name, value in instance.items()} if isinstance(instance, dict) else instance
        for instance in stored_instances[:MAX_EXAMPLES]
    ]
    return {"instances": shown, "keys": [str(key) for key in keys[:MAX_EXAMPLES]]}
