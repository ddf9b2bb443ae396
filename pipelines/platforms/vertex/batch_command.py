"""`slipway batch --target vertex`: batch prediction jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from slipway.core.errors import UserError
from slipway.pipelines.platforms.capabilities import BatchJob
from slipway.pipelines.platforms.vertex import batch
from slipway.pipelines.terminal import EXIT_FAILED, EXIT_INTERRUPTED, print_json, progress_bar, say, show_error

if TYPE_CHECKING:
    from slipway.pipelines.platforms.vertex.batch import Job, Prepared


def run(asked: BatchJob, *, dry_run: bool, no_wait: bool, cancel: bool, strict: bool, as_json: bool) -> None:
    """Submit, find or cancel a batch prediction job, watch it, and show its results."""
    prepared = batch.prepare(asked)
    if dry_run:
        print_json(prepared.job)
        return
    job = batch.find(prepared)
    if cancel:
        if job is None or job.state.name in batch.ENDED:
            raise UserError("This batch is not running.", setting="--cancel", fix="the options of the running one")
        batch.cancel(prepared, job)
        say(f"{job.name} is being cancelled; predictions that it has written are kept")
        return
    if job is None:
        try:
            job = batch.submit(prepared)
        except KeyboardInterrupt:
            say("  the job may have been submitted; the same command finds it; to cancel it: with --cancel")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        model, machine = prepared.job["model"].rpartition("/")[2], asked.hardware or batch.DEFAULT_HARDWARE
        say(f"batch prediction with {model} on {machine}, submitted")
    else:
        say(f"this batch was submitted before: {job.name}")
    say(f"  console: {batch.console_url(prepared.connection, job)}")
    if no_wait:
        say("  watch: the same command without --no-wait")
        return
    job = _watch(prepared, job)
    if job.state.name not in batch.SUCCEEDED:
        show_error(batch.failure(prepared, job), as_json=as_json)
        raise typer.Exit(EXIT_INTERRUPTED if job.state.name == "JOB_STATE_CANCELLED" else EXIT_FAILED)
    _report(prepared, job, strict=strict, as_json=as_json)


def _watch(prepared: Prepared, job: Job) -> Job:
    seen: list[str] = []
    with progress_bar() as progress:
        task = progress.add_task("waiting", total=prepared.inputs.examples)

        def show(state: str, done: int) -> None:
            progress.update(task, description=state, completed=done)
            if state not in seen:
                seen.append(state)
                say(f"  {state}")

        try:
            return batch.watch(prepared, job, show)
        except KeyboardInterrupt:
            say("  the job continues; to watch it: the same command; to cancel it: the same command with --cancel")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _report(prepared: Prepared, job: Job, *, strict: bool, as_json: bool) -> None:
    summary, folder = batch.results(prepared, job)
    where = f"{folder}/errors.jsonl" if summary["listed"] else f"{folder}/prediction.errors_stats-*"
    errors = f", {summary['failed']:,} in {where}" if summary["failed"] else ""
    say(f"{summary['examples']:,} inputs: {summary['done']:,} predicted in {folder}{errors}")
    difference = summary["examples"] - summary["done"] - summary["failed"]
    if difference:
        problem = "inputs are in neither" if difference > 0 else "more predictions than inputs"
        say(f"warning: {abs(difference):,} {problem}")
    for message, count in summary["messages"].items():
        say(f"  {count:,}: {message[:300]}")
    if as_json:
        print_json(summary)
    if summary["failed"] and (strict or not summary["done"]):
        raise typer.Exit(EXIT_FAILED)
