"""The model that is served, and that it is loaded again whenever its folder has changed."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from slipway.core import statement
from slipway.core.errors import UserError
from slipway.serving import instances
from slipway.serving import model as models
from slipway.serving.metrics import ServerMetrics
from slipway.serving.model import Model, NotServable
from slipway.serving.settings import ServerSettings
from slipway.trainer.distributed.verification import verify_loaded

logger = logging.getLogger(__name__)


class Served(NamedTuple):
    """What is to be served: a name for the log, the model's folder, and the function of a custom model.

    `signed_as` is the NAME/VERSION that the signature of a registered version must have.
    """

    name: str
    folder: Path
    module: str | None = None
    signed_as: str | None = None


class Reloader:
    """Holds the model that is served, and replaces it when `source` returns another one.

    Args:
        settings: How often it checks, and the key with which models must be signed.
        source: Returns the model to serve now; called again to see whether it has changed.
        metrics: Counts the loads.

    Attributes:
        model: The model that is served; None until the first one has been loaded.
        name: Its name.
        load: Identifies this load of it: another model may have the same name, such as a folder's.
        failure: Why the newest model could not be loaded; None if it was.
        failed: The name of that model.
    """

    def __init__(self, settings: ServerSettings, source: Callable[[], Served], metrics: ServerMetrics) -> None:
        self.model: Model | None = None
        self.name = self.load = ""
        self.failure: Exception | None = None
        self.failed = ""
        self._settings, self._source, self._metrics = settings, source, metrics
        self._identity: object = None

    @property
    def warm_sizes(self) -> tuple[int, ...]:
        """Batch sizes whose prediction prepares the model for any batch."""
        return (1, self._settings.limits.max_batch)

    @property
    def problem(self) -> str | None:
        """Why the newest model is not served, for people; None if it is."""
        return f"could not load {self.failed}: {instances.sentence(self.failure)}" if self.failure else None

    @property
    def why_no_model(self) -> str:
        """Why no model is served."""
        return f"The server {self.problem}." if self.problem else "The model is not loaded yet."

    def use(self, model: Model, served: Served) -> None:
        """Serve a model that is loaded and warm, until another replaces it."""
        self._replace(model, served.name, _identity(served))
        self.failure = None

    def verify(self, served: Served) -> None:
        """Raise UserError if a model must be signed and is not."""
        if self._settings.key is not None:
            statement.verified_data_set(served.folder, self._settings.key, served.signed_as)

    def _replace(self, model: Model, name: str, identity: object) -> None:
        self.model, self.name, self.load, self._identity = model, name, uuid.uuid4().hex[:8], identity

    async def watch(self) -> UserError:
        """Load the model, again whenever it has changed, and until it loads; a model that cannot replaces none.

        Return the user's mistake for which nothing can be served, if there is one.
        """
        while True:
            delay, name = self._settings.watch, "the model"
            try:
                served = await _in_daemon(self._source)
                name = served.name
                identity = await asyncio.to_thread(_identity, served)
                if identity != self._identity:
                    self._replace(await asyncio.to_thread(self._load, served), name, identity)
                    self._metrics.loads.labels("ok").inc()
                    logger.info("serving %s", name)
                self.failure = None
            except Exception as error:  # TensorFlow and PyTorch may raise anything for a damaged file
                if (self.failed, str(self.failure)) != (name, str(error)):
                    reason, kept = instances.sentence(error), self.name or "no model"
                    logger.error("could not load %s: %s; serving %s, and trying again", name, reason, kept)
                    self._metrics.loads.labels("error").inc()
                else:  # a load that fails for good is not worth a core
                    delay = max(delay, self._settings.retry)
                self.failure, self.failed = error, name
                if self.model is None and isinstance(error, UserError):
                    return error
            await asyncio.sleep(delay)

    def _load(self, served: Served) -> Model:
        self.verify(served)
        loaded = models.load(served.folder, served.module)
        verify_loaded()
        instances.warm_up(loaded, self.warm_sizes)
        return loaded


def _identity(served: Served) -> tuple[object, ...]:
    """Return what changes when a model's folder is replaced."""
    files = []
    for path in sorted(served.folder.iterdir()):
        status = path.stat()
        files.append((path.name, status.st_ino, status.st_mtime_ns, status.st_size))
    if not files:
        raise NotServable(f"{served.folder} is empty")
    return served.folder, served.module, *files


async def _in_daemon(source: Callable[[], Served]) -> Served:
    """Return what `source` returns. It may download, so the end of the server does not wait for it.

    asyncio waits for its own threads when the loop is closed.
    """
    future: Future[Served] = Future()

    def call() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(source())
            except BaseException as error:
                future.set_exception(error)

    threading.Thread(target=call, name="source", daemon=True).start()
    return await asyncio.wrap_future(future)
