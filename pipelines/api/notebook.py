"""How runs are shown to Python's callers: one display that is updated in a notebook, lines elsewhere."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from slipway.core.formatting import number
from slipway.core.values import JsonObject
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.runs import following, progress
from slipway.pipelines.runs.record import RunFolder, RunRecord
from slipway.pipelines.table import STEPS

# A notebook's display is replaced at most so often: every message is stored in the saved notebook until it is replaced.
UPDATE_SECONDS = 0.5
MARKS = {status: Text.from_markup(mark).plain for status, mark in progress.MARKS.items()}
CURVE_WIDTH, CURVE_HEIGHT = 160, 36
REPORT_HEIGHT = 640


@contextlib.contextmanager
def display_of(folder: RunFolder) -> Iterator[following.Follower]:
    """Return a context that shows a run as it proceeds."""
    from slipway.pipelines.terminal import console

    display = NotebookDisplay(folder.run_id) if _in_notebook() else progress.RunDisplay(console)
    with display as watcher:
        yield following.Follower(folder, watcher)


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
        record = self._record
        for step in record.steps if record else ():
            finished = progress.outcome(step, judged=record is not None and not record.rehearsal)
            seconds = "" if step.seconds is None else f"{step.seconds:.1f} s"
            yield MARKS[step.status], step.name, seconds, self._doing if step.status == "running" else finished

    def _lines(self) -> list[str]:
        rows = [f"{mark} {name:<15} {seconds:>8}  {outcome}".rstrip() for mark, name, seconds, outcome in self._rows()]
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
    rows += [[name, number(value)] for name, value in record.metrics.items()]
    if record.error:
        rows += [["error", record.error.message]]
    return _table([], rows, record.run_id) + sparkline(history)


def runs_table(all_runs: Sequence[RunRecord]) -> str:
    """Return runs as a table."""
    rows = []
    for record in all_runs:
        decision = "rehearsal" if record.rehearsal else (record.verdict or {}).get("decision", "")
        metric = record.outputs("evaluate").get("metric")
        value = f"{metric} {number(record.metrics[metric])}" if metric and metric in record.metrics else ""
        seconds = "" if record.seconds is None else f"{record.seconds:.1f}"
        rows.append([record.run_id, record.status, record.hardware, value, decision, seconds])
    return _table(["run", "status", "hardware", "metric", "verdict", "seconds"], rows, f"{len(rows)} runs")


def findings_table(findings: Sequence[tuple[str, str, str, str | None]]) -> str:
    """Return the findings of checks as a table: check, status, what was found, and the fix."""
    rows = [[check, status, detail, fix or ""] for check, status, detail, fix in findings]
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
    label = f"{kind} loss from {number(values[0])} to {number(values[-1])}"
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


class Report:
    """A page, such as the report of an evaluation, which a notebook shows inline; `path` is its file."""

    def __init__(self, path: Path, title: str = "Evaluation report") -> None:
        self.path, self._title = path, title

    def __repr__(self) -> str:
        return f"<Report {self.path}>"

    @property
    def html(self) -> str:
        """The page's HTML."""
        return self.path.read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own: its styles and scripts cannot touch the notebook."""
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.html)}" title="{html.escape(self._title)}" '
            f'style="width:100%;height:{REPORT_HEIGHT}px;border:1px solid #8884"></iframe>'
        )
