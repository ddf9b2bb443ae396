"""Run tasks in an Apache Beam pipeline on other machines, or on this one.

Each task stores its files, then its result, atomically: a task whose worker is lost is done again by another one. What
a task raises is stored, too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import pickle
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from slipway.components.cloud.refusals import is_answer
from slipway.components.prepare_data import remote
from slipway.components.prepare_data.beam.dataflow import EXAMPLES, NAMESPACE, DataflowJob, last_line
from slipway.components.prepare_data.beam.options import is_elsewhere, options_of
from slipway.components.prepare_data.settings import BeamSettings
from slipway.components.prepare_data.workers import Tick
from slipway.core.errors import UserError

# The file with all tasks, beside their results, and the number of its ranges.
TASKS = "tasks"
MAX_RANGES = 256


class BeamTask(Protocol):
    """A task of Beam's workers: one shard or one part of a source.

    Attributes:
        result: The file that marks it as finished, beside those of the other tasks.
    """

    @property
    def result(self) -> Path: ...


Task = TypeVar("Task", bound=BeamTask)
# Does a task on a worker, with a temporary folder of its disk.
Work = Callable[[Task, Path, Tick], None]


def run_by_beam(
    beam: BeamSettings, work: Work[Task], tasks: Sequence[Task], tick: Tick, share: Callable[[], object]
) -> int:
    """Do tasks in one pipeline; return how much of what `work` counts was reported to `tick` meanwhile.

    Args:
        beam: The Beam settings.
        work: Does a task on a worker.
        tasks: The tasks.
        tick: Called with numbers of finished examples or parts.
        share: Puts what the workers read where they read it; called before a pipeline starts.

    Raises:
        UserError: A worker raised it, or a remote runner failed.
    """
    counted = 0

    def count(done: int) -> None:
        nonlocal counted
        counted += done
        tick(done)

    if beam.on_dataflow:
        _run_on_dataflow(beam, work, tasks, count, share)
    else:
        share()
        _run_here_or_elsewhere(beam, work, tasks)
    for path in _errors(tasks):
        error: UserError = pickle.loads(path.read_bytes())
        raise error
    return counted


def _run_on_dataflow(
    beam: BeamSettings, work: Work[Task], tasks: Sequence[Task], tick: Tick, share: Callable[[], object]
) -> None:
    """Do the tasks in a Dataflow job, or in that of an earlier attempt."""
    with DataflowJob.of(beam.options, str(_folder_of(tasks)), tick) as job:
        if job.adopt():
            names = names_in(_folder_of(tasks))
            tasks = [task for task in tasks if not names & {task.result.name, _error_path(task).name}]
        if tasks:
            share()
            job.run(functools.partial(_submit, beam, work, tasks))


def _submit(beam: BeamSettings, work: Work[Task], tasks: Sequence[Task], name: str) -> str:
    """Create a Dataflow job of that name; return its id."""
    named = beam.model_copy(update={"options": {**beam.options, "job_name": name}})
    identity: str = _pipeline(named, work, tasks).run().job_id()
    return identity


def _run_here_or_elsewhere(beam: BeamSettings, work: Work[Task], tasks: Sequence[Task]) -> None:
    pipeline = _pipeline(beam, work, tasks)
    running = None
    try:
        running = pipeline.run()
        running.wait_until_finish()
    except Exception as error:
        # A runner raises RuntimeError when its job has failed.
        if not is_elsewhere(beam) or not (isinstance(error, RuntimeError) or is_answer(error)):
            raise
        raise UserError(
            f"The Beam pipeline failed: {last_line(str(error)) or type(error).__name__}",
            setting="data.beam",
            value=beam.runner,
            fix="check the job's log and run again",
        ) from error
    except BaseException:  # Ctrl-C or a signal
        if running is not None:
            with contextlib.suppress(Exception):  # not every runner can cancel
                running.cancel()
        raise


def _pipeline(beam: BeamSettings, work: Work[Task], tasks: Sequence[Task]) -> Any:
    """Return the Beam pipeline that does the tasks."""
    import apache_beam

    for path in _errors(tasks):
        path.unlink()
    file = _folder_of(tasks) / TASKS
    pipeline = apache_beam.Pipeline(options=options_of(beam))
    ranges = pipeline | "ranges" >> apache_beam.Create(_write_tasks(tasks, file)) | apache_beam.Reshuffle()
    elements = ranges | "tasks" >> apache_beam.FlatMap(functools.partial(_read_tasks, file))
    spread = elements | "spread" >> apache_beam.Reshuffle()
    spread | "work" >> apache_beam.Map(functools.partial(_run_task, work))
    return pipeline


def _write_tasks(tasks: Sequence[Task], file: Path) -> list[tuple[int, int]]:
    """Write the tasks to a file; return its ranges, the start and the size, of which the pipeline has at most some.

    The pipeline itself must not grow with the number of tasks, for which services have limits.
    """
    range_size = -(-len(tasks) // MAX_RANGES)
    pickled = [pickle.dumps(list(tasks[start : start + range_size])) for start in range(0, len(tasks), range_size)]
    parts = [hashlib.sha256(data).digest() + data for data in pickled]
    file.write_bytes(b"".join(parts))
    starts = itertools.accumulate(map(len, parts), initial=0)
    return [(start, len(part)) for start, part in zip(starts, parts, strict=False)]


def _read_tasks(file: Path, part: tuple[int, int]) -> list[Any]:
    """Return the tasks in a range of the file.

    Raises:
        OSError: They are damaged; Beam then tries again.
    """
    _check_visible(file.parent)
    stored = remote.read_range(file, *part)
    digest, data = stored[: hashlib.sha256().digest_size], stored[hashlib.sha256().digest_size :]
    if hashlib.sha256(data).digest() != digest:
        raise OSError(errno.EIO, "the tasks are not those that were written", str(file))
    tasks: list[Any] = pickle.loads(data)
    return tasks


def _run_task(work: Work[Task], task: Task) -> None:
    """Do one task on a worker; store its error, which Beam would wrap in another exception."""
    from apache_beam.metrics import Metrics

    counter = Metrics.counter(NAMESPACE, EXAMPLES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            work(task, folder, counter.inc)
        except UserError as error:
            stored = folder / _error_path(task).name
            stored.write_bytes(pickle.dumps(error))
            remote.store(stored, _error_path(task))


def _check_visible(folder: Path) -> None:
    """Check that this worker sees a folder of the step."""
    if not remote.is_remote(folder) and not folder.is_dir():
        # Not a UserError, which would be stored in a folder that this worker does not see.
        raise NotADirectoryError(
            f"the worker on {socket.gethostname()} does not see the folder {folder} (data.beam.access is paths)"
        )


def _error_path(task: BeamTask) -> Path:
    return task.result.with_name(f"{task.result.name}.error")


def _errors(tasks: Sequence[BeamTask]) -> list[Path]:
    """Return the files of the tasks' errors, in order of the tasks."""
    names = names_in(_folder_of(tasks))
    return [path for path in map(_error_path, tasks) if path.name in names]


def _folder_of(tasks: Sequence[BeamTask]) -> Path:
    return tasks[0].result.parent


def names_in(folder: Path) -> set[str]:
    """Return the names of all files in a folder by one request, where one for each takes minutes in a bucket."""
    return {path.name for path in folder.iterdir()}
