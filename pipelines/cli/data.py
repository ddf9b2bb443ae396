"""Data to try things on: `slipway data get`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway.pipelines.cli.terminal import console, show_help_alone, user_errors

# Sets by the name that people use, where TensorFlow Datasets uses another.
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
    name: Annotated[str, typer.Argument(help="mnist, flowers, cifar10, or another set of TensorFlow Datasets.")],
    folder: Annotated[Path | None, typer.Argument(help="Where to save it; by default ./NAME.")] = None,
) -> None:
    """Download a set of TensorFlow Datasets, checksums verified, and save its images as FOLDER/split/class/*."""
    from slipway.components.prepare_data.image_folders import save_images
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.prepare_data.sources.tfds_set import data_dir

    settings = DataSettings(source=f"tfds:{ALIASES.get(name, name)}")
    folder = folder or Path(name.partition("/")[0].partition(":")[0])
    console.print(f"{settings.source}, by way of {data_dir(settings)}", highlight=False, soft_wrap=True)
    count = save_images(settings, folder)
    console.print(f"{count:,} images in {folder}: --set data.source=images:{folder}", highlight=False, soft_wrap=True)
