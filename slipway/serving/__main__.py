"""`python -m slipway.serving`: serve the model in AIP_STORAGE_URI, as Vertex AI's prediction containers do."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.core.paths import local_path
from slipway.serving.settings import MODULE_VARIABLE, STORAGE_VARIABLE, ServerSettings
from slipway.trainer.distributed.verification import verify_machine

if TYPE_CHECKING:
    from slipway.serving.reloader import Served

logger = logging.getLogger(__name__)


def main() -> int:
    """Serve until the process is asked to stop; return the exit code."""
    # The kernel ignores a signal to PID 1 that has no handler. The server sets its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from slipway.serving import app

    app.log_as_json()
    uri = sys.argv[1] if len(sys.argv) > 1 else os.environ.get(STORAGE_VARIABLE, "")
    try:
        verify_machine(os.environ)
        with model_source(uri, os.environ.get(MODULE_VARIABLE) or None) as source:
            app.run(app.Server(ServerSettings.of(os.environ), source))
    except UserError as error:
        details = {name: str(value) for name, value in error.as_dict().items() if value is not None}
        logger.error("%s", error.message, extra={"fields": details})
        return 2
    return 0


@contextlib.contextmanager
def model_source(uri: str, module: str | None) -> Iterator[Callable[[], Served]]:
    """Yield the function that returns the model to serve; its first call downloads it if it is in Cloud Storage.

    Raises:
        UserError: The model's folder does not exist on this machine.
    """
    from slipway.serving.reloader import Served
    from slipway.serving.storage import SCHEME, download

    if not uri.startswith(SCHEME):
        folder = local_path(uri)
        if not uri or not folder.is_dir():
            raise UserError(
                f"There is no model in {uri}." if uri else f"{STORAGE_VARIABLE} is not set.",
                setting=STORAGE_VARIABLE,
                value=uri,
                allowed="a model's folder, or a gs:// URI",
                fix="python -m slipway.serving FOLDER",
            )
        yield lambda: Served(str(folder), folder, module)
        return
    # At the end a download may still be writing there.
    with tempfile.TemporaryDirectory(prefix="slipway-model-", ignore_cleanup_errors=True) as temporary:

        @functools.cache
        def downloaded() -> Served:
            folder = Path(temporary, "model")
            logger.info("downloaded %s: %s", uri, download(uri, folder))
            return Served(uri, folder, module)

        yield downloaded


if __name__ == "__main__":
    sys.exit(main())
