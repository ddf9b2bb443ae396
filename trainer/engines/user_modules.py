"""Import the user's modules in a process of its own: `python -m slipway.trainer.engines.user_modules ENGINE JSON`.

The last line of its output is the first problem as JSON, or null. The second argument maps settings to module:function.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

from slipway.core.errors import UserError
from slipway.trainer.engines import builder
from slipway.trainer.engines.quick_import import import_tensorflow
from slipway.trainer.engines.table import ENGINES


def first_problem(references: dict[str, str]) -> UserError | None:
    """Import the modules, and return the first error, with the user's own line that led to it; None if all exist."""
    for setting, reference in references.items():
        try:
            builder.load(reference, setting, "a function of the module")
        except UserError as error:
            if line := _own_line(error.__cause__):
                error.message += f" ({line})"
            return error
    return None


def _own_line(error: BaseException | None) -> str | None:
    """Return the last line of the project's files in an exception's traceback, as `FILE:LINE: CODE`."""
    if isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno, error.text)]
    else:
        stack = traceback.extract_tb(error.__traceback__) if error else []
        frames = [(frame.filename, frame.lineno, frame.line) for frame in stack]
    here = Path.cwd()
    for name, number, text in reversed(frames):
        path = Path(name)
        if path.is_relative_to(here) and "site-packages" not in path.parts and not path.is_relative_to(_SLIPWAY):
            return f"{path.relative_to(here)}:{number}: {(text or '').strip()}"
    return None


_SLIPWAY = Path(__file__).resolve().parents[1]


if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = ENGINES[sys.argv[1]].keras_backend
    asked = json.loads(sys.argv[2])
    files = [Path(*name.partition(":")[0].split(".")).with_suffix(".py") for name in asked.values()]
    if any(file.is_file() and b"keras" in file.read_bytes() for file in files):
        with contextlib.suppress(ImportError):  # the module's own import then says what is missing
            import_tensorflow(sys.argv[1])  # as training does: in half the time of the module's own import
    problem = first_problem(asked)
    print(f"\n{json.dumps(problem.as_dict() if problem else None)}", flush=True)
    os._exit(0)  # not waiting for threads that a module has started
