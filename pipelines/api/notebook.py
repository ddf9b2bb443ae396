"""How runs are shown to Python's callers: one display that is updated in a notebook, lines elsewhere."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.text import Text

from slipway.core.values import JsonObject
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.runs import following, progress
from slipway.pipelines.runs.record import EVENTS, RunFolder, RunRecord, StepRecord, Watcher
from slipway.pipelines.table import STEPS

# A notebook's display is replaced at most so often: every message is stored in the saved notebook until it is replaced.
UPDATE_SECONDS = 0.5
MARKS = {status: Text.from_markup(mark).plain for status, mark in progress.MARKS.items()}
CURVE_WIDTH, CURVE_HEIGHT = 160, 36


class Display(Protocol):
    """A view of a run; a watcher that is entered, and left when the run has ended or nobody waits anymore."""

    def __enter__(self) -> Watcher: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Follower:
    """Passes a run's events and changes to a display; see `display_of`."""

    def __init__(self, folder: RunFolder, display: Display) -> None:
        self._display = display
        self._events = following.EventReader(folder.events_file)
        self._record: RunRecord | None = None

    def __enter__(self) -> Follower:
        self._watcher = self._display.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._display.__exit__(*error)

    def update(self, latest: RunRecord) -> None:
        """Show what has changed since the last call; `latest` is the run's record."""
        events = self._events.read()
        if self._record is None:  # it contains what the events so far have changed
            self._record = latest.model_copy(update={"steps": [StepRecord(name=step.name) for step in latest.steps]})
            events = []
        for event in events:
            following.apply(self._record, event)
            self._watcher.event(self._record, event)
        known = {step.name: step for step in self._record.steps}
        self._record.steps = [step.model_copy() for step in latest.steps]
        for index, step in enumerate(latest.steps):
            before = known.get(step.name)
            if before is not None and _PROGRESS[before.status] >= _PROGRESS[step.status]:
                self._record.steps[index] = before
            elif step.status in EVENTS:
                self._watcher.event(self._record, {"step": step.name, "event": EVENTS[step.status]})


# How far a step with a status is: the events may be ahead of the record, and a remote run has none.
_PROGRESS = {"pending": 0, "running": 1, "succeeded": 2, "failed": 2, "cancelled": 2, "skipped": 2}


def display_of(folder: RunFolder) -> Follower:
    """Return a context that shows a run as it proceeds."""
    if _in_notebook():
        return Follower(folder, NotebookDisplay(folder.run_id))
    from slipway.pipelines.terminal import console

    return Follower(folder, progress.RunDisplay(console))


def show_line(line: str) -> None:
    """Show one sentence for the user to read."""
    print(line, flush=True)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """A view of a run in the output of a cell: a line per step, which one display replaces in place."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._record: RunRecord | None = None
        self._doing = ""
        self._messages: list[str] = []
        self._handle: Any = None
        self._shown = 0.0

    def __enter__(self) -> NotebookDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._show()

    def event(self, record: RunRecord, event: JsonObject) -> None:
        """Show one event of the run."""
        self._record = record
        kind = event["event"]
        if kind == "progress":
            self._doing = progress.progress_line(event)
        elif kind in ("phase", "output"):
            self._doing = event["text"]
        elif kind == "message":
            self._messages.append(event["text"])
        elif kind == "started":
            self._doing = STEPS[event["step"]].label
        if time.monotonic() - self._shown >= UPDATE_SECONDS:
            self._show()

    def _show(self) -> None:
        from IPython.display import display

        self._shown = time.monotonic()
        content = {"text/plain": "\n".join(self._lines()), "text/html": self._html()}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def _rows(self) -> Iterable[tuple[str, str, str, str]]:
        for step in self._record.steps if self._record else ():
            what = self._doing if step.status == "running" else progress.outcome(step, judged=True)
            seconds = "" if step.seconds is None else f"{step.seconds:.1f} s"
            yield MARKS[step.status], step.name, seconds, what

    def _lines(self) -> list[str]:
        rows = [f"{mark} {name:<15} {seconds:>8}  {what}".rstrip() for mark, name, seconds, what in self._rows()]
        return [f"run {self._run_id}", *rows, *self._messages]

    def _html(self) -> str:
        return _table([], [list(row) for row in self._rows()], self._run_id) + "".join(
            f"<div>{html.escape(text)}</div>" for text in self._messages
        )


def summary_html(record: RunRecord, history: Sequence[JsonObject]) -> str:
    """Return a run as a table: its status, verdict and metrics, and the curve of its validation loss."""
    verdict = record.verdict or {}
    rows = [["status", record.status], ["hardware", f"{record.hardware} on {platform_of(record.platform).title}"]]
    if verdict:
        rows.append(["verdict", f"{verdict['decision']}. {' '.join(verdict['reasons'])}"])
    rows += [[name, f"{value:.4g}"] for name, value in record.metrics.items()]
    if record.error:
        rows += [["error", record.error.message]]
    return _table([], rows, record.run_id) + sparkline(history)


def runs_table(all_runs: Sequence[RunRecord]) -> str:
    """Return runs as a table."""
    rows = []
    for record in all_runs:
        decision = "rehearsal" if record.rehearsal else (record.verdict or {}).get("decision", "")
        metric = next((step.outputs.get("metric") for step in record.steps if step.name == "evaluate"), None)
        value = f"{metric} {record.metrics[metric]:.4f}" if metric and metric in record.metrics else ""
        seconds = "" if record.seconds is None else f"{record.seconds:.1f}"
        rows.append([record.run_id, record.status, record.hardware, value, decision, seconds])
    return _table(["run", "status", "hardware", "metric", "verdict", "seconds"], rows, f"{len(rows)} runs")


def findings_table(findings: Sequence[tuple[str, str, str, str | None]]) -> str:
    """Return the findings of checks as a table: check, status, what was found, and the fix."""
    rows = [[check, status, found, fix or ""] for check, status, found, fix in findings]
    return _table(["check", "status", "found", "fix"], rows, "")


def sparkline(history: Sequence[JsonObject]) -> str:
    """Return the curve of the validation loss (of the training loss, if there is none) as SVG; "" without one."""
    for kind in ("validation", "train"):
        values = [row["loss"] for row in history if row.get("kind") == kind and isinstance(row.get("loss"), float)]
        if len(values) > 1:
            break
    else:
        return ""
    low, high = min(values), max(values)
    scale = (CURVE_HEIGHT - 4) / ((high - low) or 1.0)
    points = " ".join(
        f"{2 + index * (CURVE_WIDTH - 4) / (len(values) - 1):.1f},{CURVE_HEIGHT - 2 - (value - low) * scale:.1f}"
        for index, value in enumerate(values)
    )
    label = f"{kind} loss from {values[0]:.4g} to {values[-1]:.4g}"
    return (
        f'<svg role="img" aria-label="{label}" width="{CURVE_WIDTH}" height="{CURVE_HEIGHT}"><title>{label}</title>'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg> {label}'
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Return a table in the notebook's own style; every text is escaped."""
    left = 'style="text-align:left"'
    head = "".join(f"<th {left}>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td {left}>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    top = f"<caption {left}>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{top}{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
