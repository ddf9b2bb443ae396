"""The commands for runs on Vertex AI; see slipway.pipelines.platforms.remote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, vertex_of
from slipway.pipelines.hardware import validate_for
from slipway.pipelines.hardware.placement import check_python
from slipway.pipelines.images.images import ensure_images, known_images
from slipway.pipelines.platforms.remote import Say
from slipway.pipelines.platforms.vertex.run import VertexRun
from slipway.pipelines.platforms.vertex.submission import compile_pipeline
from slipway.pipelines.runs import logs
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunFolder, RunRecord, Watcher


def check_hardware(config: RunConfig) -> str:
    """Raise UserError for hardware that the region, engine or image does not support; return hardware and region."""
    vertex, hardware = vertex_of(config), config.parsed_hardware
    validate_for(
        hardware,
        region=vertex.region,
        engine=config.train.engine,
        image=config.train.image or vertex.image,
        own_program=config.train.program is not None,
    )
    if vertex.image is None and config.train.image is None:
        check_python(hardware, config.train.engine)
    return f"{hardware} in {vertex.region}"


def compile_to(path: Path, config: RunConfig, say: Say) -> None:
    """Write the pipeline spec; no image is built."""
    compile_pipeline(config, known_images(config, say), path)


def start(config: RunConfig, say: Say) -> tuple[RunFolder, RunRecord]:
    """Ensure that the images exist, submit the run and print its URL.

    Returns:
        The run. Its status is failed if a build failed or Vertex AI became unreachable.

    Raises:
        UserError: An image cannot be built, or Vertex AI refuses the run, whose folder is removed.
    """
    return _submit(VertexRun(runs.create(config), config), None, say)


def resume(folder: RunFolder, say: Say) -> tuple[RunFolder, RunRecord]:
    """Resubmit a failed or cancelled run; see `start`."""
    return _submit(VertexRun(folder), folder.read(), say)


def _submit(run: VertexRun, earlier: RunRecord | None, say: Say) -> tuple[RunFolder, RunRecord]:
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
        run.add_to_experiment(record)
    except UserError as error:
        say(f"  not in the experiment {run.experiment}: {error.message}")
    return run.folder, record


def _undo(folder: RunFolder, earlier: RunRecord | None) -> None:
    """Remove the folder of a new run that was refused; restore the record of a resumed one."""
    if earlier is None:
        runs.discard(folder)
    else:
        folder.write(earlier)


def refresh(folder: RunFolder) -> RunRecord:
    """Return the run's record, updated from Vertex AI if the run has not ended."""
    record = folder.read()
    return VertexRun(folder).refresh(record) if record.status == "running" else record


def watch(folder: RunFolder, watcher: Watcher) -> RunRecord:
    """Refresh the record until the run ends."""
    return VertexRun(folder).watch(folder.read(), watcher)


def log_lines(folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
    """Yield a run's log lines, of all replicas.

    Raises:
        UserError: The run has no such step.
    """
    logs.check_step(folder, step)
    yield from VertexRun(folder).log_lines(step, follow=follow, raw=raw)


def cancel(folder: RunFolder) -> RunRecord:
    """Stop a run and its custom jobs."""
    return VertexRun(folder).cancel()
