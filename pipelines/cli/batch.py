"""Predictions on many inputs: `slipway batch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.pipelines.cli.options import Json
from slipway.pipelines.cli.serving import FORMAT, MODEL, SPLIT, Module, Registry, progress_bar
from slipway.pipelines.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, say, user_errors
from slipway.pipelines.prediction.output import Format

if TYPE_CHECKING:
    from slipway.pipelines.prediction.batch import Batch, Outcome


@user_errors
def batch(
    model: Annotated[str, typer.Argument(help=MODEL)],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="INPUT",
            help="Images, a folder of images, a CSV file, a JSONL file of instances, or a prepared data set. "
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
            "completed.",
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
    batch_size: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Examples per batch.")] = 256,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any input has an error.")] = False,
    module: Module = None,
    registry: Registry = Path("models"),
    as_json: Json = False,
) -> None:
    """Predict on many inputs in several processes; can be stopped and continued by the same command."""
    from slipway.pipelines.prediction import batch as batches
    from slipway.pipelines.prediction import models

    if "-" in inputs:
        raise UserError("A batch cannot read from stdin.", setting="--input", value="-", fix="slipway predict MODEL -")
    what = batches.Batch(
        chosen=models.find(model, registry),
        inputs=tuple(inputs),
        folder=Path(output),
        kind=kind,
        size=part_size,
        batch_size=batch_size,
        split=split,
        key=key,
        module=module,
    )
    outcome = _predict(what, processes)
    if outcome.kept == outcome.parts:
        say(f"{what.folder} is complete")
    elif outcome.kept:
        say(f"kept {outcome.kept} of {outcome.parts} parts from before")
    errors = f", {outcome.failed:,} in {what.folder / batches.ERRORS}" if outcome.failed else ""
    say(f"{what.chosen}: {outcome.inputs:,} inputs: {outcome.done:,} predicted in {what.folder}{errors}")
    if as_json:
        sys.stdout.write((what.folder / batches.SUMMARY).read_text(encoding="utf-8"))
    if outcome.failed and (strict or not outcome.done):
        raise typer.Exit(EXIT_FAILED)


def _predict(what: Batch, processes: int | None) -> Outcome:
    from slipway.pipelines.prediction import batch as batches

    if processes is None:  # TensorFlow reserves a GPU's memory for one process
        processes = 1 if Path("/dev/nvidia0").exists() else available_cores()
    try:
        with progress_bar() as progress:
            task = progress.add_task(str(what.chosen), total=None)
            return batches.run(what, processes, lambda done, total: progress.update(task, completed=done, total=total))
    except KeyboardInterrupt:
        say("stopped; the same command continues")
        raise typer.Exit(EXIT_INTERRUPTED) from None
