"""Command-line operations for runs on Vertex AI."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from slipway.pipelines.cli import display
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.images.images import ensure_images
from slipway.pipelines.platforms.vertex.run import PLATFORM, VertexRun
from slipway.pipelines.runs import logs
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunFolder, RunRecord


def is_on_vertex(record: RunRecord) -> bool:
    """Whether a run is on Vertex AI."""
    return record.platform == PLATFORM


def start(config: RunConfig, shown: Console) -> tuple[RunFolder, RunRecord]:
    """Ensure that the images exist, submit the run and print its address.

    Returns:
        The run; it has failed where a build did, or where Vertex AI could not be reached any more.

    Raises:
        UserError: An image is not possible, or Vertex AI refuses the run; nothing is left of it.
    """
    return _submit(VertexRun(runs.create(config), config), None, shown)


def resume(folder: RunFolder, shown: Console) -> tuple[RunFolder, RunRecord]:
    """Resubmit a failed or cancelled run; see `start`."""
    return _submit(VertexRun(folder), folder.read(), shown)


def _submit(run: VertexRun, earlier: RunRecord | None, shown: Console) -> tuple[RunFolder, RunRecord]:
    def say(line: str) -> None:
        shown.print(escape(line), highlight=False, soft_wrap=True)

    try:
        with (run.folder.logs / "build_image.log").open("w") as log:
            images = ensure_images(run.config, log, say)
    except WorkFailed as error:
        return run.folder, run.build_failed(UserError(error.message, fix=f"see {log.name}"), earlier)
    except BaseException:
        _undo(run.folder, earlier)
        raise
    try:
        record = run.submit(images, earlier)
    except UserError:
        _undo(run.folder, earlier)
        raise
    if record.status == "failed":
        return run.folder, record
    say(f"run {record.run_id} on {record.hardware} in {run.connection.region}, submitted")
    say(f"  console: {record.console}")
    try:
        run.list_in_experiment(record)
    except UserError as error:
        say(f"  not in the experiment {run.experiment}: {error.message}")
    return run.folder, record


def _undo(folder: RunFolder, earlier: RunRecord | None) -> None:
    """Leave nothing of a run that was refused before it started; of a resumed one, its record as it was."""
    if earlier is None:
        runs.discard(folder)
    else:
        folder.write(earlier)


def watch(folder: RunFolder, shown: Console) -> RunRecord | None:
    """Show a run's steps until it ends; None if watching was interrupted. The run continues."""
    run, record = VertexRun(folder), folder.read()
    try:
        with display.RunDisplay(shown) as watcher:
            return run.watch(record, watcher.event)
    except KeyboardInterrupt:
        return None


def current(folder: RunFolder, warn: Console) -> RunRecord:
    """Return the refreshed record of a run; on failure, warn and return the last known record."""
    record = folder.read()
    if not is_on_vertex(record) or record.status != "running":
        return record
    try:
        return VertexRun(folder).refresh(record)
    except UserError as error:
        warn.print(f"as last seen; {escape(error.message)}", highlight=False, soft_wrap=True)
        return record


def log_lines(folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
    """A run's log lines, of all replicas; the start-up messages of libraries only with `raw`.

    Raises:
        UserError: The run has no such step.
    """
    logs.check_step(folder, step)
    yield from VertexRun(folder).log_lines(step, follow=follow, raw=raw)


def cancel(folder: RunFolder) -> RunRecord:
    """Stop a run and the jobs that it has made."""
    return VertexRun(folder).cancel()
