"""Watch a run on one candidate after the other: without quota or capacity, it is submitted again on the next one."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.pipelines.platforms.vertex.candidates import title_of
from slipway.pipelines.platforms.vertex.run import VertexRun, pause, submitted
from slipway.pipelines.runs.record import RunFolder, RunRecord, Watcher


def watch(folder: RunFolder, watcher: Watcher) -> RunRecord:
    """Watch a run until it has ended on a candidate, or there is none left; return its record."""
    run, record = VertexRun(folder), folder.read()
    while True:
        if record.status == "running":
            record = run.watch(record, watcher)
        if not _moves(run, record):
            return record
        record = _move(run, record, watcher)


def _moves(run: VertexRun, record: RunRecord) -> bool:
    """Return whether the run continues on the next candidate."""
    return record.status == "failed" and record.error is not None and record.error.moves and bool(run.others)


def _move(run: VertexRun, record: RunRecord, watcher: Watcher) -> RunRecord:
    """Submit the run on the next candidate, unless another command does; return its record."""
    shown = record

    def say(text: str) -> None:
        watcher.event(shown, {"step": shown.steps[0].name, "event": "message", "text": text})

    while run.folder.lock is None and run.folder.holder() is not None:  # another command watches it, too
        pause()
        record = run.folder.read()
        if not _moves(run, record):
            run.take_recorded(record)
            return record
    with run.executed():
        latest = run.folder.read()
        run.take_recorded(latest)
        if not _moves(run, latest) or latest.error is None:
            return latest
        left = title_of(run.config)
        run.take_next(latest)
        say(f"moving from {left} to {title_of(run.config)}: {latest.error.message}")
        try:
            return submitted(run, latest, say)[1]
        except UserError as error:
            return run.not_submitted(error, latest)
