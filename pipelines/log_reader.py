"""A run's logs, step by step or as they are written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pipelines.runs import RunFolder
from trainer.errors import UserError, nearest

POLL_SECONDS = 0.2


def read(folder: RunFolder, step: str | None, *, follow: bool) -> Iterator[str]:
    """The lines of one step's log, or of all steps' in their order; with `follow`, until the run has ended.

    Raises:
        UserError: The run has no step of that name, or it has not started.
    """
    names = check_step(folder, step, "pipeline")
    wanted = [step] if step else names
    positions = dict.fromkeys(wanted, 0)
    while True:
        running = folder.read().status == "running"
        for name in wanted:
            path = folder.logs / f"{name}.log"
            title = None if step or positions[name] else f"==> {name}"
            yield from _new_lines(path, positions, name, title, ended=not running)
        if not (follow and running):
            return
        time.sleep(POLL_SECONDS)


def check_step(folder: RunFolder, step: str | None, *also: str) -> list[str]:
    """The names of a run's steps.

    Args:
        folder: The run's.
        step: A step that is asked for.
        also: What may be asked for beside the steps.

    Raises:
        UserError: The run has no step of that name.
    """
    names = [record.name for record in folder.read().steps]
    if step is not None and step not in (*names, *also):
        near = nearest(step, names)
        raise UserError(
            f"The run {folder.run_id} has no step {step}.",
            setting="--step",
            value=step,
            allowed=", ".join(names),
            nearest=near,
            mend=f"slipway logs {folder.run_id}" + (f" --step {near}" if near else ""),
        )
    return names


def _new_lines(path: Path, positions: dict[str, int], name: str, title: str | None, *, ended: bool) -> Iterator[str]:
    """The whole lines that have come since the last look (all that is left, once the run has ended)."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(positions[name])
        data = file.read()
    data = data if ended else data[: data.rfind(b"\n") + 1]
    if data and title:
        yield title
    positions[name] += len(data)
    yield from data.decode(errors="replace").splitlines()
