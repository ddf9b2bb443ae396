"""`python -m slipway.serving`: serve the model in AIP_STORAGE_URI, as Vertex AI's prediction containers do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from slipway.core.errors import UserError, report
from slipway.core.paths import local_path

STORAGE_VARIABLE = "AIP_STORAGE_URI"
MODULE_VARIABLE = "SLIPWAY_SERVE_MODULE"


def main() -> int:
    """Serve until the process is asked to stop; return the exit code."""
    from slipway.serving import app

    app.log_as_json()
    try:
        folder = model_folder(sys.argv[1] if len(sys.argv) > 1 else os.environ.get(STORAGE_VARIABLE, ""))
        settings = app.ServerSettings.of(os.environ)
    except UserError as error:
        report(error)
        return 2
    app.run(app.Server(settings, lambda: (str(folder), folder), os.environ.get(MODULE_VARIABLE) or None))
    return 0


def model_folder(uri: str) -> Path:
    """Return the folder of a URI.

    Raises:
        UserError: It does not exist on this machine.
    """
    folder = local_path(uri) if uri else None
    if folder is None or not folder.is_dir():
        raise UserError(
            f"There is no model in {uri}." if uri else f"{STORAGE_VARIABLE} is not set.",
            setting=STORAGE_VARIABLE,
            value=uri,
            allowed="a model's folder, or a gs:// URI in a bucket that is mounted in /gcs",
            fix="python -m slipway.serving FOLDER",
        )
    return folder


if __name__ == "__main__":
    sys.exit(main())
