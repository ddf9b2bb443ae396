"""Import the user's modules in a process of its own: `python -m slipway.trainer.engines.user_modules ENGINE JSON DIR`.

The second argument maps settings to module:function, the third is the project. The last line of its output is JSON: the
first problem, or null, and the SHA-256 of each file that was imported from the project, by its path there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

from slipway.core import integrity
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
    for name, number, text in reversed(frames):
        if path := _in_project(Path(name)):
            return f"{path}:{number}: {(text or '').strip()}"
    return None


def digests() -> dict[str, str]:
    """Return the SHA-256 of each file in the working folder that was imported, by its path."""
    names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = [path for name in names if name and (path := _in_project(Path(name))) and path.is_file()]
    return {str(path): integrity.file_digest(path) for path in paths}


def _in_project(file: Path) -> Path | None:
    """Return the path of one of the project's files in the working folder; None for any other file."""
    here = Path.cwd()
    if not file.is_relative_to(here) or file.is_relative_to(_SLIPWAY) or "site-packages" in file.parts:
        return None
    return file.relative_to(here)


_SLIPWAY = Path(__file__).resolve().parents[1]


if __name__ == "__main__":
    os.chdir(sys.argv[3])
    sys.path.insert(0, str(Path.cwd()))
    os.environ["KERAS_BACKEND"] = ENGINES[sys.argv[1]].keras_backend
    asked = json.loads(sys.argv[2])
    files = [Path(*name.partition(":")[0].split(".")).with_suffix(".py") for name in asked.values()]
    if any(file.is_file() and b"keras" in file.read_bytes() for file in files):
        with contextlib.suppress(ImportError):  # the module's own import then says what is missing
            import_tensorflow(sys.argv[1])  # as training does: in half the time of the module's own import
    problem = first_problem(asked)
    outcome = {"problem": problem.as_dict() if problem else None, "digests": digests()}
    sys.stderr.flush()
    print(f"\n{json.dumps(outcome)}", flush=True)
    os._exit(0)  # not waiting for threads that a module has started
