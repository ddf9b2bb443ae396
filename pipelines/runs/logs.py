"""Read or follow a run's logs, without the start-up messages of libraries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from slipway.core.errors import UserError
from slipway.core.noise import is_noise
from slipway.pipelines.runs.record import RunFolder

POLL_SECONDS = 0.2


def read(folder: RunFolder, step: str | None, *, follow: bool, raw: bool = False) -> Iterator[str]:
    """Yield the lines of one step's log, or of all logs in order of the steps; with `follow`, until the run has ended.

    Args:
        folder: The run's folder.
        step: A step's name, "pipeline" for the log of the pipeline runner, or None for all.
        follow: Whether to wait for new lines while the run is running.
        raw: Whether to keep the start-up messages of libraries.

    Raises:
        UserError: The run has no step of that name, or it has not started.
    """
    names = check_step(folder, step, "pipeline")
    steps = [step] if step else names
    positions = dict.fromkeys(steps, 0)
    untitled = [] if step else list(names)
    while True:
        running = folder.read().status == "running"
        for name in steps:
            lines = _new_lines(folder.logs / f"{name}.log", positions, name, ended=not running)
            lines = [line for line in lines if raw or not is_noise(line)]
            if lines and name in untitled:
                untitled.remove(name)
                yield f"==> {name}"
            yield from lines
        if not (follow and running):
            return
        time.sleep(POLL_SECONDS)


def check_step(folder: RunFolder, step: str | None, *also: str) -> list[str]:
    """Return the names of a run's steps, after checking that `step` is one of them.

    Args:
        folder: The run's folder.
        step: The name to check, or None.
        also: Other names that are allowed.

    Raises:
        UserError: The run has no step of that name.
    """
    names = [record.name for record in folder.read().steps]
    if step is not None and step not in (*names, *also):
        raise UserError.unknown("step", step, names, setting="--step")
    return names


def _new_lines(path: Path, positions: dict[str, int], name: str, *, ended: bool) -> list[str]:
    """Return complete lines written since the last call; after the run has ended, also an incomplete last line."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(positions[name])
        data = file.read()
    data = data if ended else data[: data.rfind(b"\n") + 1]
    positions[name] += len(data)
    return data.decode(errors="replace").splitlines()
