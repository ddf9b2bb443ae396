"""`slipway data get`: download a public data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway.pipelines.cli.terminal import console, show_help_alone, user_errors

# Common names of data sets that TensorFlow Datasets calls something else.
ALIASES = {"flowers": "tf_flowers"}

app = typer.Typer(
    help="Download data sets.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    show_help_alone(context)


@app.command(epilog="[bold]Examples[/]\n\nslipway data get mnist\n\nslipway data get flowers photographs")
@user_errors
def get(
    name: Annotated[str, typer.Argument(help="mnist, flowers, cifar10, or any other TensorFlow Datasets name.")],
    folder: Annotated[Path | None, typer.Argument(help="Output folder; default: ./NAME.")] = None,
) -> None:
    """Download a data set from TensorFlow Datasets, verify its checksums, and save images as FOLDER/split/class/*."""
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.prepare_data.sources.tfds_set import data_dir, save_images

    settings = DataSettings(source=f"tfds:{ALIASES.get(name, name)}")
    folder = folder or Path(name.partition("/")[0].partition(":")[0])
    console.print(f"{settings.source}, cached in {data_dir(settings)}", highlight=False, soft_wrap=True)
    count = save_images(settings, folder)
    console.print(f"{count:,} images in {folder}: --set data.source=images:{folder}", highlight=False, soft_wrap=True)
