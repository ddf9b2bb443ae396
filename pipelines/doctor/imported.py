"""Whether the project's modules import: tried in a process of its own, and again only when something has changed.

Most of the seconds before a run begins would be those in which that process imports the engine's libraries. What it
imported from the project is remembered: a file in the user's cache, named by the digest of all else that decides.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from slipway.core import forking, integrity
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.paths import cached
from slipway.core.supervision import Child
from slipway.pipelines.platforms.base import CheckWarning

PROGRAM = "slipway.trainer.engines.user_modules"
SECONDS, SILENT_SECONDS, POLL_SECONDS = 120.0, 4.0, 0.02


def check(references: dict[str, str], engine: str, folder: Path) -> None:
    """Import modules as training does, unless the same files imported before.

    Args:
        references: module:function of each setting.
        engine: The engine, whose libraries are imported first.
        folder: The project's.

    Raises:
        UserError: One cannot be imported, or lacks its function.
        CheckWarning: The import takes minutes.
    """
    memory = _memory(references, engine, folder)
    if _is_remembered(memory, folder):
        return
    command = [sys.executable, "-m", PROGRAM, engine, json.dumps(references), str(folder)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    child = Child("modules", command, environment, lambda _: None, fork=forking.can_run(command))
    child.read()
    try:
        if not _ends(child, SILENT_SECONDS):
            print(f"importing {', '.join(references.values())}", file=sys.stderr, flush=True)
            if not _ends(child, SECONDS):
                raise CheckWarning(
                    f"importing {', '.join(references.values())} takes more than {SECONDS:.0f} s",
                    "move what takes long into the function",
                )
    finally:
        child.signal(signal.SIGKILL)
    child.finish()
    lines = [line for line in child.tail if line.strip()]
    try:
        outcome = json.loads(lines[-1])
        problem, digests = outcome["problem"], outcome["digests"]
    except (IndexError, ValueError, TypeError, KeyError):
        raise UserError(
            f"Importing {', '.join(references.values())} ended its process with status {child.status}: "
            f"{lines[-1] if lines else 'no message'}",
            fix="fix what the module does when it is imported",
        ) from None
    if problem is not None:
        raise UserError.from_dict(problem)
    with contextlib.suppress(OSError):  # a cache that cannot be written
        memory.parent.mkdir(parents=True, exist_ok=True)
        replace_file(memory, json.dumps(digests).encode(), durable=False)


def _ends(child: Child, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while child.is_running:
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _memory(references: dict[str, str], engine: str, folder: Path) -> Path:
    """Return the file for what decides besides the imported files: packages, and which modules the project has."""
    paths = [Path(path) for path in sys.path if path]
    installed = [(str(path), path.stat().st_mtime_ns) for path in paths if path.is_dir() and path != folder]
    modules = sorted({path.relative_to(folder).parts[0] for path in (*folder.glob("*.py"), *folder.glob("*/*.py"))})
    decides = (sys.version, os.environ.get("PYTHONPATH"), installed, modules, engine, references)
    return cached(f"imports/{hashlib.sha256(repr(decides).encode()).hexdigest()}")


def _is_remembered(memory: Path, folder: Path) -> bool:
    try:
        digests = json.loads(memory.read_bytes())
        return all(integrity.file_digest(folder / name) == digests[name] for name in digests)
    except (OSError, ValueError):
        return False
