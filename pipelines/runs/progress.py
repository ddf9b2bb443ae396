"""The live view of a run: a progress bar and a line for each step that has ended."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from slipway import extensions
from slipway.core.formatting import number
from slipway.pipelines.runs.record import RunRecord, StepRecord
from slipway.pipelines.table import STEPS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

MARKS = {
    "succeeded": "[green]✓[/]",
    "failed": "[red]✗[/]",
    "cancelled": "[yellow]■[/]",
    "running": "[cyan]…[/]",
    "skipped": "[dim]–[/]",
    "pending": "[dim]·[/]",
}
NAME_WIDTH = 15
# Without a progress bar, a status line is printed after this many seconds of silence, or after this fraction of the
# step's time so far, whichever is longer.
QUIET_SECONDS, QUIET_SHARE = 3.0, 0.05
POLL_SECONDS = 0.5


class RunDisplay:
    """A live view of a run: a progress bar for the running step, a line for each step that has ended.

    If the output is not a terminal, occasional status lines replace the bar.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self.console = console
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._task: TaskID | None = None
        self._reports = False  # whether the step has reported progress
        self._doing = ""  # the latest activity that the step reported
        self._started = self._printed = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[step]:<15}"),
            TimeElapsedColumn(),
            BarColumn(bar_width=16),
            # Fills the rest of the line; truncated if that is too short.
            TextColumn("{task.fields[doing]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            expand=True,
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )

    def __enter__(self) -> RunDisplay:
        self._progress.start()
        self._show("starting", "")
        if not self.console.is_interactive:
            threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._lock:
            self._hide()
            self._progress.stop()

    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        """Show one event of the run."""
        with self._lock:
            self._event(record, event)

    def _event(self, record: RunRecord, event: dict[str, Any]) -> None:
        step = record.step(event["step"])
        kind = event["event"]
        if kind == "started":
            self._show(step.name, STEPS[step.name].label)
        elif kind == "phase":
            self._update(event["text"], 0, None)
        elif kind == "progress":
            self._reports = True
            self._update(progress_line(event), event["done"], event["total"] or None)
        elif kind == "output":
            self._show_output(event["text"])
        elif kind == "message":
            self._print(f"  {escape(event['text'])}")
        elif kind in ("finished", "failed", "cancelled"):
            self._hide()
            self._print(step_line(step, judged=not record.rehearsal))
            unfinished = (
                step.name for status in ("running", "pending") for step in record.steps if step.status == status
            )
            if kind == "finished" and (following := next(unfinished, None)):
                self._show(following, "starting")

    def _repeat(self) -> None:
        """Print what the running step is doing whenever nothing was printed for a while, until the display ends."""
        while not self._ended.wait(POLL_SECONDS):
            with self._lock:
                now = time.monotonic()
                running = now - self._started
                if self._task is not None and now - self._printed >= max(QUIET_SECONDS, QUIET_SHARE * running):
                    name = self._progress.tasks[-1].fields["step"]
                    self._print(f"{MARKS['running']} {name:<{NAME_WIDTH}} {running:>6.1f} s  {escape(self._doing)}")

    def _print(self, line: str) -> None:
        self.console.print(line.rstrip(), highlight=False, soft_wrap=True)
        self._printed = time.monotonic()

    def _show(self, name: str, doing: str) -> None:
        """Show a new progress bar in place of the previous one."""
        self._hide()
        self._reports, self._doing, self._started = False, doing, time.monotonic()
        self._task = self._progress.add_task("", total=None, step=name, doing=doing)

    def _update(self, doing: str, done: int, total: int | None) -> None:
        if self._task is not None:
            self._doing = doing
            self._progress.tasks[-1].total = total  # `update` ignores a total of None
            self._progress.update(self._task, completed=done, doing=doing)

    def _show_output(self, line: str) -> None:
        """Show a line of a custom program: on a terminal the last one, unless the program reports its progress."""
        if not self.console.is_interactive:
            self._print(f"  {escape(line)}")
        elif not self._reports:
            self._update(line, 0, None)

    def _hide(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def progress_line(event: dict[str, Any]) -> str:
    """Return progress and metrics as text: "120/600 steps, 155 steps/s, 3 s left, loss 0.12", or "120 steps"."""
    values = dict(event.get("values") or {})
    total = f"/{event['total']:,}" if event["total"] else ""
    parts = [f"{event['done']:,}{total} {event['unit']}"]
    rate_name = next((name for name in values if name.endswith("_per_second")), "")
    if rate := values.pop(rate_name, None):
        parts.append(f"{rate:,.0f} {rate_name.removesuffix('_per_second')}/s")
        parts += [f"{max(0, event['total'] - event['done']) / rate:,.0f} s left"] if total else []
    parts += [f"{name} {number(value)}" for name, value in values.items()]
    return ", ".join(parts)


def step_line(step: StepRecord, *, judged: bool) -> str:
    """Return one line about a step: mark, name, seconds and result; the verdict only if the run is `judged`."""
    seconds = "" if step.seconds is None else f"{step.seconds:.1f} s"
    cost = "" if step.dollars is None else f"~${step.dollars:,.2f}  "
    result = escape(outcome(step, judged=judged))
    return f"{MARKS[step.status]} {step.name:<{NAME_WIDTH}} {seconds:>8}  {cost}{result}".rstrip()


def outcome(step: StepRecord, *, judged: bool) -> str:
    """Return a short description of a step's result."""
    row = STEPS.get(step.name)
    text = str(extensions.load(row.result)(step.outputs, judged=judged)) if row and row.result else ""
    return f"{text} (reused)".lstrip() if step.reused else text
