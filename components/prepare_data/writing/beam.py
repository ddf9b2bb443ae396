"""Write shards with an Apache Beam pipeline, for data sets that are too large for one machine.

Listing, dividing and dealing are cheap and stay on the machine that starts the pipeline. Beam workers write shards with
the same code as local worker processes, so the bytes are identical. A shard is written to the worker's local disk and
then copied to its destination, followed by its result.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import pickle
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slipway.components.cloud.objects import SCHEME
from slipway.components.prepare_data import remote
from slipway.components.prepare_data.settings import BeamSettings, DataSettings
from slipway.components.prepare_data.sources import source_kind
from slipway.components.prepare_data.workers import Tick
from slipway.components.prepare_data.writing.dataflow import EXAMPLES, NAMESPACE, DataflowJob, last_line
from slipway.components.prepare_data.writing.shards import ShardResult, ShardTask, ShardWriter
from slipway.core.errors import UserError, nearest

# Runners whose workers see this machine's files.
LOCAL_RUNNERS = ("DirectRunner", "BundleBasedDirectRunner", "FnApiRunner", "PrismRunner")

# The file with all tasks, beside the lists of the shards' examples, and the number of its ranges.
TASKS = "tasks"
MAX_RANGES = 256


def beam_for(settings: DataSettings, size: int) -> BeamSettings | None:
    """Return the Beam settings if Beam writes the data set of a source of `size` bytes, else None.

    Raises:
        UserError: Beam is configured but cannot be used.
    """
    beam = settings.beam
    if beam is None or size < beam.from_gigabytes * 1e9:
        return None
    if importlib.util.find_spec("apache_beam") is None:
        raise UserError(
            "Apache Beam is not installed.",
            setting="data.beam",
            value=beam.runner,
            fix="pip install 'apache-beam[gcp]', or remove data.beam to prepare the data set on this machine",
        )
    if is_elsewhere(beam):
        if beam.access == "paths":
            _check_shared(settings, beam)
        else:
            _check_reachable(settings, beam)
        _check_cloud(beam)
    _options(beam)
    return beam


def is_elsewhere(beam: BeamSettings) -> bool:
    """Whether the runner's workers are on other machines."""
    return beam.runner.rpartition(".")[2] not in LOCAL_RUNNERS


def needs_bucket(beam: BeamSettings) -> bool:
    """Whether the runner's workers read and write a bucket, since they do not see this machine's files."""
    return is_elsewhere(beam) and beam.access == "bucket"


def _check_shared(settings: DataSettings, beam: BeamSettings) -> None:
    """Reject a store or workers for which there is no shared volume."""
    if beam.on_dataflow:
        raise UserError(
            "Dataflow's workers have no shared volume.",
            setting="data.beam.access",
            value=beam.access,
            allowed="bucket, with DataflowRunner",
            fix="--set data.beam.access=bucket",
        )
    if settings.store.startswith(SCHEME):
        raise UserError(
            f"With data.beam.access=paths, the workers of {beam.runner} write to a shared volume, not to a bucket.",
            setting="data.store",
            value=settings.store,
            allowed="a folder that the workers see at the same path",
            fix="--set data.store=/FOLDER, or --set data.beam.access=bucket",
        )


def _check_reachable(settings: DataSettings, beam: BeamSettings) -> None:
    kind = source_kind(settings.source)
    source_setting, argument = kind.located(settings)
    checks = [
        ("data.store", settings.store, settings.store.startswith(SCHEME)),
        (source_setting, settings.source if source_setting == "data.source" else argument,
         kind.beam and argument.startswith(SCHEME)),
    ]  # fmt: skip
    for setting, value, reachable in checks:
        if not reachable:
            raise UserError(
                f"The workers of {beam.runner} run on other machines and cannot access {value!r}.",
                setting=setting,
                value=value,
                allowed="files in a bucket, gs://…: a folder of images, a CSV file, or TFRecord files",
                fix=f"gcloud storage cp -r … gs://BUCKET/…, then set {setting} to that URI; if the workers see the "
                "same paths on a shared volume, --set data.beam.access=paths; or remove data.beam",
            )


def _check_cloud(beam: BeamSettings) -> None:
    if not beam.on_dataflow:
        return
    for name in ("project", "region", "temp_location", "sdk_container_image"):
        if not beam.options.get(name):
            raise UserError(
                f"Dataflow needs the option {name}, which only runs on Vertex AI have by default.",
                setting=f"data.beam.options.{name}",
                value=beam.options.get(name),
                fix=f"add {name} to data.beam.options"
                + ("; slipway build --target vertex builds such an image" if name == "sdk_container_image" else ""),
            )
    if not _has_dataflow_client():
        raise UserError(
            "Apache Beam is installed without its Google Cloud dependencies.",
            setting="data.beam.runner",
            value=beam.runner,
            fix="pip install 'apache-beam[gcp]'",
        )


def _has_dataflow_client() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.dataflow_v1beta3") is not None
    except ModuleNotFoundError:  # no google.cloud
        return False


def written_by(beam: BeamSettings) -> str:
    """Return the name of the writer for the manifest."""
    return f"Apache Beam {importlib.metadata.version('apache-beam')}, {beam.runner}"


def write_by_beam(
    beam: BeamSettings, writer: ShardWriter, tasks: Sequence[ShardTask], tick: Tick, share: Callable[[], object]
) -> Iterator[tuple[int, ShardResult]]:
    """Write all shards in one pipeline; yield each shard's index and result.

    Args:
        beam: The Beam settings.
        writer: The function that writes a shard.
        tasks: The shards.
        tick: Called with numbers of finished examples.
        share: Puts the lists of the shards' examples where the workers read them; called before a pipeline starts.

    Raises:
        UserError: A shard's writer raised it, or a remote runner failed.
    """
    if beam.on_dataflow:
        counted = _write_on_dataflow(beam, writer, tasks, tick, share)
    else:
        share()
        _write_here_or_elsewhere(beam, writer, tasks)
        counted = 0
    for task in tasks:
        if _error_path(task).exists():
            raise UserError.from_dict(json.loads(_error_path(task).read_bytes()))
    for index, task in enumerate(tasks):
        result = ShardResult.model_validate_json(task.result.read_bytes())
        examples = result.tally.examples + result.tally.skipped_count
        tick(examples - min(examples, counted))
        counted -= min(examples, counted)
        yield index, result


def _write_on_dataflow(
    beam: BeamSettings, writer: ShardWriter, tasks: Sequence[ShardTask], tick: Tick, share: Callable[[], object]
) -> int:
    """Write the shards in a Dataflow job, or in that of an earlier attempt; return the number of examples reported."""
    counted = 0

    def count(examples: int) -> None:
        nonlocal counted
        counted += examples
        tick(examples)

    with DataflowJob.of(beam.options, str(tasks[0].result.parent), count) as job:
        if job.adopt():
            tasks = [task for task in tasks if not (task.result.exists() or _error_path(task).exists())]
        if tasks:
            share()
            job.run(functools.partial(_submit, beam, writer, tasks))
    return counted


def _submit(beam: BeamSettings, writer: ShardWriter, tasks: Sequence[ShardTask], name: str) -> str:
    """Create a Dataflow job of that name; return its id."""
    named = beam.model_copy(update={"options": {**beam.options, "job_name": name}})
    identity: str = _pipeline(named, writer, tasks).run().job_id()
    return identity


def _write_here_or_elsewhere(beam: BeamSettings, writer: ShardWriter, tasks: Sequence[ShardTask]) -> None:
    pipeline = _pipeline(beam, writer, tasks)
    running = None
    try:
        running = pipeline.run()
        running.wait_until_finish()
    except Exception as error:
        if not is_elsewhere(beam):
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


def _pipeline(beam: BeamSettings, writer: ShardWriter, tasks: Sequence[ShardTask]) -> Any:
    """Return the Beam pipeline that writes the shards."""
    import apache_beam

    for task in tasks:
        _error_path(task).unlink(missing_ok=True)
    file = tasks[0].examples.with_name(TASKS)
    pipeline = apache_beam.Pipeline(options=_options(beam))
    ranges = pipeline | "ranges" >> apache_beam.Create(_write_tasks(tasks, file)) | apache_beam.Reshuffle()
    shards = ranges | "shards" >> apache_beam.FlatMap(functools.partial(_read_tasks, file))
    spread = shards | "spread" >> apache_beam.Reshuffle()
    spread | "write" >> apache_beam.Map(functools.partial(write_shard, writer))
    return pipeline


def _write_tasks(tasks: Sequence[ShardTask], file: Path) -> list[tuple[int, int]]:
    """Write the tasks to a file; return its ranges, the start and the size, of which the pipeline has at most some.

    The pipeline itself must not grow with the number of shards, for which services have limits.
    """
    each = -(-len(tasks) // MAX_RANGES)
    parts = [pickle.dumps(list(tasks[start : start + each])) for start in range(0, len(tasks), each)]
    file.write_bytes(b"".join(parts))
    starts = itertools.accumulate(map(len, parts), initial=0)
    return [(start, len(part)) for start, part in zip(starts, parts, strict=False)]


def _read_tasks(file: Path, part: tuple[int, int]) -> list[ShardTask]:
    """Return the tasks in a range of the file."""
    _check_visible(file.parent)
    tasks: list[ShardTask] = pickle.loads(remote.read_range(file, *part))
    return tasks


def write_shard(writer: ShardWriter, task: ShardTask) -> None:
    """Write one shard to the Beam worker's local disk and copy it to its destination."""
    from apache_beam.metrics import Metrics

    counter = Metrics.counter(NAMESPACE, EXAMPLES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = dataclasses.replace(
            task,
            path=folder / task.path.name if task.path else None,
            examples=folder / task.examples.name,
            result=folder / task.result.name,
        )
        try:
            remote.fetch(task.examples, here.examples)
            writer(here, counter.inc)
        except UserError as error:
            # Beam would wrap it in another exception.
            here.result.write_text(json.dumps(error.as_dict()))
            remote.store(here.result, _error_path(task))
            return
        if here.path and task.path:
            remote.store(here.path, task.path)
            remote.store(here.hashes, task.hashes)
        if here.compared:
            remote.store(here.thumbnails, task.thumbnails)
        remote.store(here.result, task.result)


def _check_visible(folder: Path) -> None:
    """Check that this worker sees a folder of the step."""
    if not remote.is_remote(folder) and not folder.is_dir():
        # Not a UserError, which would be stored in a folder that this worker does not see.
        raise NotADirectoryError(
            f"the worker on {socket.gethostname()} does not see the folder {folder} (data.beam.access is paths)"
        )


def _error_path(task: ShardTask) -> Path:
    return task.result.with_name(f"{task.result.name}.error")


def _options(beam: BeamSettings) -> Any:
    """Return the pipeline options.

    Raises:
        UserError: There is no such runner or option.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    _import_runner(beam.runner)
    flags = _flags()
    options = {"runner": beam.runner, "save_main_session": False}
    for name, value in beam.options.items():
        if name == "runner" or name not in flags:
            raise UserError(
                f"Apache Beam has no option {name!r}." if name != "runner" else "The runner is a separate setting.",
                setting=f"data.beam.options.{name}",
                value=value,
                nearest=nearest(name, flags) if name != "runner" else "data.beam.runner",
                fix=f"correct the name in data.beam.options, or remove {name}",
            )
        options[flags[name].dest] = _option_value(flags[name], value)
    if beam.runner == "DirectRunner":
        # Otherwise it first tries to download the Prism runner. The pipeline has no triggers.
        options["allow_unsafe_triggers"] = True
    return PipelineOptions([], **options)


def _import_runner(runner: str) -> None:
    """Import the runner's module, which declares the runner's own options, such as Dask's.

    Raises:
        UserError: There is no such runner, or it needs a package that is not installed.
    """
    from apache_beam.options.pipeline_options import StandardOptions

    known = {path.rpartition(".")[2]: path for path in StandardOptions.ALL_KNOWN_RUNNERS}
    path = runner if "." in runner else {name.lower(): known[name] for name in known}.get(runner.lower())
    if path is None:
        raise UserError.unknown("runner", runner, known, setting="data.beam.runner")
    module, _, name = path.rpartition(".")
    try:
        found = hasattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(
            f"The runner cannot be imported: {error}.",
            setting="data.beam.runner",
            value=runner,
            fix="correct the name, or install the package",
        ) from None
    if not found:
        raise UserError(f"The module {module} has no runner {name}.", setting="data.beam.runner", value=runner)


def _flags() -> dict[str, argparse.Action]:
    """Return the options of Beam and of all imported runners by their documented flags, without dashes."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    actions = parsers[0]._actions
    return {flag.lstrip("-"): action for action in actions for flag in action.option_strings if action.dest != "help"}


def _option_value(action: argparse.Action, value: object) -> object:
    """Return the value of an option whose flag has this value: --no_use_public_ips clears an option."""
    if isinstance(value, bool) and action.nargs == 0:
        return action.const if value else not action.const
    return action.type(value) if isinstance(value, str) and callable(action.type) else value
