"""Shards written by an Apache Beam pipeline, for sets that one machine is too slow for.

The source is listed, divided and dealt as always, on the machine that starts the pipeline, as that takes little; what a
worker process does with a shard a Beam worker does, so the shards' bytes are the same. A shard is written to the
worker's own disk, then copied to its place, with its result last.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slipway.components.prepare_data import remote
from slipway.components.prepare_data.settings import BeamSettings, DataSettings
from slipway.components.prepare_data.sources.source import Source
from slipway.components.prepare_data.writing.shards import ShardResult, ShardTask, ShardWriter
from slipway.components.prepare_data.writing.workers import Tick
from slipway.core.errors import UserError, nearest

# Runners whose workers see this machine's files.
LOCAL_RUNNERS = ("DirectRunner", "BundleBasedDirectRunner", "FnApiRunner", "PrismRunner")
BUCKET = "gs://"
# Sources whose examples a worker elsewhere can read, one file or one record at a time.
REMOTE_SOURCES = ("images", "csv", "tfds", "tfrecord")
SECONDS_BETWEEN_LOOKS = 5.0


def beam_for(settings: DataSettings, source: Source, size: int) -> BeamSettings | None:
    """The settings by which Beam writes a set of `size` bytes; None where it does not.

    Raises:
        UserError: It should, and cannot.
    """
    beam = settings.beam
    if beam is None or size < beam.from_gigabytes * 1e9:
        return None
    if importlib.util.find_spec("apache_beam") is None:
        raise UserError(
            "Apache Beam is not installed.",
            setting="data.beam",
            value=beam.runner,
            fix="pip install 'apache-beam[gcp]', or remove data.beam: processes of this machine write the set",
        )
    if is_elsewhere(beam):
        _check_reachable(settings, beam)
        _check_columns(settings, source)
        _check_cloud(beam)
    _options(beam)
    return beam


def is_elsewhere(beam: BeamSettings) -> bool:
    """Whether the runner's workers are on other machines."""
    return beam.runner.rpartition(".")[2] not in LOCAL_RUNNERS


def _check_reachable(settings: DataSettings, beam: BeamSettings) -> None:
    """Refuse what workers on other machines cannot read or write."""
    kind, _, place = settings.source.partition(":")
    place = (settings.tfds.data_dir or "") if kind == "tfds" else place
    reachable = kind in REMOTE_SOURCES and place.startswith(BUCKET)
    wrong = [
        ("data.store", settings.store, settings.store.startswith(BUCKET)),
        ("data.tfds.data_dir" if kind == "tfds" else "data.source", place if kind == "tfds" else settings.source,
         reachable and not place.lower().endswith((".zip", ".tar", ".tgz", ".tar.gz"))),
    ]  # fmt: skip
    for setting, value, fine in wrong:
        if not fine:
            raise UserError(
                f"The workers of {beam.runner} cannot reach {value!r}: they are on other machines.",
                setting=setting,
                value=value,
                allowed="files in a bucket, gs://…: a folder of images, a CSV file, or TFRecord files",
                fix=f"gcloud storage cp -r … gs://BUCKET/…, then set {setting} to that; or remove data.beam",
            )


def _check_columns(settings: DataSettings, source: Source) -> None:
    """Refuse columns that are kept in a file of this machine while the list is read."""
    if settings.source.startswith("csv:") and source.features:
        raise UserError(
            f"Workers on other machines cannot read the further columns of {settings.source}: "
            f"{', '.join(source.features)}.",
            setting="data.beam",
            value=settings.beam.runner if settings.beam else None,
            fix="leave the columns out, or write the examples to TFRecord files, or remove data.beam",
        )


def _check_cloud(beam: BeamSettings) -> None:
    """Refuse Dataflow without the packages that it takes."""
    if "Dataflow" in beam.runner and importlib.util.find_spec("apitools") is None:
        raise UserError(
            "Apache Beam is installed without what Google Cloud takes.",
            setting="data.beam.runner",
            value=beam.runner,
            fix="pip install 'apache-beam[gcp]'",
        )


def written_by(beam: BeamSettings) -> str:
    """How the manifest names the writer."""
    return f"Apache Beam {importlib.metadata.version('apache-beam')}, {beam.runner}"


def write_by_beam(
    beam: BeamSettings, writer: ShardWriter, tasks: Sequence[ShardTask], tick: Tick
) -> Iterator[tuple[int, ShardResult]]:
    """Write all shards in one pipeline, giving each one's index and result.

    Raises:
        UserError: As a shard's writer raised it, or the runner failed elsewhere.
    """
    import apache_beam

    for task in tasks:
        _error_path(task).unlink(missing_ok=True)
    pipeline = apache_beam.Pipeline(options=_options(beam))
    shards = pipeline | "shards" >> apache_beam.Create(list(tasks)) | apache_beam.Reshuffle()
    shards | "write" >> apache_beam.Map(functools.partial(write_shard, writer))
    try:
        _watch(pipeline.run())
    except Exception as error:
        if not is_elsewhere(beam):
            raise
        raise UserError(
            f"The Beam pipeline failed: {str(error).strip().splitlines()[0] if str(error).strip() else type(error)}",
            setting="data.beam",
            value=beam.runner,
            fix="read the job's log; run again: the shards that are finished are kept",
        ) from error
    for task in tasks:
        if _error_path(task).exists():
            raise UserError.from_dict(json.loads(_error_path(task).read_bytes()))
    for index, task in enumerate(tasks):
        result = ShardResult.model_validate_json(task.result.read_bytes())
        tick(result.tally.examples + result.tally.left_out_count)
        yield index, result


def write_shard(writer: ShardWriter, task: ShardTask) -> None:
    """What a Beam worker does: write one shard on its own disk, and copy it to its place."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = dataclasses.replace(
            task,
            path=folder / task.path.name,
            examples=folder / task.examples.name,
            result=folder / task.result.name,
            hashes=folder / task.hashes.name if task.hashes else None,
        )
        remote.fetch(task.examples, here.examples)
        try:
            writer(here, _untold)
        except UserError as error:
            # Beam would turn it into an error of its own.
            here.result.write_text(json.dumps(error.as_dict()))
            remote.store(here.result, _error_path(task))
            return
        remote.store(here.path, task.path)
        if here.hashes and task.hashes:
            remote.store(here.hashes, task.hashes)
        remote.store(here.result, task.result)


def _untold(count: int) -> None:
    """Nobody watches a worker's progress."""


def share_lists(lists: Path, shared: Path) -> None:
    """Copy the lists of the shards' examples to where workers elsewhere can read them."""
    shutil.rmtree(shared, ignore_errors=True)
    shutil.copytree(lists, shared)


def _error_path(task: ShardTask) -> Path:
    return task.result.with_name(f"{task.result.name}.error")


def _watch(running: Any) -> None:
    """Wait for the end of the pipeline."""
    from apache_beam.runners.runner import PipelineState

    while not PipelineState.is_terminal(running.state):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    running.wait_until_finish()


def _options(beam: BeamSettings) -> Any:
    """The pipeline's options.

    Raises:
        UserError: There is none of that name.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    known = PipelineOptions([]).get_all_options()
    for name in beam.options:
        if name not in known or name == "runner":
            raise UserError(
                f"Apache Beam has no option {name!r}." if name != "runner" else "The runner is a setting of its own.",
                setting=f"data.beam.options.{name}",
                value=beam.options[name],
                nearest=nearest(name, known) if name != "runner" else "data.beam.runner",
            )
    options = {"runner": beam.runner, "save_main_session": False, **beam.options}
    if beam.runner == "DirectRunner":
        # Otherwise it looks for another runner's program on the internet first; there are no triggers here.
        options["allow_unsafe_triggers"] = True
    return PipelineOptions([], **options)
