"""Predictions on many inputs, on this machine or as a job on a platform: `slipway batch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.core.values import spoken
from slipway.pipelines.cli.serving import FORMAT, MODEL, SPLIT, Module, Trust
from slipway.pipelines.cli.targets import target_option
from slipway.pipelines.options import Configuration, Json, Overrides, Registry, configured
from slipway.pipelines.platforms.base import Platform
from slipway.pipelines.platforms.capabilities import BatchJob, WithBatches
from slipway.pipelines.platforms.table import DEFAULT, PLATFORMS, platform_of
from slipway.pipelines.prediction.inputs import WORDS
from slipway.pipelines.prediction.output import Format
from slipway.pipelines.prediction.unknown import Limit
from slipway.pipelines.terminal import EXIT_FAILED, EXIT_INTERRUPTED, progress_bar, say, user_errors

if TYPE_CHECKING:
    from slipway.pipelines.prediction.batch import Batch, Outcome
    from slipway.pipelines.prediction.output import Destination

BATCHING = [DEFAULT, *(name for name, platform in PLATFORMS.items() if isinstance(platform, WithBatches))]
ONLY_LOCAL = ("kind", "split", "processes", "part_size", "max_unknown", "module", "trust", "registry")
ONLY_JOB = ("config", "hardware", "overrides", "dry_run", "no_wait", "cancel")


@user_errors
def batch(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=f"{MODEL} On Vertex AI, NAME, NAME/VERSION or NAME@ALIAS.")],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="INPUT",
            help=f"What to predict on: {WORDS}. "
            "On Vertex AI, gs:// URIs of CSV, Parquet, JSONL, TFRecord or lists of files (.txt), or a folder of these. "
            "Can be repeated.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="The folder for the predictions, the errors and the summary. One with an unfinished batch is "
            "completed. On Vertex AI, gs://BUCKET/FOLDER.",
        ),
    ],
    kind: Annotated[Format, typer.Option("--format", metavar="FORMAT", help=FORMAT)] = Format.jsonl,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="FIELD",
            help="Field of the instances, or column, that identifies them in the output; not an input of the model.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(metavar="SPLIT", help=SPLIT)] = "test",
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Processes; default: one per core, or one with a GPU.")
    ] = None,
    part_size: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Examples per file of the output.")] = 4096,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Examples per batch: 256; on Vertex AI, up to 64.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any input has an error.")] = False,
    max_unknown: Limit = 1.0,
    module: Module = None,
    trust: Trust = False,
    registry: Registry = Path("models"),
    target: Annotated[str, target_option(f"Where it runs: {spoken(BATCHING)}.")] = DEFAULT,
    config: Configuration = None,
    overrides: Overrides = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            metavar="CHOICE",
            help="On Vertex AI: n1-standard-4 (default), or such as 'e2-standard-8*4' or 'l4x1*2+spot'.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="On Vertex AI: check, and print the job.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="On Vertex AI: do not watch the job.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="On Vertex AI: cancel this job.")] = False,
    as_json: Json = False,
) -> None:
    """Predict on many inputs in several processes, or as a job on Vertex AI. The same command continues a batch."""
    platform = platform_of(target)
    _check_options(context, platform)
    if isinstance(platform, WithBatches):
        job = BatchJob(configured(None, config, overrides), model, tuple(inputs), output, hardware, batch_size, key)
        platform.batch(job, dry_run=dry_run, no_wait=no_wait, cancel=cancel, strict=strict, as_json=as_json)
        return
    if "-" in inputs:
        raise UserError("A batch cannot read from stdin.", setting="--input", value="-", fix="slipway predict MODEL -")
    for option, location in (*(("--input", source) for source in inputs), ("--output", output)):
        if location.startswith("gs://"):
            raise UserError(
                f"A batch on this machine has files of this machine, not {location}.",
                setting=option,
                value=location,
                fix="--target vertex",
            )
    from slipway.pipelines.prediction import batch as batches
    from slipway.pipelines.prediction import models
    from slipway.pipelines.prediction.output import destination

    written = destination(output)
    if written is not None and kind is not Format.jsonl:
        raise UserError(f"{output} has columns.", setting="--format", value=str(kind), fix="remove --format")
    chosen = models.find(model, registry, module)
    models.say_once(chosen, registry, trust=trust)
    local_batch = batches.Batch(
        chosen=chosen,
        inputs=tuple(inputs),
        folder=written.folder if written else Path(output),
        kind=kind,
        size=part_size,
        batch_size=batch_size or 256,
        split=split,
        key=key,
    )
    _on_this_machine(local_batch, processes, max_unknown, written, strict=strict, as_json=as_json)


def _on_this_machine(
    local_batch: Batch,
    processes: int | None,
    max_unknown: float,
    written: Destination | None,
    *,
    strict: bool,
    as_json: bool,
) -> None:
    from slipway.pipelines.prediction import batch as batches

    try:
        outcome = _predict(local_batch, processes)
    except UserError as error:
        if written is not None and (error.fix or "").startswith("--output"):  # which is no folder
            error.fix = "--output bigquery:PROJECT.DATASET.TABLE of another table"
        raise
    if outcome.kept == outcome.parts:
        say(f"{local_batch.folder} is complete")
    elif outcome.kept:
        say(f"kept {outcome.kept} of {outcome.parts} parts from before")
    errors = f", {outcome.failed:,} in {local_batch.folder / batches.ERRORS}" if outcome.failed else ""
    say(f"{local_batch.chosen}: {outcome.inputs:,} inputs: {outcome.done:,} predicted in {local_batch.folder}{errors}")
    if outcome.first:
        say(f"  the first: {outcome.first}")
    for line in outcome.unknown.lines():
        say(f"  {line}")
    if as_json:
        sys.stdout.write((local_batch.folder / batches.SUMMARY).read_text(encoding="utf-8"))
    outcome.unknown.check(max_unknown)
    if written is not None:
        say(written.write(local_batch.folder))
    if outcome.failed and (strict or not outcome.done):
        raise typer.Exit(EXIT_FAILED)


def _predict(local_batch: Batch, processes: int | None) -> Outcome:
    from slipway.pipelines.prediction import batch as batches

    if processes is None:  # TensorFlow reserves a GPU's memory for one process
        processes = 1 if Path("/dev/nvidia0").exists() else available_cores()
    try:
        with progress_bar() as progress:
            task = progress.add_task(str(local_batch.chosen), total=None)
            return batches.run(
                local_batch, processes, lambda done, total: progress.update(task, completed=done, total=total)
            )
    except KeyboardInterrupt:
        say("stopped; the same command continues")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _check_options(context: typer.Context, platform: Platform) -> None:
    """Raise UserError for a platform without batches, and for options of the other one."""
    is_job = isinstance(platform, WithBatches)
    if not is_job and platform.name != DEFAULT:
        raise UserError(
            f"There are no batch predictions on {platform.title}.",
            setting="--target",
            value=platform.name,
            allowed=", ".join(BATCHING),
        )
    unsupported = ONLY_LOCAL if is_job else ONLY_JOB
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in unsupported and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            fix = f"remove {option}" if is_job else f"--target vertex, or remove {option}"
            raise UserError(f"{option} does not apply to a batch on {platform.name}.", setting=option, fix=fix)
